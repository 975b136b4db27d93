//! Tokens in hand: for a key that many cores ask for at once.

use crate::algorithm::{Charge, View};
use crate::charge::{self, Since};
use crate::compile::Bucket;
use crate::decision::{Decision, Outcome};
use crate::limiter::Limiter;
use crate::policies::Era;
use crate::sync::{Fault, Ordering, is_broken};
use std::fmt;

/// How long tokens in hand are good for. The same for all leases: the time they may be held counts as not yet
/// passed for all of them at once, and would be cut short for one if it were not.
const HOLD_NS: u64 = 1_000_000;

/// Tokens of one key, taken a batch at a time and spent without touching what other threads touch.
///
/// A hot key is one word that all cores write in turn, and a core waits for the others each time. A lease takes
/// `batch` tokens at once and spends them by itself. The bound is kept as if every token were spent at the
/// last moment it is good for, a millisecond after it was taken: what is in hand counts as spent, and the time it
/// may still be in hand counts as not yet passed. So a lease never lets more through than the rule, but a little
/// less: of the burst as much is out of use as comes back in a millisecond. What is left in hand after that goes
/// back when the lease is asked again, or when it is dropped, as far as it has not come back by itself: of a batch
/// that the rule gives back within that millisecond nothing is left to return, also where the key owes more. What a
/// change of policy has cut down does not go back, nor what was taken before a [reset](Limiter::reset), which forgets
/// it but does not take back what is in hand. (Resets are counted for a 64th of the keys together: another key's may
/// forfeit what is left, too.)
///
/// This pays for a policy of one token bucket whose burst is several batches. Under any other policy, and
/// where no batch fits, every request is decided as by [`Limiter::try_acquire`]. Lists and lockouts are asked
/// when a batch is taken.
///
/// ```
/// let limiter = tollgate::Limiter::new("1000000/s burst 10000")?;
/// let mut lease = limiter.lease("everybody", 100);
/// let admitted = (0..250).filter(|_| lease.try_acquire().is_allowed()).count();
/// assert_eq!(admitted, 250);
/// assert_eq!(lease.in_hand(), 50);
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct Lease<'a> {
    limiter: &'a Limiter,
    hash: u64,
    batch: u64,
    hold_ns: u64,
    left: u64,
    /// When what is left stops being good.
    end_ns: u64,
    taken: Option<Taken>,
}

/// What was taken, and what the key's word has to be compared with when some of it goes back.
struct Taken {
    bucket: Bucket,
    charge: Charge,
    era: Era,
    /// How often the key, or others that are counted with it, had been reset.
    forgets: u64,
}

impl<'a> Lease<'a> {
    pub(crate) fn new(limiter: &'a Limiter, hash: u64, batch: u64) -> Self {
        Self { limiter, hash, batch: batch.max(1), hold_ns: HOLD_NS, left: 0, end_ns: 0, taken: None }
    }

    /// Tokens that are good for another time. Not part of the interface: all leases of a key have to agree.
    #[doc(hidden)]
    #[must_use]
    pub fn hold(mut self, time: std::time::Duration) -> Self {
        self.hold_ns = crate::guard::whole_ns(time);
        self
    }

    /// Takes one: from what is in hand, else from a new batch.
    ///
    /// What the decision says to remain is what was left for everybody when the batch was taken; what is
    /// [in hand](Self::in_hand) comes on top.
    ///
    /// ```
    /// let (clock, hand) = tollgate::Clock::manual();
    /// let limiter = tollgate::Limiter::builder().policy("100/s").clock(clock).build()?;
    /// let mut lease = limiter.lease("everybody", 40);
    /// assert!(lease.try_acquire().is_allowed());
    /// // 100 - 40, less what comes back in a millisecond.
    /// assert_eq!((lease.try_acquire().remaining(), lease.in_hand()), (59, 38));
    /// drop(lease);
    /// hand.advance(std::time::Duration::from_millis(1));
    /// assert_eq!(limiter.peek("everybody").remaining(), 98);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    pub fn try_acquire(&mut self) -> Decision {
        let now_ns = self.limiter.clock.now_ns();
        if let (Some(Taken { bucket, charge, .. }), 1..) = (&self.taken, self.left) {
            if now_ns < self.end_ns || is_broken(Fault::LeaseForEver) {
                self.left -= 1;
                return leased(bucket, charge, now_ns);
            }
        }
        self.renew(now_ns)
    }

    /// How many are in hand.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1000/s")?;
    /// let mut lease = limiter.lease("everybody", 100);
    /// assert_eq!(lease.in_hand(), 0);
    /// assert!(lease.try_acquire().is_allowed());
    /// assert_eq!(lease.in_hand(), 99);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn in_hand(&self) -> u64 {
        self.left
    }

    #[cold]
    fn renew(&mut self, now_ns: u64) -> Decision {
        self.give_back();
        let cells = self.limiter.cells_of(self.hash);
        // Acquire: read before the word is, and told before that is reset.
        let forgets = self.limiter.forgets_of(self.hash).load(Ordering::Acquire);
        let (set, era) = self.limiter.policies.current_era();
        let compiled = &set.tiers[0].compiled;
        // A batch is not what shadow rules have to count.
        let is_alone = compiled.rules.len() == 1;
        let bucket = compiled.only_bucket.filter(|bucket| is_alone && self.batch <= bucket.plan.burst);
        if let (Some(bucket), None) = (bucket, self.limiter.above_rules(&cells, now_ns, 1)) {
            let hold_ns = if is_broken(Fault::LeaseForEver) { 0 } else { self.hold_ns };
            if let Some(charge) = charge::spend_within(&bucket, &cells, now_ns, self.batch, hold_ns) {
                self.left = self.batch - 1;
                self.end_ns = charge.at_ns.saturating_add(self.hold_ns);
                let decision = leased(&bucket, &charge, now_ns);
                self.taken = Some(Taken { bucket, charge, era, forgets });
                return decision;
            }
        }
        self.limiter.spend(&cells, 1)
    }

    fn give_back(&mut self) {
        let Some(Taken { bucket, charge, era, forgets }) = self.taken.take() else { return };
        let left = std::mem::take(&mut self.left);
        if let Some(counts) = &self.limiter.watch.counts {
            counts.count_leased(self.batch - left);
        }
        if left > 0 {
            let limiter = self.limiter;
            let since = || {
                if is_broken(Fault::IgnoresEra) {
                    return Since::Same;
                }
                // Acquire: as when it was taken.
                if limiter.forgets_of(self.hash).load(Ordering::Acquire) != forgets {
                    return Since::Forgotten;
                }
                if limiter.policies.era() == era { Since::Same } else { Since::Other }
            };
            charge::give_back(&bucket, &limiter.cells_of(self.hash), left, self.batch, charge, since);
        }
    }
}

/// The decision on one of a batch: of the word as the batch left it.
#[inline]
fn leased(bucket: &Bucket, charge: &Charge, now_ns: u64) -> Decision {
    let debt = bucket.plan.debt(charge.word, now_ns);
    Decision::new(Outcome::Allowed, 0, bucket.name, View::Bucket(debt), now_ns, 1)
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Lease<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("batch", &self.batch)
            .field("in_hand", &self.left)
            .finish_non_exhaustive()
    }
}
