//! Counts over time in a fixed number of buckets, whatever the time: when it runs out of buckets, two become one.

use crate::input::time::NS_PER_S;

/// Buckets of the whole, and of each client (so many of the whole's are one of a client's).
pub(crate) const BUCKETS: usize = 128;
pub(crate) const CLIENT_BUCKETS: usize = 32;
const PER_CLIENT_BUCKET: usize = BUCKETS / CLIENT_BUCKETS;

/// Which bucket a moment falls into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) origin_ns: u64,
    pub(crate) width_ns: u64,
}

impl Scale {
    pub(crate) fn new(first_ns: u64) -> Self {
        Self { origin_ns: first_ns - first_ns % NS_PER_S, width_ns: NS_PER_S }
    }

    /// The bucket, if the moment is not beyond the last.
    pub(crate) fn bucket(&self, at_ns: u64) -> Option<usize> {
        let bucket = at_ns.saturating_sub(self.origin_ns) / self.width_ns;
        usize::try_from(bucket).ok().filter(|&bucket| bucket < BUCKETS)
    }

    pub(crate) fn client_bucket(bucket: usize) -> usize {
        bucket / PER_CLIENT_BUCKET
    }

    pub(crate) fn double(&mut self) {
        self.width_ns *= 2;
    }
}

/// Makes one bucket of each two, where a bucket is `lanes` counts.
pub(crate) fn fold<T: Copy + Default + std::ops::AddAssign>(counts: &mut [T], lanes: usize) {
    let buckets = counts.len() / lanes;
    for bucket in 0..buckets {
        for lane in 0..lanes {
            let mut sum = T::default();
            for from in [2 * bucket, 2 * bucket + 1] {
                if from < buckets {
                    sum += counts[from * lanes + lane];
                }
            }
            counts[bucket * lanes + lane] = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_keeps_every_count() {
        let mut counts = [1, 10, 2, 20, 3, 30, 4, 40];
        fold(&mut counts, 2);
        assert_eq!(counts, [3, 30, 7, 70, 0, 0, 0, 0]);
    }

    #[test]
    fn a_moment_is_in_the_same_place_after_doubling() {
        let mut scale = Scale::new(7 * NS_PER_S + 5);
        for at_s in 7..7 + BUCKETS as u64 {
            let before = scale.bucket(at_s * NS_PER_S).expect("within");
            let mut doubled = scale;
            doubled.double();
            assert_eq!(doubled.bucket(at_s * NS_PER_S), Some(before / 2));
        }
        assert_eq!(scale.bucket((7 + BUCKETS as u64) * NS_PER_S), None);
        scale.double();
        assert!(scale.bucket((7 + BUCKETS as u64) * NS_PER_S).is_some());
    }
}
