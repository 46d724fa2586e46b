//! Random changes, their replay, and the limits.

use iggy_binary_protocol::WireIdentifier;
use owned_io::coop;

use super::*;

/// xorshift64*: the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    /// One of `present`, or a number or a name that may be there.
    fn identifier(&mut self, present: impl Iterator<Item = u32>) -> WireIdentifier {
        let present: Vec<_> = present.collect();
        match self.below(8) {
            0 => WireIdentifier::numeric(self.below(4) as u32),
            1 => WireIdentifier::named(self.name()).unwrap(),
            _ if present.is_empty() => WireIdentifier::numeric(0),
            _ => WireIdentifier::numeric(present[self.below(present.len())]),
        }
    }

    fn name(&mut self) -> &'static str {
        ["a", "b", "c", "a/b", "\0"][self.below(5)]
    }

    fn settings(&mut self) -> TopicSettings {
        TopicSettings {
            compression_algorithm: 1 + self.below(2) as u8,
            message_expiry: self.below(3) as u64,
            size_max: u64::MAX,
            replication_factor: 1,
        }
    }
}

fn random_change(catalogue: &Catalogue, numbers: &mut Numbers, now: u64) -> Result<Record, Status> {
    let stream = numbers.identifier(catalogue.streams().map(|(stream, _)| stream));
    let topics = catalogue.stream(&stream).into_iter().flat_map(|(_, found)| found.topics());
    let topic = numbers.identifier(topics.map(|(topic, _)| topic));
    let name = numbers.name();
    let found = catalogue.topic(&stream, &topic);
    let groups = found.into_iter().flat_map(|(_, found)| found.groups());
    let group = numbers.identifier(groups.map(|(group, _)| group));
    let at = found.map_or(TopicId { stream: 9, topic: 9 }, |(at, _)| at);
    let partition = numbers.below(2) as u32;
    let consumer = match numbers.below(2) {
        0 => Consumer::Single(numbers.below(2) as u32),
        _ => Consumer::Group(numbers.below(2) as u32),
    };
    let count = numbers.below(4) as u32;
    match numbers.below(19) {
        0 | 1 => catalogue.create_stream(name, now),
        2 => catalogue.rename_stream(&stream, name),
        3 => catalogue.delete_stream(&stream).and_then(|record| match numbers.below(4) {
            0 => Ok(record),
            _ => Err(Status::Error), // rarely, so that something grows
        }),
        4..=6 => catalogue.create_topic(&stream, name, numbers.settings(), count, now),
        7 => catalogue.update_topic(&stream, &topic, name, numbers.settings()),
        8 => catalogue.delete_topic(&stream, &topic),
        9 => catalogue.purge_topic(&stream, &topic),
        10 => catalogue.add_partitions(&stream, &topic, count, now),
        11 => catalogue.remove_partitions(&stream, &topic, count),
        12 | 13 => catalogue.create_group(&stream, &topic, name),
        14 => catalogue.delete_group(&stream, &topic, &group),
        15 | 16 => catalogue.store_offset(at, partition, consumer, now),
        _ => catalogue.delete_offset(at, partition, consumer),
    }
}

/// Counts everything again.
fn assert_counts(catalogue: &Catalogue) {
    let topics = || catalogue.streams.values().flat_map(|stream| stream.topics.values());
    let partitions = || topics().flat_map(|topic| &topic.partitions);
    let counts = Counts {
        topics: topics().count(),
        partitions: partitions().count(),
        groups: topics().map(|topic| topic.groups.len()).sum(),
        offsets: partitions().map(|partition| partition.offsets.len()).sum(),
    };
    assert_eq!(catalogue.counts(), counts);
    assert_eq!(catalogue.names.len(), catalogue.streams.len());
}

