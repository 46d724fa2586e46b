//! Opening a partition or a journal whose files were changed, by inputs drawn from a seed: what the fuzz targets `log` and
//! `journal` do.

#[path = "common/change.rs"]
mod change;
#[path = "common/journal.rs"]
mod journal;
#[path = "common/recovery.rs"]
mod recovery;

/// xorshift64 (Marsaglia 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Checks 500 inputs of `head` bytes and up to four changes.
fn check(head: usize, check: fn(&[u8])) {
    check(&[]);
    let mut state = 0x2545_f491_4f6c_dd1d;
    for round in 0..500 {
        let changes = next(&mut state) as usize % 5;
        let mut input: Vec<u8> =
            (0..head + 4 * changes).map(|_| (next(&mut state) >> 32) as u8).collect();
        // Most positions are within the first kilobyte: a segment has 700 bytes.
        for change in input[head..].chunks_exact_mut(4) {
            change[1] &= 0xc3;
        }
        println!("round {round}: {input:?}"); // of the round that fails
        check(&input);
    }
}

#[test]
fn changed_files_neither_panic_nor_invent_batches() {
    check(2, recovery::check);
}

#[test]
fn changed_files_of_a_journal_neither_panic_nor_invent_state() {
    check(3, journal::check);
}
