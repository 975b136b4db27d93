//! Traffic from a seed: the same seed gives the same requests on every machine.
//!
//! Integers only, so that no platform's floating point can tell the difference. Requests come one by one in order
//! of time; only those that have begun and not ended are held.

use crate::input::time::NS_PER_S;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;

/// When generated traffic begins: 5 January 2026, 08:00 UTC.
pub(crate) const START_NS: u64 = 1_767_600_000 * NS_PER_S;

/// Who sends a request, and in which manner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    /// Many people, a few of them busy and most of them rare: pages, and what belongs to them.
    Reader,
    /// A few programs that are silent but for bursts.
    Job,
    /// One client that tries one path after the other at a steady pace, whatever the answer.
    Scanner,
    /// One network that tries passwords from ever new addresses.
    Guesser,
    /// Apps that try again at once when something fails, all at the same time.
    Storm,
}

impl Actor {
    pub(crate) const ALL: [Self; 5] = [Self::Reader, Self::Job, Self::Scanner, Self::Guesser, Self::Storm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reader => "readers",
            Self::Job => "batch jobs",
            Self::Scanner => "scanner",
            Self::Guesser => "password guesser",
            Self::Storm => "retry storm",
        }
    }
}

const JOBS: u64 = 24;
const JOB_BURST: u64 = 250;
const STORM_APPS: u64 = 200;

/// How much traffic, of whom, over how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) requests: u64,
    pub(crate) readers: u32,
    pub(crate) span_ns: u64,
}

/// What an actor other than the readers does: so many requests, from when to when (in thousandths of the whole).
struct Course {
    actor: Actor,
    /// Of a hundred requests, so many.
    share: u64,
    from: u64,
    to: u64,
}

const COURSES: [Course; 4] = [
    Course { actor: Actor::Job, share: 4, from: 20, to: 980 },
    Course { actor: Actor::Scanner, share: 4, from: 250, to: 650 },
    Course { actor: Actor::Guesser, share: 2, from: 400, to: 900 },
    Course { actor: Actor::Storm, share: 10, from: 700, to: 725 },
];

/// One request. Ordered by time, then by when it was thought of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    pub(crate) at_ns: u64,
    number: u64,
    pub(crate) actor: Actor,
    /// Which of the actor's clients.
    pub(crate) client: u32,
    /// Drawn once, for whatever else there is to choose.
    pub(crate) dice: u32,
}

/// The requests of a plan, in order of time.
pub(crate) struct Traffic {
    plan: Plan,
    random: Random,
    ranks: Zipf,
    pending: BinaryHeap<Reverse<Event>>,
    readers_done: u64,
    readers_total: u64,
    course_done: [u64; COURSES.len()],
    course_total: [u64; COURSES.len()],
    number: u64,
}

impl Traffic {
    pub(crate) fn new(plan: Plan) -> Self {
        let course_total = COURSES.map(|course| plan.requests / 100 * course.share);
        let mut traffic = Self {
            plan,
            random: Random(plan.seed),
            ranks: Zipf::new(plan.readers),
            pending: BinaryHeap::new(),
            readers_done: 0,
            readers_total: plan.requests - course_total.iter().sum::<u64>(),
            course_done: [0; COURSES.len()],
            course_total,
            number: 0,
        };
        for index in 0..COURSES.len() {
            traffic.go_on(index);
        }
        traffic
    }

    /// Thinks of the next request of an actor other than the readers.
    fn go_on(&mut self, index: usize) {
        let (course, done, total) = (&COURSES[index], self.course_done[index], self.course_total[index]);
        if done == total {
            return;
        }
        self.course_done[index] += 1;
        let (from_ns, to_ns) =
            (self.plan.span_ns / 1_000 * course.from, self.plan.span_ns / 1_000 * course.to);
        // Within its share of the time; a real pace trembles.
        let place = |part: u64, of: u64| from_ns + muldiv(to_ns - from_ns, part, of.max(1));
        let (at_ns, client) = match course.actor {
            Actor::Job => {
                let (burst, within) = (done / JOB_BURST, done % JOB_BURST);
                let bursts = total.div_ceil(JOB_BURST);
                // A burst takes three seconds, and never reaches into the next one's.
                let length_ns = (3 * NS_PER_S).min((to_ns - from_ns) / bursts.max(1));
                (place(burst, bursts) + length_ns * within / JOB_BURST, burst % JOBS)
            }
            Actor::Storm => (place(done, total), done % STORM_APPS),
            _ => (place(done, total), 0),
        };
        self.push(at_ns, course.actor, u32::try_from(client).unwrap_or(0));
    }

