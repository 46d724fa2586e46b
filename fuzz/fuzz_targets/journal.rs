//! A journal whose files were changed in any way opens with a state that it had, or is refused. Records of the
//! catalogue are what their bytes say, and a catalogue is the same after it was written and read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use owned_io_server::iggy::catalogue::{
    Catalogue, PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, Record, RecordError,
};

#[path = "../../log/tests/common/change.rs"]
mod change;
#[path = "../../log/tests/common/journal.rs"]
mod journal;

fuzz_target!(|input: &[u8]| match input {
    [0..64, input @ ..] => journal::check(input),
    [64..128, input @ ..] => replay(input),
    [_, input @ ..] => drop(restored(input)),
    [] => {}
});

/// Applies records, each behind a byte for its length. One that is refused changes nothing.
fn replay(mut input: &[u8]) {
    let mut catalogue = Catalogue::default();
    while let Some((&len, rest)) = input.split_first() {
        let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
        input = rest;
        let Ok(record) = Record::decode(bytes) else { continue };
        assert_eq!(record.to_bytes(), bytes);
        let before = catalogue.clone();
        if let Err(error) = catalogue.apply(&record) {
            assert_eq!(error, RecordError::OutOfOrder);
            assert_eq!(catalogue, before);
        }
    }
    assert_eq!(restored(&catalogue.to_bytes()), Some(catalogue));
}

/// The catalogue that was written as `bytes`, if one was. It is within its limits.
fn restored(bytes: &[u8]) -> Option<Catalogue> {
    let catalogue = Catalogue::from_bytes(bytes).ok()?;
    assert!(catalogue.counts().partitions <= PARTITIONS_MAX);
    for (_, stream) in catalogue.streams() {
        for (_, topic) in stream.topics() {
            assert!(topic.logs().count() <= PARTITIONS_PER_TOPIC_MAX);
        }
    }
    // The counts are part of it, and were counted again.
    assert_eq!(Catalogue::from_bytes(&catalogue.to_bytes()).as_ref(), Ok(&catalogue));
    Some(catalogue)
}
