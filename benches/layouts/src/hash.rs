//! What a 64-bit key hash is cut into.
//!
//! The high bits choose the buckets (by multiply-shift, so any bucket count will do), the low bits are
//! the tag, and the lowest of those also name a preferred slot and a fingerprint.

/// Maps a hash onto `0..n` for any `n`.
#[inline(always)]
fn scale(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}

/// The bucket a key is looked for first.
#[inline(always)]
pub fn home(hash: u64, buckets: usize) -> usize {
    scale(hash, buckets)
}

/// The other bucket a key may be in.
#[inline(always)]
pub fn second(hash: u64, buckets: usize) -> usize {
    scale(hash.wrapping_mul(0x9FB2_1C65_1E98_DF25), buckets)
}

/// Bits of an owner word below the tag: the generation.
pub const GEN_BITS: u32 = 24;

/// Owner word of generation 0. The highest bit is always set, so no owner word looks empty (0).
#[inline(always)]
pub fn owner(hash: u64) -> u64 {
    hash << GEN_BITS | 1 << 63
}

/// Whether two owner words have the same tag, whatever their generations.
#[inline(always)]
pub fn same_tag(a: u64, b: u64) -> bool {
    a ^ b < 1 << GEN_BITS
}

/// The slot out of eight that the key would rather have.
#[inline(always)]
pub fn preferred(hash: u64) -> usize {
    (hash & 7) as usize
}

/// A fingerprint of eight bits; 0 means "empty".
#[inline(always)]
pub fn fingerprint(hash: u64) -> u64 {
    (hash & 0xFF).max(1)
}
