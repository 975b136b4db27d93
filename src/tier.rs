//! One of several policies over the same keys.

use crate::charge::{self, Seat};
#[cfg(feature = "tower")]
use crate::compile::Compiled;
use crate::decision::{Decision, Denied};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::policy::Policy;
use std::fmt;
use std::hash::Hash;

/// A limiter under the policy of one of its [tiers](crate::LimiterBuilder::tier), chosen at the call.
///
/// All tiers share one table and one state a key. A key that is asked for under another tier keeps what it has
/// spent where the two have rules that [go on with each other](Limiter::set_policy): of the same algorithm and
/// period, or token buckets. Counts stay what they are; a token bucket keeps the time until the key is fresh
/// again. Rules that only one of the tiers has count by themselves.
///
/// A tier decides at once. [Booking](Limiter::reserve) and waiting go by the limiter's own policy: under another
/// one the moments of those who wait for the same key would not be in the order in which they came.
///
/// ```
/// use tollgate::Limiter;
///
/// let limiter = Limiter::builder().policy("10/min").tier("premium", "1000/min").build()?;
/// let premium = limiter.tier("premium").ok_or("no such tier")?;
/// assert_eq!(limiter.try_acquire_n("alice", 10).remaining(), 0);
/// assert!(premium.try_acquire_n("bob", 500).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Tier<'a> {
    limiter: &'a Limiter,
    index: usize,
}

impl<'a> Tier<'a> {
    pub(crate) fn new(limiter: &'a Limiter, index: usize) -> Self {
        Self { limiter, index }
    }

    /// As [`Limiter::try_acquire`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// assert_eq!(premium.try_acquire("bob").remaining(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_acquire<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.try_acquire_n(key, 1)
    }

    /// As [`Limiter::try_acquire_n`].
    pub fn try_acquire_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        let cells = self.limiter.cells(key);
        cells.prefetch();
        self.limiter.decide(self.index, &cells, self.limiter.clock.now_ns(), cost, Seat::Ask).0
    }

    /// As [`Limiter::try_start`].
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().policy("1 at once").tier("premium", "2 at once").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// let (first, second) = (premium.try_start("bob")?, premium.try_start("bob")?);
    /// assert!(premium.try_start("bob").is_err());
    /// # drop((first, second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Denied`] unless it may begin.
    pub fn try_start<K: Hash + ?Sized>(&self, key: &K) -> Result<Permit<'a>, Denied> {
        let cells = self.limiter.cells(key);
        let (decision, place) =
            self.limiter.decide(self.index, &cells, self.limiter.clock.now_ns(), 1, Seat::Take);
        decision.into_result().map(|decision| Permit::new(self.limiter.into(), cells.hash(), place, decision))
    }

    /// As [`Limiter::peek`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// assert_eq!((limiter.peek("bob").remaining(), premium.peek("bob").remaining()), (1, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek<K: Hash + ?Sized>(&self, key: &K) -> Decision {
        self.peek_n(key, 1)
    }

    /// As [`Limiter::peek_n`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// assert!(premium.peek_n("bob", 5).is_allowed() && limiter.peek_n("bob", 5).is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek_n<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        self.limiter.look(self.index, &self.limiter.cells(key), cost)
    }

    /// As [`Limiter::refund`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// assert!(premium.try_acquire_n("bob", 5).is_allowed());
    /// premium.refund("bob", 2);
    /// assert_eq!(premium.peek("bob").remaining(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        charge::refund(self.limiter.compiled(self.index), &self.limiter.cells(key), cost);
    }

    #[cfg(feature = "tower")]
    pub(crate) fn compiled(&self) -> &'a Compiled {
        self.limiter.compiled(self.index)
    }

    /// As [`Limiter::reset`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// assert!(premium.try_acquire_n("bob", 5).is_allowed());
    /// premium.reset("bob");
    /// assert_eq!(premium.peek("bob").remaining(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        let cells = self.limiter.cells(key);
        self.limiter.forget(self.index, &cells, cells.hash());
    }

    /// As [`Limiter::set_policy`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// let premium = limiter.tier("premium").ok_or("no such tier")?;
    /// premium.set_policy("9/h")?;
    /// assert_eq!(premium.peek("bob").remaining(), 9);
    /// assert_eq!(limiter.peek("alice").remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As there.
    pub fn set_policy<P>(&self, policy: P) -> Result<(), Error>
    where
        P: TryInto<Policy>,
        P::Error: Into<Error>,
    {
        self.limiter.change_policy(self.index, &policy.try_into().map_err(Into::into)?)
    }

    /// As [`Limiter::put_policy`].
    #[cfg(feature = "tower")]
    pub(crate) fn put_policy(&self, policy: &Policy) -> Result<(), Error> {
        self.limiter.put_policy(self.index, policy)
    }

    /// The policy in force.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// assert_eq!(limiter.tier("premium").ok_or("no such tier")?.policy().to_string(), "5/h");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn policy(&self) -> &'a Policy {
        &self.limiter.policies.current().tiers[self.index].policy
    }

    /// The tier's name.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().policy("1/h").tier("premium", "5/h").build()?;
    /// assert_eq!(limiter.tier("premium").ok_or("no such tier")?.name(), "premium");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.limiter.policies.first().tiers[self.index].name.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Tier<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("name", &self.name())
            .field("policy", &format_args!("{}", self.policy()))
            .finish()
    }
}
