//! So many at once: the word counts what has begun and not ended.

use super::{Charge, Headroom, PAYLOAD_MASK, Seen, Step};
use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct InFlight {
    pub(crate) limit: u64,
}

impl InFlight {
    pub(crate) fn new(limit: u64) -> Result<Self, Error> {
        if limit > PAYLOAD_MASK {
            return Err(Error::new(format!(
                "the limit is too large for the word, which counts to {PAYLOAD_MASK}"
            )));
        }
        Ok(Self { limit })
    }

    pub(crate) fn seen(self, word: u64) -> InFlightSeen {
        InFlightSeen { limit: self.limit, count: word }
    }
}

impl Step for InFlight {
    fn fresh(self, _now_ns: u64) -> u64 {
        0
    }

    fn admit(self, word: u64, _now_ns: u64, cost: u64) -> Option<u64> {
        let count = word.checked_add(cost)?;
        (count <= self.limit).then_some(count)
    }

    fn refund(self, word: u64, _now_ns: u64, cost: u64) -> u64 {
        word.saturating_sub(cost)
    }

    fn hand_back(self, word: u64, _now_ns: u64, cost: u64, _charge: Charge) -> u64 {
        word.saturating_sub(cost)
    }

    fn is_doubtful(self, _word: u64, _now_ns: u64) -> bool {
        false
    }

    fn see(self, word: u64, _now_ns: u64) -> impl Seen {
        self.seen(word)
    }
}

/// How much has begun and not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlightSeen {
    limit: u64,
    count: u64,
}

impl Seen for InFlightSeen {
    fn limit(&self) -> u64 {
        self.limit
    }

    /// Nobody knows when the work will end.
    fn wait_ns(&self, cost: u64) -> u64 {
        let fits = self.count.checked_add(cost).is_some_and(|count| count <= self.limit);
        if fits { 0 } else { u64::MAX }
    }

    fn reset_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { u64::MAX }
    }

    fn headroom(&self) -> Headroom {
        Headroom::whole(self.limit.saturating_sub(self.count))
    }
}
