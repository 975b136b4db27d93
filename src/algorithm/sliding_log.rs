//! The exact sliding log: never more than `limit` in any trailing window.
//!
//! A log of the last `limit` admissions is the same thing as `limit` tokens, each of which rests for a
//! window after use. So the state is a row of words, each the moment its token is rested again, and taking
//! a token is one compare-exchange: the bound holds under any interleaving because there are only `limit`
//! tokens to take. This file has the arithmetic; `charge` does the taking.

use super::{Gcra, Step, Summary};
use crate::error::Error;

/// The largest log: one word a request in the window, all read at each decision.
pub(crate) const LOG_LIMIT_MAX: u64 = 1024;
const LOG_WORDS_MAX: usize = 1024;
const LOG_WORDS_KEPT_MIN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    /// One token: a bucket of one that takes a window to come back.
    pub(crate) token: Gcra,
}

impl SlidingLog {
    pub(crate) fn new(limit: u64, window_ns: u64) -> Result<Self, Error> {
        if limit > LOG_LIMIT_MAX {
            return Err(Error::new(format!(
                "the limit is too large for an exact log, which keeps a word for each request in its window: \
                 at most {LOG_LIMIT_MAX}; use a sliding window or a token bucket"
            )));
        }
        Ok(Self { limit, token: Gcra::new(1, window_ns, 1)? })
    }

    pub(crate) fn words(self) -> usize {
        usize::try_from(self.limit).unwrap_or(LOG_WORDS_MAX)
    }

    /// How many words are kept apart for the log, so that a larger one may go on with them.
    pub(crate) fn words_kept(self) -> usize {
        (self.words() * 4).clamp(LOG_WORDS_KEPT_MIN, LOG_WORDS_MAX)
    }

    /// Reads a row of tokens: how many are rested, when `cost` of them will be, when all will be.
    pub(crate) fn look(self, words: impl Iterator<Item = u64> + Clone, now_ns: u64, cost: u64) -> Summary {
        let (mut rested, mut first_ns, mut reset_ns) = (0, u64::MAX, 0);
        for word in words.clone() {
            let rest_ns = self.token.reset_ns(word, now_ns);
            if rest_ns == 0 {
                rested += 1;
            } else {
                first_ns = first_ns.min(rest_ns);
                reset_ns = reset_ns.max(rest_ns);
            }
        }
        let wait_ns = match cost.saturating_sub(rested) {
            0 => 0,
            1 => first_ns,
            _ => self.nth_rested_ns(words, now_ns, cost),
        };
        Summary { limit: self.limit, remaining: rested, wait_ns, reset_ns }
    }

    /// When `cost` tokens will be rested: the general case, which has to sort the row out.
    #[cold]
    fn nth_rested_ns(self, words: impl Iterator<Item = u64>, now_ns: u64, cost: u64) -> u64 {
        let mut rest_ns = [0; LOG_WORDS_MAX];
        let mut seen = 0;
        for (place, word) in rest_ns.iter_mut().zip(words) {
            *place = self.token.reset_ns(word, now_ns);
            seen += 1;
        }
        let nth = usize::try_from(cost - 1).unwrap_or(LOG_WORDS_MAX).min(seen - 1);
        *rest_ns[..seen].select_nth_unstable(nth).1
    }
}
