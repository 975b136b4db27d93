//! One budget a client: the only file that knows how clients are told apart.

use tollgate::{Clock, Decision, Error, Gate, Policy};

/// Every client under the same policy, each with a gate of its own.
pub(crate) struct Clients {
    gates: Vec<Gate>,
}

impl Clients {
    pub(crate) fn new(policy: &Policy, clients: usize, clock: &Clock) -> Result<Self, Error> {
        let gate = |_| Gate::with_clock(policy.clone(), clock.clone());
        Ok(Self { gates: (0..clients).map(gate).collect::<Result<_, _>>()? })
    }

    pub(crate) fn try_acquire_n(&self, client: usize, cost: u64) -> Decision {
        self.gates[client].try_acquire_n(cost)
    }
}
