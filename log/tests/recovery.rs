//! Opening a partition whose files were changed, by inputs drawn from a seed: what the fuzz target `log` does.

#[path = "common/recovery.rs"]
mod recovery;

/// xorshift64 (Marsaglia 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn changed_files_neither_panic_nor_invent_batches() {
    recovery::check(&[]);
    let mut state = 0x2545_f491_4f6c_dd1d;
    for round in 0..500 {
        let changes = next(&mut state) as usize % 5;
        let mut input: Vec<u8> =
            (0..2 + 4 * changes).map(|_| (next(&mut state) >> 32) as u8).collect();
        // Most positions are within the first kilobyte: a segment has 700 bytes.
        for change in input[2..].chunks_exact_mut(4) {
            change[1] &= 0xc3;
        }
        println!("round {round}: {input:?}"); // of the round that fails
        recovery::check(&input);
    }
}
