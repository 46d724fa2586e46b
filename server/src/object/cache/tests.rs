use std::path::Path;
use std::time::Duration;

use super::*;
use crate::object::{
    Arrival, BLOCK_BYTES, CacheControl, Directory, End, Failure, Head, Lifetime, Origin,
};

const SECOND: Duration = Duration::from_secs(1);

/// With room for `memory_max` bytes. Objects are fresh for ten seconds, and used for five more.
fn objects(memory_max: usize) -> Arc<Objects> {
    let mut config = ObjectsConfig::new(Origin::Directory(Directory::of_runtime(Path::new("/"))));
    config.lifetime = Lifetime { fresh: 10 * SECOND, stale: 5 * SECOND };
    (config.memory_max, config.object_bytes_max) = (memory_max, 1_000_000);
    Arc::new(Objects::new(config))
}

fn find(objects: &Arc<Objects>, name: &str, now: Instant) -> Lookup {
    objects.find(&ObjectName::new(name).unwrap(), now)
}

/// The fetch of an object that is not there.
fn miss(objects: &Arc<Objects>, name: &str, now: Instant) -> Fetch {
    match find(objects, name, now) {
        Lookup::Transfer(_, Some(fetch)) => fetch,
        other => panic!("{name}: {other:?}"),
    }
}

fn fill(mut fetch: Fetch, bytes: usize, now: Instant) -> Result<(), Failure> {
    fetch.begin(Head::default(), &CacheControl::default())?;
    fetch.append(&vec![7; bytes])?;
    fetch.complete(now)
}

fn is_stored(objects: &Arc<Objects>, name: &str, now: Instant) -> bool {
    matches!(find(objects, name, now), Lookup::Stored(_))
}

#[test]
fn one_request_fetches_and_all_others_join() {
    let (objects, now) = (objects(1 << 20), Instant::now());
    let fetch = miss(&objects, "a", now);
    for _ in 0..10_000 {
        let Lookup::Transfer(transfer, None) = find(&objects, "a", now) else { panic!() };
        assert!(Arc::ptr_eq(&transfer, fetch.transfer()));
    }
    assert_eq!(objects.totals().fetches, 1);
    fill(fetch, 5, now).unwrap();
    assert_eq!(objects.totals().fetches, 0);
    for _ in 0..10 {
        assert!(is_stored(&objects, "a", now));
    }
}

#[test]
fn an_object_is_fresh_then_stale_then_gone() {
    let (objects, start) = (objects(1 << 20), Instant::now());
    fill(miss(&objects, "a", start), 5, start).unwrap();
    assert!(is_stored(&objects, "a", start + 9 * SECOND));

    // While it is stale, one request fetches. A failure is followed by another attempt a second later.
    let now = start + 10 * SECOND;
    let Lookup::Stale(old, Some(mut fetch)) = find(&objects, "a", now) else { panic!() };
    assert!(matches!(find(&objects, "a", now), Lookup::Stale(_, None)));
    fetch.fail(Failure::Unreachable, now);
    drop(fetch);
    assert!(matches!(find(&objects, "a", now), Lookup::Stale(_, None)));
    let now = now + SECOND;
    let Lookup::Stale(_, Some(fetch)) = find(&objects, "a", now) else { panic!() };
    fill(fetch, 6, now).unwrap();
    let Lookup::Stored(new) = find(&objects, "a", now) else { panic!() };
    assert_eq!((old.len(), new.len()), (5, 6));
    assert_ne!(old.etag(), new.etag());

    // When its time is over, who asks waits for a new one, also if that was being fetched already.
    let Lookup::Stale(_, Some(fetch)) = find(&objects, "a", now + 14 * SECOND) else { panic!() };
    assert!(matches!(find(&objects, "a", now + 15 * SECOND), Lookup::Transfer(_, None)));
    drop(fetch);
    drop(miss(&objects, "a", now + 15 * SECOND));
    assert_eq!(objects.totals().objects, 0);
}

#[test]
fn a_fetch_that_fails_leaves_nothing() {
    let (objects, now) = (objects(1 << 20), Instant::now());
    let mut fetch = miss(&objects, "a", now);
    let head = Head { length: Some(10), ..Head::default() };
    fetch.begin(head, &CacheControl::default()).unwrap();
    fetch.append(b"12345").unwrap();
    let Lookup::Transfer(joined, None) = find(&objects, "a", now) else { panic!() };
    assert!(matches!(joined.read(2), Arrival::Bytes(bytes) if bytes == "345"));
    assert_eq!(fetch.complete(now), Err(Failure::Truncated));
    assert_eq!(fetch.append(b"678901"), Err(Failure::TooLong));
    fetch.fail(Failure::Truncated, now);
    drop(fetch);
    assert_eq!(joined.read(2), Arrival::End(End::Failed(Failure::Truncated)));
    let nothing = Totals { objects: 0, held_bytes: 0, fetches: 0 };
    assert_eq!(objects.totals(), nothing);

    let dropped = miss(&objects, "a", now);
    let transfer = Arc::clone(dropped.transfer());
    drop(dropped);
    assert_eq!(transfer.head(), Some(Err(End::Failed(Failure::Ended))));
    assert_eq!(objects.totals(), nothing);
}

#[test]
fn an_object_that_is_too_long_is_refused() {
    let (objects, now) = (objects(1 << 20), Instant::now());
    let announced = Head { length: Some(1_000_001), ..Head::default() };
    let begun = miss(&objects, "a", now).begin(announced, &CacheControl::default());
    assert_eq!(begun, Err(Failure::TooLong));
    assert_eq!(fill(miss(&objects, "a", now), 1_000_001, now), Err(Failure::TooLong));
    assert!(fill(miss(&objects, "b", now), 1_000_000, now).is_ok());
}

