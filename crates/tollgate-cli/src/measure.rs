//! What one decision costs, with the clock read alone beside it.

use std::hint::black_box;
use std::time::Instant;
use tollgate::{Clock, Error, Gate, Limiter};

pub(crate) const ROUNDS: usize = 21;
pub(crate) const CALLS: u32 = 50_000;
const KEYS: u32 = 1_000;
/// Never runs dry here, and is spent by the first call.
const OPEN: &str = "1_000_000_000/s";
const SHUT: &str = "1/d";

/// Nanoseconds a call, the median of all rounds.
pub(crate) struct Costs {
    pub(crate) clock_ns: f64,
    pub(crate) gate_admit_ns: f64,
    pub(crate) gate_refuse_ns: f64,
    pub(crate) key_admit_ns: f64,
    pub(crate) key_refuse_ns: f64,
}

/// Measures on this thread, with the precise clock. The cases take turns, so that whatever else the machine
/// does falls on all of them alike.
pub(crate) fn costs() -> Result<Costs, Error> {
    let clock = Clock::precise();
    let (open_gate, shut_gate) = (Gate::new(OPEN)?, Gate::new(SHUT)?);
    let (open_keys, shut_keys) = (Limiter::new(OPEN)?, Limiter::new(SHUT)?);

    let mut rounds = [const { Vec::new() }; 5];
    // The first round only warms up.
    for round in 0..=ROUNDS {
        let ns = [
            ns_a_call(|_| clock.now_ns()),
            ns_a_call(|_| open_gate.try_acquire().is_allowed()),
            ns_a_call(|_| shut_gate.try_acquire().is_allowed()),
            ns_a_call(|call| open_keys.try_acquire(&(call % KEYS)).is_allowed()),
            ns_a_call(|call| shut_keys.try_acquire(&(call % KEYS)).is_allowed()),
        ];
        if round > 0 {
            rounds.iter_mut().zip(ns).for_each(|(samples, ns)| samples.push(ns));
        }
    }
    let [clock_ns, gate_admit_ns, gate_refuse_ns, key_admit_ns, key_refuse_ns] = rounds.map(median);
    Ok(Costs { clock_ns, gate_admit_ns, gate_refuse_ns, key_admit_ns, key_refuse_ns })
}

fn ns_a_call<T>(call: impl Fn(u32) -> T) -> f64 {
    let start = Instant::now();
    for number in 0..CALLS {
        black_box(call(number));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_an_outlier() {
        assert!((median(vec![3.0, 900.0, 1.0]) - 3.0).abs() < f64::EPSILON);
    }
}
