//! tollgate: with its default clock, with the coarse clock, in batches.

use super::{Contender, Key, Peer, Setup, Traffic, contender};
use tollgate::{Clock, Gate, Limiter, Rule};
use tollgate_bench::limiters::{coarse, empty, generous, strict};

fn rule(traffic: Traffic) -> Rule {
    match traffic {
        Traffic::Admit => generous(),
        Traffic::Refuse => strict(),
    }
}

fn limiter(setup: Setup, clock: Clock) -> Limiter {
    empty(rule(setup.traffic), setup.keys as u64, clock)
}

fn one_by_one<K: Key>(setup: Setup, clock: Clock) -> Box<dyn Contender<K>> {
    contender(limiter(setup, clock), |limiter, key: &K| limiter.try_acquire(key).is_allowed(), None)
}

struct Batched(Limiter);

impl<K: Key> Contender<K> for Batched {
    fn decide(&self, keys: &[K]) -> usize {
        let mut decisions = [self.0.peek(&0); 16];
        let batch = |keys: &[K]| {
            let decided = self.0.try_acquire_many(keys, &mut decisions);
            decisions[..decided].iter().filter(|decision| decision.is_allowed()).count()
        };
        keys.chunks(16).map(batch).sum()
    }

    fn clean(&self) -> bool {
        false
    }
}

const NAME: &str = "tollgate";

pub(super) fn keyed<K: Key>() -> Vec<Peer<K>> {
    vec![
        Peer::new(NAME, NAME, |setup| one_by_one(setup, Clock::precise())),
        Peer::new("tollgate, coarse clock", NAME, |setup| one_by_one(setup, coarse()))
            .note("time is read by one thread, every 500 µs")
            .variant(),
        Peer::new("tollgate, batch of 16", NAME, |setup| Box::new(Batched(limiter(setup, Clock::precise()))))
            .note("`try_acquire_many`")
            .variant(),
    ]
}

pub(super) fn unkeyed() -> Vec<Peer<()>> {
    fn gate(setup: Setup, clock: Clock) -> Box<dyn Contender<()>> {
        let gate = Gate::with_clock(rule(setup.traffic), clock).expect("a gate");
        contender(gate, |gate, ()| gate.try_acquire().is_allowed(), None)
    }
    vec![
        Peer::new(NAME, NAME, |setup| gate(setup, Clock::precise())).note("`Gate`"),
        Peer::new("tollgate, coarse clock", NAME, |setup| gate(setup, coarse())).note("`Gate`").variant(),
        Peer::new("the clock alone", "", |setup| {
            let clock = Clock::precise();
            contender(
                (clock, setup.traffic),
                |(clock, traffic), ()| std::hint::black_box(clock.now_ns()) > 0 && *traffic == Traffic::Admit,
                None,
            )
        })
        .note("no limiter: reads tollgate's precise clock"),
    ]
}