#[test]
fn replaying_the_records_or_a_snapshot_gives_the_same_catalogue() {
    let mut kinds = [0_usize; 17];
    for seed in 1..=200 {
        let mut numbers = Numbers(seed);
        let (mut catalogue, mut journal) = (Catalogue::default(), Vec::new());
        for now in 0..300 {
            let before = catalogue.clone();
            let Ok(record) = random_change(&catalogue, &mut numbers, now) else {
                assert_eq!(catalogue, before);
                continue;
            };
            assert_eq!(catalogue, before, "asking changes nothing");
            catalogue.apply(&record).unwrap();
            let bytes = record.to_bytes();
            kinds[bytes[0] as usize] += 1;
            assert_eq!(Record::decode(&bytes), Ok(record));
            journal.push(bytes);
        }
        assert_counts(&catalogue);
        let mut logs: Vec<_> = catalogue.logs().collect();
        logs.sort_unstable();
        logs.dedup();
        assert_eq!(logs.len(), catalogue.counts().partitions, "two partitions share a log");
        let mut replayed = Catalogue::default();
        for bytes in &journal {
            replayed.replay(&Record::decode(bytes).unwrap()).unwrap();
        }
        assert_eq!(replayed, catalogue, "seed {seed}");
        let mut restored = Catalogue::from_bytes(&catalogue.to_bytes()).unwrap();
        assert_eq!(restored, catalogue, "seed {seed}");
        // What follows a snapshot fits it too.
        for now in 300..350 {
            if let Ok(record) = random_change(&catalogue, &mut numbers, now) {
                catalogue.apply(&record).unwrap();
                restored.apply(&record).unwrap();
            }
        }
        assert_eq!(restored, catalogue, "seed {seed}");
    }
    assert!(kinds[1..=13].iter().all(|&count| count > 20), "some change is too rare: {kinds:?}");
}

/// Those of the messages that a record removes are forgotten, and no others.
#[test]
fn offsets_are_forgotten_with_their_messages() {
    let mut forgotten_count = 0;
    for seed in 1..=50 {
        let mut numbers = Numbers(seed);
        let mut catalogue = Catalogue::default();
        for now in 0..300 {
            let Ok(record) = random_change(&catalogue, &mut numbers, now) else { continue };
            let (mut forgotten, before) = (catalogue.clone(), catalogue.clone());
            forgotten.forget_offsets(&record);
            catalogue.apply(&record).unwrap();
            let emptied: Vec<_> = match record {
                Record::TopicPurged { at } => before.topic_at(at).unwrap().logs().collect(),
                _ => {
                    let left: Vec<_> = catalogue.logs().collect();
                    before.logs().filter(|log| !left.contains(log)).collect()
                }
            };
            let mut expected = before.clone();
            expected.clamp_offsets(|log| if emptied.contains(&log) { 0 } else { u64::MAX });
            assert_eq!(forgotten, expected, "{record:?}");
            assert_counts(&forgotten);
            forgotten_count += usize::from(forgotten != before);
        }
    }
    assert!(forgotten_count > 100, "{forgotten_count} records removed offsets");
}

/// It is made in one piece. Others have their turn before more work is done.
#[test]
fn a_snapshot_counts_its_work() {
    const PARTITIONS: u32 = 1_000;
    let zero = WireIdentifier::numeric(0);
    let at = TopicId { stream: 0, topic: 0 };
    let mut catalogue = Catalogue::default();
    let record = catalogue.create_stream("s", 0).unwrap();
    catalogue.apply(&record).unwrap();
    let record = catalogue.create_topic(&zero, "t", SETTINGS, PARTITIONS, 0).unwrap();
    catalogue.apply(&record).unwrap();
    for partition in 0..PARTITIONS {
        let record = catalogue.store_offset(at, partition, Consumer::Single(7), 5).unwrap();
        catalogue.apply(&record).unwrap();
    }
    coop::refill();
    assert!(catalogue.to_bytes().len() > 20 * PARTITIONS as usize);
    assert!(coop::spent_nanos() >= 20 * u64::from(PARTITIONS), "{}", coop::spent_nanos());
}

#[test]
fn an_offset_behind_the_end_of_its_partition_is_skipped_in_a_journal() {
    let zero = WireIdentifier::numeric(0);
    let mut catalogue = Catalogue::default();
    for record in [
        catalogue.create_stream("s", 0).unwrap(),
        Record::TopicCreated {
            at: TopicId { stream: 0, topic: 0 },
            created_at: 0,
            settings: SETTINGS,
            log: LogId(0),
            partitions: 2,
            name: Name::new("t").unwrap(),
        },
    ] {
        catalogue.apply(&record).unwrap();
    }
    let at = TopicId { stream: 0, topic: 0 };
    let stored = catalogue.store_offset(at, 1, Consumer::Single(7), 5).unwrap();
    let removed = catalogue.remove_partitions(&zero, &zero, 1).unwrap();
    catalogue.apply(&removed).unwrap();
    assert_eq!(catalogue.apply(&stored), Err(RecordError::OutOfOrder));
    let deleted = Record::OffsetDeleted { at, partition: 1, consumer: Consumer::Single(7) };
    let before = catalogue.clone();
    assert_eq!([stored, deleted].map(|record| catalogue.replay(&record)), [Ok(()); 2]);
    assert_eq!(catalogue, before);
    assert_eq!(catalogue.replay(&removed), Ok(()));
    assert_eq!(catalogue.replay(&removed), Err(RecordError::OutOfOrder));
}

