//! Throughput against cores, from costs that one or two cores can measure. `docs/scaling.md` explains it.

/// What a decision costs on a machine, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Handing a cache line that one core has written to another that writes it.
    pub transfer_ns: f64,
    /// The part of an admission that needs the line to itself: a load and a compare-exchange.
    pub line_ns: f64,
    /// An admission where nobody else writes the line, all of it.
    pub admit_ns: f64,
    /// A refusal.
    pub refuse_ns: f64,
    /// An admission in a table that no cache holds.
    pub far_admit_ns: f64,
    /// A decision that a lease answers from what it has in hand.
    pub lease_ns: f64,
}

/// What the cores do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// All admit on one key.
    HotAdmit,
    /// All are refused on one key.
    HotRefuse,
    /// All admit on keys drawn evenly from these, which the caches hold.
    Near(f64),
    /// All admit on more keys than the caches hold.
    Far,
    /// All admit on one key, by leases of so many.
    Lease(f64),
}

impl Costs {
    /// Decisions in a microsecond that `cores` make together.
    pub fn throughput(&self, work: Work, cores: usize) -> f64 {
        let elsewhere_ns = self.admit_ns - self.line_ns;
        1e3 * match work {
            Work::HotAdmit => self.on_lines(cores, 1.0, elsewhere_ns),
            Work::Near(keys) => self.on_lines(cores, keys, elsewhere_ns),
            Work::Lease(batch) => batch * self.on_lines(cores, 1.0, elsewhere_ns + batch * self.lease_ns),
            // Nothing is written, or nothing is in another core's cache: each core is as fast as if alone.
            Work::HotRefuse => cores as f64 / self.refuse_ns,
            Work::Far => cores as f64 / self.far_admit_ns,
        }
    }

    /// Visits in a nanosecond of `cores` that spend `elsewhere_ns` away from the lines between two of them.
    ///
    /// Lines are queues: a visitor waits for those it finds there. What it finds is what would be there without
    /// it, so the answer for one core more follows from the last (mean value analysis of a closed network).
    fn on_lines(&self, cores: usize, lines: f64, elsewhere_ns: f64) -> f64 {
        let (mut queued, mut rate) = (0.0f64, 0.0);
        for visitors in 1..=cores {
            // Who has to wait gets the line from another core. Else the last to have written it is any of them, and
            // it has to be fetched unless that was this one.
            let is_busy = (queued / lines).min(1.0);
            let is_fetched = 1.0 - (1.0 - is_busy) / cores as f64;
            let service_ns = self.line_ns + self.transfer_ns * is_fetched;
            let at_lines_ns = service_ns * (1.0 + queued / lines);
            rate = visitors as f64 / (elsewhere_ns + at_lines_ns);
            queued = rate * at_lines_ns;
        }
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        transfer_ns: 80.0,
        line_ns: 5.0,
        admit_ns: 20.0,
        refuse_ns: 10.0,
        far_admit_ns: 100.0,
        lease_ns: 10.0,
    };

    fn close(left: f64, right: f64) {
        assert!((left / right - 1.0).abs() < 0.03, "{left} is not {right}");
    }

    #[test]
    fn one_core_costs_what_was_measured() {
        close(COSTS.throughput(Work::HotAdmit, 1), 1e3 / 20.0);
        close(COSTS.throughput(Work::Near(1000.0), 1), 1e3 / 20.0);
        close(COSTS.throughput(Work::HotRefuse, 1), 1e3 / 10.0);
        close(COSTS.throughput(Work::Far, 1), 1e3 / 100.0);
        close(COSTS.throughput(Work::Lease(64.0), 1), 64e3 / (20.0 + 640.0));
    }

    #[test]
    fn many_cores_meet_their_bound() {
        // One line serves one visitor at a time.
        close(COSTS.throughput(Work::HotAdmit, 256), 1e3 / 85.0);
        close(COSTS.throughput(Work::Lease(64.0), 1024), 64e3 / 85.0);
        // Many lines hardly make anybody wait, only fetch.
        close(COSTS.throughput(Work::Near(1e6), 64), 64e3 / (20.0 + 80.0));
        close(COSTS.throughput(Work::HotRefuse, 64), 6400.0);
    }
}