    /// Thinks of a page view: a page, and some of what belongs to it within the next seconds.
    fn view_page(&mut self) {
        let at_ns = self.next_view_ns();
        let client = self.ranks.draw(&mut self.random);
        let parts = 1 + self.random.below(6);
        for part in 0..parts.min(self.readers_total - self.readers_done) {
            let later_ns = if part == 0 { 0 } else { 50_000_000 + self.random.below(2 * NS_PER_S) };
            self.readers_done += 1;
            self.push((at_ns + later_ns).min(self.plan.span_ns - 1), Actor::Reader, client);
        }
    }

    /// Views are spread evenly over a day that has a busy second half.
    fn next_view_ns(&self) -> u64 {
        let (done, total) = (self.readers_done, self.readers_total.max(1));
        // Two fifths of the views in the first half, three fifths in the second.
        let half = self.plan.span_ns / 2;
        match done * 5 < total * 2 {
            true => muldiv(half, done * 5, total * 2),
            false => half + muldiv(half, done * 5 - total * 2, total * 3),
        }
    }

    fn push(&mut self, at_ns: u64, actor: Actor, client: u32) {
        self.number += 1;
        #[allow(clippy::cast_possible_truncation, reason = "half of a draw is a draw")]
        let dice = self.random.next() as u32;
        let at_ns = START_NS + at_ns;
        self.pending.push(Reverse(Event { at_ns, number: self.number, actor, client, dice }));
    }
}

impl Iterator for Traffic {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        // Everything that comes before the next view is known only when the view is not earlier.
        while self.readers_done < self.readers_total {
            let view_ns = START_NS + self.next_view_ns();
            if self.pending.peek().is_some_and(|first| first.0.at_ns < view_ns) {
                break;
            }
            self.view_page();
        }
        let Reverse(event) = self.pending.pop()?;
        if let Some(index) = COURSES.iter().position(|course| course.actor == event.actor) {
            self.go_on(index);
        }
        Some(event)
    }
}

fn muldiv(number: u64, part: u64, of: u64) -> u64 {
    u64::try_from(u128::from(number) * u128::from(part) / u128::from(of)).unwrap_or(u64::MAX)
}

/// What a log says of a request beside its time.
#[derive(Debug, Default)]
pub(crate) struct Details {
    pub(crate) ip: Vec<u8>,
    pub(crate) user: Vec<u8>,
    pub(crate) path: Vec<u8>,
    pub(crate) method: &'static str,
    pub(crate) status: u16,
    pub(crate) bytes: u32,
}

impl Details {
    /// Tells the details of an event. Addresses are from blocks that are set aside for tests and documentation.
    pub(crate) fn tell(&mut self, event: &Event) {
        let Event { client, dice, .. } = *event;
        self.ip.clear();
        self.user.clear();
        self.path.clear();
        (self.method, self.status, self.bytes) = ("GET", 200, 200 + dice % 40_000);
        let number = dice % 500;
        // Writing to memory does not fail.
        let _ = match event.actor {
            Actor::Reader => {
                let _ = match client % 5 {
                    0 => write!(self.ip, "2001:db8:{:x}:{:x}::1", 1 + (client >> 16), client & 0xffff),
                    _ => {
                        write!(self.ip, "198.{}.{}.{}", 18 + (client >> 16), client >> 8 & 255, client & 255)
                    }
                };
                match dice >> 24 {
                    0..60 => write!(self.path, "/articles/{number}"),
                    60..110 => write!(self.path, "/assets/app.{}.js", number % 7),
                    110..200 => write!(self.path, "/assets/images/{number}.webp"),
                    200..250 => write!(self.path, "/api/items/{number}?page={}", number % 9),
                    250 => {
                        (self.method, self.status) = ("POST", 302);
                        write!(self.path, "/login")
                    }
                    _ => write!(self.path, "/"),
                }
            }
            Actor::Job => {
                self.method = "POST";
                let _ = write!(self.ip, "203.0.113.{}", 10 + client);
                let _ = write!(self.user, "job-{client}");
                write!(self.path, "/api/import")
            }
            Actor::Scanner => {
                self.status = 404;
                let _ = write!(self.ip, "192.0.2.66");
                let names = [
                    ".env",
                    "wp-login.php",
                    "admin",
                    ".git/config",
                    "backup.zip",
                    "phpinfo.php",
                    "cgi-bin/x",
                ];
                write!(self.path, "/{}/{}", number, names[dice as usize % names.len()])
            }
            Actor::Guesser => {
                (self.method, self.status) = ("POST", 401);
                let _ = write!(self.ip, "2001:db8:bad:1::{:x}:{:x}", dice >> 16, dice & 0xffff);
                write!(self.path, "/login")
            }
            Actor::Storm => {
                self.status = 503;
                let _ = write!(self.ip, "198.51.100.{client}");
                let _ = write!(self.user, "app-{client}");
                write!(self.path, "/api/sync")
            }
        };
    }
}