#[test]
fn what_is_missing_is_believed_for_a_while() {
    let (objects, now) = (objects(1 << 20), Instant::now());
    let mut fetch = miss(&objects, "a", now);
    fetch.missing(410, &CacheControl::default(), now);
    assert_eq!(fetch.transfer().head(), Some(Err(End::Missing(410))));
    drop(fetch);
    assert!(matches!(find(&objects, "a", now + 4 * SECOND), Lookup::Missing(410)));
    fill(miss(&objects, "a", now + 5 * SECOND), 1, now + 5 * SECOND).unwrap();

    // A stale object that its origin has removed is not used any more.
    let now = now + 15 * SECOND;
    let Lookup::Stale(_, Some(mut fetch)) = find(&objects, "a", now) else { panic!() };
    fetch.missing(404, &CacheControl::default(), now);
    drop(fetch);
    assert!(matches!(find(&objects, "a", now), Lookup::Missing(404)));

    // Many missing names remove each other, and no object.
    fill(miss(&objects, "b", now), 1, now).unwrap();
    for n in 0..2 * MISSING_MAX {
        miss(&objects, &format!("missing-{n}"), now).missing(404, &CacheControl::default(), now);
    }
    assert!(is_stored(&objects, "b", now));
    assert_eq!(objects.lock().missing.len(), MISSING_MAX);
}

#[test]
fn what_must_not_be_kept_is_for_those_who_have_joined() {
    let (objects, now) = (objects(1 << 20), Instant::now());
    let mut fetch = miss(&objects, "a", now);
    let mut control = CacheControl::default();
    control.add(b"no-store");
    fetch.begin(Head::default(), &control).unwrap();
    fetch.append(b"secret").unwrap();
    let Lookup::Transfer(joined, None) = find(&objects, "a", now) else { panic!() };
    fetch.complete(now).unwrap();
    drop(fetch);
    assert!(matches!(joined.read(0), Arrival::Bytes(bytes) if bytes == "secret"));
    assert_eq!(objects.totals().objects, 0);
    drop(joined);
    assert_eq!(objects.totals().held_bytes, 0);
}

#[test]
fn room_is_made_by_what_was_used_longest_ago_and_is_not_read() {
    let (objects, now) = (objects(100_000), Instant::now());
    for name in ["a", "b", "c"] {
        fill(miss(&objects, name, now), 30_000, now).unwrap();
    }
    let Lookup::Stored(read) = find(&objects, "a", now) else { panic!() };
    fill(miss(&objects, "d", now), 30_000, now).unwrap();
    let stored = |name| objects.lock().entries.get_mut(name).is_some();
    assert_eq!(["a", "b", "c", "d"].map(stored), [true, false, true, true]);

    // Nothing that is read can be removed, whoever has it.
    let Lookup::Stored(other) = find(&objects, "c", now) else { panic!() };
    let Lookup::Stored(another) = find(&objects, "d", now) else { panic!() };
    assert_eq!(fill(miss(&objects, "e", now), 30_000, now), Err(Failure::NoMemory));
    let held = objects.totals().held_bytes;
    assert!((90_000..=100_000).contains(&held), "{held}");
    drop((read, other, another));
    fill(miss(&objects, "e", now), 30_000, now).unwrap();

    // Bytes count while a reader has them, although the cache has forgotten the object.
    let Lookup::Stored(read) = find(&objects, "e", now) else { panic!() };
    let block = read.read(0).unwrap();
    drop(read);
    fill(miss(&objects, "f", now), 69_000, now).unwrap();
    assert!(!stored("e"));
    let held = objects.totals().held_bytes;
    assert!(held >= 90_000, "{held}");
    drop(block);
    assert!(objects.totals().held_bytes < held);
}

#[test]
fn fetches_have_a_bound() {
    let (objects, now) = (objects(1 << 20), Instant::now());
    let fetches: Vec<_> = (0..FETCHES_MAX).map(|n| miss(&objects, &format!("{n}"), now)).collect();
    assert!(matches!(find(&objects, "one-more", now), Lookup::Busy));
    assert!(matches!(find(&objects, "0", now), Lookup::Transfer(_, None)));
    drop(fetches);
    drop(miss(&objects, "one-more", now));
}

/// Bytes that arrive in any pieces are the object, in full blocks.
#[test]
fn pieces_become_blocks() {
    let (objects, now) = (objects(8 << 20), Instant::now());
    let all: Vec<u8> = (0..400_000_u32).map(|n| (n % 251) as u8).collect();
    for (n, piece) in [1_000, 77, BLOCK_BYTES, 400_000, BLOCK_BYTES - 1].into_iter().enumerate() {
        let mut fetch = miss(&objects, &format!("{n}"), now);
        fetch.begin(Head::default(), &CacheControl::default()).unwrap();
        let transfer = Arc::clone(fetch.transfer());
        for part in all.chunks(piece) {
            fetch.append(part).unwrap();
        }
        let mut arrived = Vec::new();
        while let Arrival::Bytes(bytes) = transfer.read(arrived.len() as u64) {
            arrived.extend_from_slice(&bytes);
        }
        assert!(arrived == all, "in pieces of {piece}");
        fetch.complete(now).unwrap();
        let Lookup::Stored(stored) = find(&objects, &format!("{n}"), now) else { panic!() };
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        while let Some(block) = stored.read(blocks.concat().len() as u64) {
            blocks.push(block.to_vec());
        }
        assert!(blocks.concat() == all);
        let full = 400_000 / BLOCK_BYTES;
        assert_eq!(blocks.len(), full + 1);
        assert!(blocks[..full].iter().all(|block| block.len() == BLOCK_BYTES));
    }
}
