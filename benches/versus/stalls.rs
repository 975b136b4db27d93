//! The longest call: while a limiter fills, when it is full, and while another thread cleans it up.
//!
//! Calls are timed one by one. What the machine does by itself (an interrupt, another program) is in all figures;
//! "nothing at all" shows how much that is, and the median of rounds is less of it than the worst.

use crate::peers::{self, Contender, Peer, Setup, Traffic};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate::Clock;
use tollgate_bench::{Rounds, Scale, interleaved, key, on_cores, progress};

/// What the rounds of one limiter came to, in nanoseconds.
pub struct Stalls {
    pub name: String,
    pub is_ours: bool,
    /// The longest call of each round.
    pub longest: Rounds,
    /// How long the clean-up took; none where there is nothing to call.
    pub cleaning: Option<Rounds>,
}

/// Times calls one by one, and gives the longest.
struct Stopwatch(Clock);

impl Stopwatch {
    fn longest_ns(&self, contender: &dyn Contender<u64>, keys: impl Iterator<Item = u64>) -> u64 {
        let call = |key| {
            let start_ns = self.0.now_ns();
            contender.decide(&[key]);
            // Counters of two cores may differ.
            self.0.now_ns().saturating_sub(start_ns)
        };
        keys.map(call).max().unwrap_or(0)
    }
}

fn peers() -> Vec<Peer<u64>> {
    let mut peers: Vec<_> = peers::keyed().into_iter().filter(|peer| !peer.is_variant).collect();
    peers.push(peers::nothing());
    peers
}

/// From empty to all keys; and ours once more with twice the keys it has room for.
pub fn growing(scale: Scale) -> Vec<Stalls> {
    let keys: u64 = scale.pick(1_000, 1_000_000, 1_000_000);
    // Whoever does nothing does it for about as long as the others take: a machine disturbs by the second, not by the
    // call.
    let calls = |peer: &Peer<u64>| if peer.name == peers::NOTHING { keys * 20 } else { keys };
    let with_calls = |peer: Peer<u64>| (peer.name.to_owned(), calls(&peer), peer);
    let mut entries: Vec<_> = peers().into_iter().map(with_calls).collect();
    let ours = peers().into_iter().filter(Peer::is_ours);
    entries.extend(ours.map(|peer| (format!("{}, twice the keys it is for", peer.name), keys * 2, peer)));
    let stopwatch = Stopwatch(Clock::precise());
    let results = interleaved(entries.len(), scale.pick(1, 2, 9), |index, round| {
        let (name, seen, peer) = &entries[index];
        progress(&format!("growing, round {}: {name}", round + 1));
        let contender = (peer.build)(Setup::new(Traffic::Refuse, keys as usize));
        let longest = on_cores(&[0], |_| stopwatch.longest_ns(&*contender, (0..*seen).map(key)));
        longest[0] as f64
    });
    let named = entries.into_iter().zip(results).map(|((name, _, peer), longest)| {
        let is_ours = peer.is_ours();
        Stalls { name, is_ours, longest, cleaning: None }
    });
    named.collect()
}

/// One thread cleans up keys that have all come to nothing, another goes on asking for some of them.
pub fn cleaning(scale: Scale) -> Vec<Stalls> {
    let keys: u64 = scale.pick(1_000, 1_000_000, 5_000_000);
    let peers = peers();
    let stopwatch = Stopwatch(Clock::precise());
    let mut cleaned = vec![Rounds::default(); peers.len()];
    let results = interleaved(peers.len(), scale.pick(1, 1, 5), |index, round| {
        progress(&format!("cleaning, round {}: {}", round + 1, peers[index].name));
        let idle = Duration::from_millis(scale.pick(10, 3_000, 30_000));
        let setup = Setup { idle, ..Setup::new(Traffic::Admit, keys as usize) };
        let contender = (peers[index].build)(setup);
        for rank in 0..keys {
            contender.decide(&[key(rank)]);
        }
        if peers[index].goes_by_idle_time {
            std::thread::sleep(idle + idle / 10);
        }
        let over = AtomicBool::new(false);
        let times_ns = on_cores(&[0, 1], |thread| {
            if thread == 0 {
                let some = (0..1_000.min(keys)).map(key).cycle();
                // Relaxed: the only thing that is told.
                return stopwatch.longest_ns(&*contender, some.take_while(|_| !over.load(Ordering::Relaxed)));
            }
            let start_ns = stopwatch.0.now_ns();
            let has_call = contender.clean();
            if !has_call {
                // As long as some take.
                std::thread::sleep(Duration::from_millis(scale.pick(1, 50, 50)));
            }
            let took_ns = stopwatch.0.now_ns().saturating_sub(start_ns);
            // Relaxed: as above.
            over.store(true, Ordering::Relaxed);
            if has_call { took_ns } else { 0 }
        });
        if times_ns[1] > 0 {
            cleaned[index].0.push(times_ns[1] as f64);
        }
        times_ns[0] as f64
    });
    let named = peers.into_iter().zip(results).zip(cleaned).map(|((peer, longest), cleaning)| Stalls {
        name: peer.name.to_owned(),
        is_ours: peer.is_ours(),
        longest,
        cleaning: (!cleaning.0.is_empty()).then_some(cleaning),
    });
    named.collect()
}
