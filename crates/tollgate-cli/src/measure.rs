//! What one decision costs, with the clock read alone beside it.

use std::hint::black_box;
use std::time::Instant;
use tollgate::{Error, Gate};

pub(crate) const ROUNDS: usize = 21;
pub(crate) const CALLS: u32 = 50_000;

/// Nanoseconds a call, the median of all rounds.
pub(crate) struct Costs {
    pub(crate) clock_ns: f64,
    pub(crate) admit_ns: f64,
    pub(crate) refuse_ns: f64,
}

/// Measures on this thread, with the precise clock. The cases take turns, so that whatever else the machine
/// does falls on all of them alike.
pub(crate) fn costs() -> Result<Costs, Error> {
    let clock = quanta::Clock::new();
    let anchor = clock.raw();
    // A billion a second never runs dry here; one a day is spent by the first call.
    let open = Gate::new("1_000_000_000/s")?;
    let shut = Gate::new("1/d")?;
    let _ = shut.try_acquire();

    let mut rounds = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        rounds[0].push(ns_a_call(|| clock.delta_as_nanos(anchor, clock.raw())));
        rounds[1].push(ns_a_call(|| open.try_acquire().is_allowed()));
        rounds[2].push(ns_a_call(|| shut.try_acquire().is_allowed()));
    }
    let [clock_ns, admit_ns, refuse_ns] = rounds.map(median);
    Ok(Costs { clock_ns, admit_ns, refuse_ns })
}

fn ns_a_call<T>(mut call: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        black_box(call());
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
