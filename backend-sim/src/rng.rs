//! [`Rng`]: the generator behind every random choice.

/// SplitMix64 (Steele, Lea, Flood 2014). It is ten lines that never change, so a seed means the same choices
/// in every version.
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound - 1`; `bound` is not zero. It is the high half of a product: there is no
    /// division, and the bias is negligible because no bound is near 2^64.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// A random index into a sequence of length `len`; `len` is not zero.
    pub(crate) const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of 1 in `n`.
    pub(crate) const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// `most` with a probability of one half, else a random number from 1 to `most`.
    pub(crate) const fn part_of(&mut self, most: usize) -> usize {
        if most <= 1 || self.one_in(2) { most } else { 1 + self.index(most) }
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_choices() {
        // The first outputs of SplitMix64 for seed 0, as its authors' C code prints them.
        let mut rng = Rng::new(0);
        assert_eq!(
            [rng.next_u64(), rng.next_u64()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]
        );
        let mut seen = [0; 5];
        for _ in 0..5_000 {
            seen[rng.index(5)] += 1;
        }
        assert!(seen.iter().all(|times| (900..1_100).contains(times)), "{seen:?}");
        assert!((0..1_000).all(|_| (1..=7).contains(&rng.part_of(7))));
    }
}