/// Ranks with weights 1/201, 1/202, …: the few that are busy, the many that are not, and nobody alone on top.
struct Zipf {
    /// The sum of the weights up to and with each rank.
    cumulative: Vec<u64>,
}

impl Zipf {
    fn new(ranks: u32) -> Self {
        let weights = (1..=u64::from(ranks)).map(|rank| (1 << 40) / (rank + 200));
        let cumulative = weights.scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { cumulative: cumulative.collect() }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let total = self.cumulative.last().copied().unwrap_or(1);
        let at = random.below(total);
        u32::try_from(self.cumulative.partition_point(|&sum| sum <= at)).unwrap_or(0)
    }
}

/// The `splitmix64` generator: small, even, and good enough for traffic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, by the high half of a product; the bias is below `bound / 2^64`.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_its_published_sequence() {
        let mut random = Random(1_234_567);
        let drawn = [random.next(), random.next(), random.next()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    fn plan(seed: u64) -> Plan {
        Plan { seed, requests: 50_003, readers: 1_000, span_ns: 600 * NS_PER_S }
    }

    #[test]
    fn the_seed_decides_everything() {
        assert!(Traffic::new(plan(7)).eq(Traffic::new(plan(7))));
        assert!(Traffic::new(plan(7)).ne(Traffic::new(plan(8))));
    }

    #[test]
    fn requests_are_as_many_as_planned_ordered_and_in_range() {
        let events: Vec<_> = Traffic::new(plan(0)).collect();
        assert_eq!(events.len(), 50_003);
        assert!(events.is_sorted());
        let end_ns = START_NS + plan(0).span_ns;
        assert!(events.iter().all(|event| (START_NS..end_ns).contains(&event.at_ns)));
        for course in &COURSES {
            let count = events.iter().filter(|event| event.actor == course.actor).count();
            assert_eq!(count as u64, 500 * course.share, "{:?}", course.actor);
        }
    }

    #[test]
    fn nothing_is_too_few() {
        for requests in [1, 2, 99, 100, 101] {
            let few = Plan { requests, readers: 1, ..plan(1) };
            assert_eq!(Traffic::new(few).count() as u64, requests);
        }
    }

    #[test]
    fn the_first_ranks_are_the_busiest() {
        let mut counts = [0_u32; 1_000];
        let readers = Traffic::new(plan(3)).filter(|event| event.actor == Actor::Reader);
        readers.for_each(|event| counts[event.client as usize] += 1);
        assert!(counts[..100].iter().sum::<u32>() > 2 * counts[900..].iter().sum::<u32>());
    }

    #[test]
    fn every_reader_has_an_address_of_its_own() {
        let mut details = Details::default();
        let mut seen = std::collections::HashSet::new();
        for client in 0..100_000 {
            details.tell(&Event { at_ns: 0, number: 0, actor: Actor::Reader, client, dice: 0 });
            let ip = String::from_utf8_lossy(&details.ip).into_owned();
            assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{ip}");
            assert!(seen.insert(ip));
        }
    }
}
