//! [`Dice`]: where every choice comes from.

/// SplitMix64 (Steele, Lea, Flood 2014): ten lines that stay the same for ever, so that a seed
/// means the same choices in every version.
pub(crate) struct Dice {
    state: u64,
}

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) const fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound - 1`; `bound` is not zero. The high half of a product: no division,
    /// and even enough, because no bound comes near 2^64.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.roll() as u128 * bound as u128) >> 64) as u64
    }

    /// Any index of something that has `len` parts; `len` is not zero.
    pub(crate) const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True once in `n` times.
    pub(crate) const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// All of `most`, or, half the time, any part that is not nothing.
    pub(crate) const fn part_of(&mut self, most: usize) -> usize {
        if most <= 1 || self.one_in(2) { most } else { 1 + self.index(most) }
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.roll().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_choices_for_ever() {
        // The first outputs of SplitMix64 for seed 0, as its authors' C code prints them.
        let mut dice = Dice::new(0);
        assert_eq!([dice.roll(), dice.roll()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut seen = [0; 5];
        for _ in 0..5_000 {
            seen[dice.index(5)] += 1;
        }
        assert!(seen.iter().all(|times| (900..1_100).contains(times)), "{seen:?}");
        assert!((0..1_000).all(|_| (1..=7).contains(&dice.part_of(7))));
    }
}