/// The record of the offset can come behind the one that deletes the group, in a journal. Snapshots of older versions
/// have such offsets.
#[test]
fn an_offset_of_a_deleted_group_is_refused_and_skipped() {
    let zero = WireIdentifier::numeric(0);
    let at = TopicId { stream: 0, topic: 0 };
    let mut catalogue = Catalogue::default();
    let record = catalogue.create_stream("s", 0).unwrap();
    catalogue.apply(&record).unwrap();
    let record = catalogue.create_topic(&zero, "t", SETTINGS, 1, 0).unwrap();
    catalogue.apply(&record).unwrap();
    let group = Consumer::Group(0);
    assert_eq!(catalogue.store_offset(at, 0, group, 5), Err(Status::ConsumerGroupIdNotFound));
    let record = catalogue.create_group(&zero, &zero, "g").unwrap();
    catalogue.apply(&record).unwrap();
    let stored = catalogue.store_offset(at, 0, group, 5).unwrap();
    catalogue.apply(&stored).unwrap();
    let with_group = catalogue.clone();
    let deleted = catalogue.delete_group(&zero, &zero, &zero).unwrap();
    catalogue.apply(&deleted).unwrap();

    assert_eq!(catalogue.counts().offsets, 0);
    assert_eq!(catalogue.store_offset(at, 0, group, 6), Err(Status::ConsumerGroupIdNotFound));
    assert_eq!(catalogue.apply(&stored), Err(RecordError::OutOfOrder));
    let before = catalogue.clone();
    assert_eq!(catalogue.replay(&stored), Ok(()));
    assert_eq!(catalogue, before);

    let mut bytes = catalogue.to_bytes();
    let orphan = stored.to_bytes();
    bytes.extend_from_slice(&(orphan.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&orphan);
    assert_eq!(Catalogue::from_bytes(&bytes), Ok(catalogue));
    assert_eq!(Catalogue::from_bytes(&with_group.to_bytes()), Ok(with_group));
}

#[test]
fn damaged_records_are_refused_and_change_nothing() {
    let mut numbers = Numbers(7);
    let mut catalogue = Catalogue::default();
    for now in 0..300 {
        let Ok(record) = random_change(&catalogue, &mut numbers, now) else { continue };
        let bytes = record.to_bytes();
        for len in 0..bytes.len() {
            // A name that is cut is a name too, unless nothing of it is left.
            if let Ok(cut) = Record::decode(&bytes[..len]) {
                assert_ne!(cut, record);
            }
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << numbers.below(8);
            if let Ok(damaged) = Record::decode(&damaged) {
                let mut copy = catalogue.clone();
                match copy.apply(&damaged) {
                    Ok(()) => assert_counts(&copy),
                    Err(error) => {
                        assert_eq!(error, RecordError::OutOfOrder);
                        assert_eq!(copy, catalogue);
                    }
                }
            }
        }
        catalogue.apply(&record).unwrap();
    }
    assert_eq!(Record::decode(&[99]), Err(RecordError::UnknownKind(99)));
    assert_eq!(Record::decode(&[3, 0, 0, 0, 0, 0]), Err(RecordError::Trailing));
    assert_eq!(Record::decode(&[2, 0, 0, 0, 0, b'/']), Err(RecordError::BadName));
}

fn catalogue_with(records: impl IntoIterator<Item = Result<Record, Status>>) -> Catalogue {
    let mut catalogue = Catalogue::default();
    records.into_iter().for_each(|record| catalogue.apply(&record.unwrap()).unwrap());
    catalogue
}

const SETTINGS: TopicSettings = TopicSettings {
    compression_algorithm: 1,
    message_expiry: 0,
    size_max: 0,
    replication_factor: 1,
};

#[test]
fn numbers_are_not_used_again_and_names_are_free_again() {
    let mut catalogue = Catalogue::default();
    let first = WireIdentifier::numeric(0);
    for created in 0..3 {
        let record = catalogue.create_stream("s", 1).unwrap();
        assert_eq!(
            record,
            Record::StreamCreated { stream: created, created_at: 1, name: Name::new("s").unwrap() }
        );
        catalogue.apply(&record).unwrap();
        assert_eq!(catalogue.create_stream("s", 1), Err(Status::StreamNameAlreadyExists));
        let record = catalogue.delete_stream(&WireIdentifier::named("s").unwrap()).unwrap();
        catalogue.apply(&record).unwrap();
        assert_eq!(catalogue.stream(&first).unwrap_err(), Status::StreamIdNotFound);
    }
}

/// Whatever the order in which they come, and after they were deleted.
#[test]
fn numbers_that_are_made_of_names_do_not_depend_on_what_was_there_before() {
    let names: Vec<_> = (0..50).map(|n| format!("name {n}")).collect();
    let number = |catalogue: &Catalogue, name: &str| {
        catalogue
            .topic(&WireIdentifier::named(name).unwrap(), &WireIdentifier::named(name).unwrap())
            .map(|(at, _)| at)
    };
    let create = |catalogue: &mut Catalogue, name: &str| {
        let record = catalogue.create_stream(name, 1).unwrap();
        catalogue.apply(&record).unwrap();
        let stream = WireIdentifier::named(name).unwrap();
        let record = catalogue.create_topic(&stream, name, SETTINGS, 1, 1).unwrap();
        catalogue.apply(&record).unwrap();
    };
    let (mut one, mut other) = (Catalogue::numbered_by_name(), Catalogue::numbered_by_name());
    names.iter().for_each(|name| create(&mut one, name));
    names.iter().rev().for_each(|name| create(&mut other, name));
    let record = other.delete_stream(&WireIdentifier::named(&names[7]).unwrap()).unwrap();
    other.apply(&record).unwrap();
    create(&mut other, &names[7]);
    for name in &names {
        let at = number(&one, name).unwrap();
        assert_eq!(number(&other, name), Ok(at));
        assert_eq!(at.stream, XxHash32::oneshot(0, name.as_bytes()) & (u32::MAX >> 1));
    }
}

/// Two names with the same hash.
#[test]
fn a_number_that_is_taken_is_not_given_twice() {
    let mut catalogue = Catalogue::numbered_by_name();
    let hashed = XxHash32::oneshot(0, b"s") & (u32::MAX >> 1);
    let record = Record::StreamCreated {
        stream: hashed,
        created_at: 1,
        name: Name::new("another").unwrap(),
    };
    catalogue.apply(&record).unwrap();
    let record = catalogue.create_stream("s", 1).unwrap();
    assert!(matches!(record, Record::StreamCreated { stream, .. } if stream == hashed + 1));
    catalogue.apply(&record).unwrap();
    let again =
        Record::StreamCreated { stream: hashed, created_at: 1, name: Name::new("x").unwrap() };
    assert_eq!(catalogue.apply(&again), Err(RecordError::OutOfOrder));
}

#[test]
fn what_there_may_be_is_limited() {
    let mut catalogue = catalogue_with((0..STREAMS_MAX as u32).map(|stream| {
        let name = Name::new(&format!("s{stream}")).unwrap();
        Ok(Record::StreamCreated { stream, created_at: 0, name })
    }));
    assert_eq!(catalogue.create_stream("more", 0), Err(Status::CannotCreateStream));
    let [one, other] = [0, 1].map(WireIdentifier::numeric);
    let create = |name: &str, partitions| (name.to_owned(), partitions);
    for (name, partitions) in (0..TOPICS_PER_STREAM_MAX).map(|n| create(&format!("t{n}"), 15)) {
        let record = catalogue.create_topic(&one, &name, SETTINGS, partitions, 0).unwrap();
        catalogue.apply(&record).unwrap();
    }
    assert_eq!(
        catalogue.create_topic(&one, "more", SETTINGS, 0, 0),
        Err(Status::CannotCreateTopic)
    );
    let left = (PARTITIONS_MAX - catalogue.counts().partitions) as u32;
    let too_many = catalogue.create_topic(&other, "t", SETTINGS, left + 1, 0);
    assert_eq!(too_many, Err(Status::TooManyPartitions));
    let most = PARTITIONS_PER_TOPIC_MAX as u32;
    let too_many = catalogue.create_topic(&other, "t", SETTINGS, most + 1, 0);
    assert_eq!(too_many, Err(Status::TooManyPartitions));
    let too_many = catalogue.add_partitions(&one, &one, u32::MAX, 0);
    assert_eq!(too_many, Err(Status::TooManyPartitions));
    for group in 0..GROUPS_PER_TOPIC_MAX {
        let record = catalogue.create_group(&one, &one, &format!("g{group}")).unwrap();
        catalogue.apply(&record).unwrap();
    }
    let too_many = catalogue.create_group(&one, &one, "more");
    assert_eq!(too_many, Err(Status::CannotCreateConsumerGroup));
    let at = TopicId { stream: 0, topic: 0 };
    for consumer in 0..OFFSETS_MAX as u32 {
        let record = catalogue.store_offset(at, 0, Consumer::Single(consumer), 1).unwrap();
        catalogue.apply(&record).unwrap();
    }
    let too_many = catalogue.store_offset(at, 1, Consumer::Single(0), 1);
    assert_eq!(too_many, Err(Status::CannotStoreConsumerOffset));
    let again = catalogue.store_offset(at, 0, Consumer::Single(0), 2);
    assert!(again.is_ok(), "an offset that is there can change");
    assert_counts(&catalogue);
}

/// Damaged records must not fill the memory. And a snapshot of what they give would not be read again.
#[test]
fn records_of_more_partitions_than_there_may_be_are_refused() {
    let most = PARTITIONS_PER_TOPIC_MAX as u32;
    let created = |topic, partitions| Record::TopicCreated {
        at: TopicId { stream: 0, topic },
        created_at: 0,
        settings: SETTINGS,
        log: LogId(u64::from(topic) * u64::from(most)),
        partitions,
        name: Name::new(&format!("t{topic}")).unwrap(),
    };
    let added = |topic, count| {
        let at = TopicId { stream: 0, topic };
        Record::PartitionsAdded { at, created_at: 0, log: LogId(u64::MAX / 2), count }
    };
    let mut catalogue = catalogue_with([Catalogue::default().create_stream("s", 0)]);
    catalogue.apply(&created(0, most - 1)).unwrap();
    catalogue.apply(&added(0, 1)).unwrap();
    let full = PARTITIONS_MAX as u32 / most;
    (1..full).for_each(|topic| catalogue.apply(&created(topic, most)).unwrap());
    let left = PARTITIONS_MAX as u32 % most;
    catalogue.apply(&created(full, left - 1)).unwrap();
    let before = catalogue.clone();
    for record in [added(0, 1), added(full, 2), added(full, u32::MAX), created(full + 1, 2)] {
        assert_eq!(catalogue.apply(&record), Err(RecordError::OutOfOrder), "{record:?}");
        assert_eq!(catalogue, before);
    }
    catalogue.apply(&added(full, 1)).unwrap();
    assert_eq!(catalogue.counts().partitions, PARTITIONS_MAX);
    assert_eq!(Catalogue::from_bytes(&catalogue.to_bytes()), Ok(catalogue));
}

#[test]
fn bad_names_are_refused_everywhere() {
    let (zero, settings) = (WireIdentifier::numeric(0), SETTINGS);
    let mut catalogue = Catalogue::default();
    let record = catalogue.create_stream("s", 0).unwrap();
    catalogue.apply(&record).unwrap();
    let record = catalogue.create_topic(&zero, "t", settings, 1, 0).unwrap();
    catalogue.apply(&record).unwrap();
    for name in ["a/b", "\0", "", "a\\b", &"n".repeat(256)] {
        assert_eq!(catalogue.create_stream(name, 0), Err(Status::InvalidStreamName));
        assert_eq!(catalogue.rename_stream(&zero, name), Err(Status::InvalidStreamName));
        let created = catalogue.create_topic(&zero, name, settings, 1, 0);
        assert_eq!(created, Err(Status::InvalidTopicName));
        let updated = catalogue.update_topic(&zero, &zero, name, settings);
        assert_eq!(updated, Err(Status::InvalidTopicName));
        let created = catalogue.create_group(&zero, &zero, name);
        assert_eq!(created, Err(Status::InvalidConsumerGroupName));
    }
}
