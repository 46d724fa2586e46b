//! What is there after a restart, and what a directory must be like.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use iggy_binary_protocol::WirePollingStrategy;
use owned_io::{Clock, File, Files, OpenMode, OwnedWriteAtExt};
use owned_io_log::SyncPolicy;
use owned_io_server::iggy::Status;
use owned_io_server::iggy::session::AnswerRoom;
use owned_io_server::iggy::workers::Iggy;
use owned_io_sim::{Fault, Sim, World, block_on, run, seeds};

use super::client::{Client, DIR, POLL_BYTES_MAX, open};

pub(super) const UNLIMITED: (u64, u64) = (0, 0);

pub(super) async fn start() -> Rc<Iggy> {
    open(SyncPolicy::Batch).await.expect("the directory opens")
}

pub(super) async fn end(iggy: Rc<Iggy>, client: Client) {
    iggy.close().await.expect("everything is durable");
    drop((iggy, client));
    Sim::sleep(Duration::from_secs(1)).await; // until the tasks of the log have ended
}

async fn why_not() -> String {
    open(SyncPolicy::Batch).await.map(drop).expect_err("the directory is refused").to_string()
}

pub(super) fn payload(n: u64) -> Vec<u8> {
    let len = 1 + (n * 37 % 900) as usize;
    n.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// The bytes that were read from files since the note, by the trace.
pub(super) fn bytes_read(world: &World, note: &str) -> u64 {
    let trace = world.trace();
    let (_, since) = trace.rsplit_once(note).expect("few events since then");
    let bytes = |line: &str| -> Option<u64> {
        line.split_once(": reads ")?.1.strip_suffix(" bytes")?.parse().ok()
    };
    since.lines().filter_map(bytes).sum()
}

/// "After an end by SIGTERM, a start does not read the last file of each partition".
#[test]
fn a_restart_after_a_clean_end_does_not_read_the_last_files() {
    const BYTES: usize = 64 * 1024;
    const MESSAGES: u64 = 40;
    run(seeds(1), async |world| {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 2, UNLIMITED).await.unwrap();
        for number in 0..MESSAGES {
            client.send("t", (number % 2) as u32, &[vec![number as u8; BYTES]]).await.unwrap();
        }
        end(iggy, client).await;
        world.note("a clean start");
        let iggy = start().await;
        let bytes = bytes_read(&world, "a clean start");
        assert!(bytes < BYTES as u64, "{bytes} bytes");
        let client = Client::login(&iggy).await;
        end(iggy, client).await;

        // Without the marks, they are read: here each has one message.
        for partition in partitions().await {
            Sim::remove_file(&partition.join("clean")).await.unwrap();
        }
        world.note("a start without marks");
        let iggy = start().await;
        let bytes = bytes_read(&world, "a start without marks");
        assert!(bytes > 2 * BYTES as u64, "{bytes} bytes");
        let client = Client::login(&iggy).await;
        end(iggy, client).await;
        Ok(())
    });
}

/// The directories of partitions.
async fn partitions() -> Vec<PathBuf> {
    let dir = Path::new(DIR).join("partitions");
    let entries = Sim::list_dir(&dir).await.unwrap();
    entries.into_iter().map(|entry| dir.join(entry.name)).collect()
}

#[test]
fn everything_is_there_after_a_restart() {
    run(seeds(20), async |_| {
        let mut expected = vec![Vec::new(), Vec::new()];
        for round in 0..4 {
            let iggy = start().await;
            let mut client = Client::login(&iggy).await;
            if round == 0 {
                client.create_stream().await.unwrap();
                client.create_topic("t", 2, UNLIMITED).await.unwrap();
                client.create_topic("gone", 3, UNLIMITED).await.unwrap();
                client.create_group("t", "g").await.unwrap();
                client.send("gone", 1, &[payload(1)]).await.unwrap();
                client.delete_topic("gone").await.unwrap();
            }
            assert_eq!(client.topics().await, ["t"]);
            assert_eq!(partitions().await.len(), 2);
            let stored = (round > 0).then(|| 3 * round - 1);
            assert_eq!(client.offset("t", 1).await, stored);
            for n in 0..20 {
                let payloads: Vec<_> =
                    (0..n % 5 + 1).map(|m| payload(100 * round + n + m)).collect();
                let partition = (n % 2) as u32;
                client.send("t", partition, &payloads).await.unwrap();
                expected[partition as usize].extend(payloads);
            }
            for count in [1, 7, 100] {
                for (partition, expected) in (0..).zip(&expected) {
                    let polled = client.poll_all("t", partition, count).await.unwrap();
                    let (offsets, payloads): (Vec<_>, Vec<_>) = polled.into_iter().unzip();
                    assert!(offsets.into_iter().eq(0..expected.len() as u64));
                    assert!(payloads == *expected);
                }
            }
            client.store_offset("t", 1, 3 * round + 2).await.unwrap();
            let topic = client.topic("t").await;
            assert_eq!(topic.topic.messages_count, expected.concat().len() as u64);
            end(iggy, client).await;
        }
        Ok(())
    });
}

#[test]
fn a_purged_topic_is_empty_after_a_restart_too() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        client.send("t", 0, &[payload(1), payload(2)]).await.unwrap();
        client.store_offset("t", 0, 1).await.unwrap();
        client.purge_topic("t").await.unwrap();
        end(iggy, client).await;
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        assert_eq!(client.poll_all("t", 0, 10).await, Ok(vec![]));
        assert_eq!(client.offset("t", 0).await, None);
        client.send("t", 0, &[payload(3)]).await.unwrap();
        assert_eq!(client.poll_all("t", 0, 10).await, Ok(vec![(0, payload(3))]));
    });
}

#[test]
fn a_second_server_on_the_directory_is_refused() {
    block_on(async {
        let iggy = start().await;
        let why = why_not().await;
        assert!(why.contains("/data/catalogue") && why.contains("in use"), "{why}");
        let client = Client::login(&iggy).await;
        end(iggy, client).await;
        start().await;
    });
}

#[test]
fn what_cannot_be_the_directory_of_a_server_is_named() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 2, UNLIMITED).await.unwrap();
        client.send("t", 0, &[payload(1)]).await.unwrap();
        end(iggy, client).await;
        let dir = Path::new(DIR);

        // A newer version wrote the catalogue.
        let segment = dir.join("catalogue/00000000000000000000.log");
        change_byte(&segment, 8, 9).await;
        let why = why_not().await;
        assert!(why.contains("00000000000000000000.log") && why.contains("version 9"), "{why}");
        change_byte(&segment, 8, 1).await;

        // A file has the name of a partition. Other files are ignored.
        for (name, is_refused) in [("7", true), ("07", false), ("notes", false)] {
            let file = dir.join("partitions").join(name);
            drop(Sim::open(&file, OpenMode::CreateNew).await.unwrap());
            if is_refused {
                let why = why_not().await;
                assert!(
                    why.contains("/data/partitions/7") && why.contains("no directory"),
                    "{why}"
                );
            } else {
                let iggy = start().await;
                let client = Client::login(&iggy).await;
                end(iggy, client).await;
            }
            Sim::remove_file(&file).await.unwrap();
        }

        // A partition is missing.
        owned_io_log::remove::<Sim>("/data/partitions/1").await.unwrap();
        let why = why_not().await;
        assert!(why.contains("/data/partitions/1") && why.contains("missing"), "{why}");

        // The catalogue is missing.
        owned_io_log::remove::<Sim>("/data/catalogue").await.unwrap();
        let why = why_not().await;
        assert!(why.contains("/data/partitions") && why.contains("no catalogue"), "{why}");
        assert_eq!(partitions().await, [Path::new("/data/partitions/0")], "nothing is removed");
    });
}

/// Changes the first byte of a little-endian number in the file, at the position `at`.
async fn change_byte(path: &Path, at: u64, byte: u8) {
    let file = Sim::open(path, OpenMode::Write).await.unwrap();
    file.write_all_at(vec![byte], at).await.into_result().unwrap();
}

/// A crash between the creation of the directory and of the record leaves one.
#[test]
fn partitions_that_the_catalogue_has_not_are_removed() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        end(iggy, client).await;
        let (unused, _) =
            owned_io_log::Partition::<Sim>::open("/data/partitions/1", Default::default())
                .await
                .unwrap();
        unused.close().await.unwrap();
        assert_eq!(partitions().await.len(), 2);
        start().await;
        assert_eq!(partitions().await, [Path::new("/data/partitions/0")]);
    });
}

#[test]
fn a_partition_with_messages_whose_record_is_lost_is_not_removed() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        end(iggy, client).await;
        let opened = owned_io_log::Partition::<Sim>::open("/data/partitions/1", Default::default());
        let (unknown, _) = opened.await.unwrap();
        unknown.append(1, |_| [payload(1).into()]).await.unwrap();
        unknown.close().await.unwrap();
        let why = why_not().await;
        assert!(why.contains("/data/partitions/1") && why.contains("has messages"), "{why}");
        assert_eq!(partitions().await.len(), 2);
    });
}

#[test]
fn a_topic_keeps_no_more_and_no_longer_than_it_says() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("small", 2, (20_000, u64::MAX)).await.unwrap();
        client.create_topic("short", 1, (u64::MAX, 30_000_000)).await.unwrap();
        client.create_topic("all", 1, (u64::MAX, u64::MAX)).await.unwrap();
        for n in 0..100 {
            for (topic, partition) in [("small", (n % 4 / 3) as u32), ("short", 0), ("all", 0)] {
                client.send(topic, partition, &[payload(n)]).await.unwrap();
            }
        }
        Sim::sleep(Duration::from_secs(15)).await;
        let small = client.topic("small").await;
        assert!((12_000..=20_000).contains(&small.topic.size_bytes), "{}", small.topic.size_bytes);
        let first = client.poll("small", 0, WirePollingStrategy::first(), 1).await.unwrap();
        let (offset, found) = &first[0];
        assert!(*offset > 0 && *found == payload(offset / 3 * 4 + offset % 3), "{offset}");
        assert_eq!(client.poll_all("short", 0, 100).await.unwrap().len(), 100);
        Sim::sleep(Duration::from_secs(30)).await;
        let short = client.poll_all("short", 0, 100).await.unwrap();
        assert!((1..30).contains(&short.len()), "{} are left", short.len());
        assert_eq!(short.last().map(|(offset, _)| *offset), Some(99));
        assert_eq!(client.poll_all("all", 0, 100).await.unwrap().len(), 100);
    });
}

#[test]
fn a_topic_of_many_partitions_comes_and_goes() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 100, UNLIMITED).await.unwrap();
        for n in 0..100 {
            client.send("t", n, &[payload(n.into())]).await.unwrap();
        }
        end(iggy, client).await;
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        for n in 0..100 {
            assert_eq!(client.poll_all("t", n, 1).await, Ok(vec![(0, payload(n.into()))]));
        }
        assert_eq!(partitions().await.len(), 100);
        client.delete_topic("t").await.unwrap();
        assert_eq!(partitions().await.len(), 0);
    });
}

/// A poll of a group whose partition has a long batch waits for memory, and gets that batch, although its turn has passed.
#[test]
fn room_is_made_for_a_batch_before_it_is_read() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 2, UNLIMITED).await.unwrap();
        client.create_group("t", "g").await.unwrap();
        client.join_group("t", "g").await.unwrap();
        let long = vec![7; 4 * POLL_BYTES_MAX];
        client.send("t", 0, std::slice::from_ref(&long)).await.unwrap();
        client.send("t", 1, &[vec![1]]).await.unwrap();
        for _ in 0..2 {
            let mut room = POLL_BYTES_MAX;
            let polled = client.poll_within("t", "g", &mut room).await;
            assert_eq!(polled, Ok((0, vec![long.clone()])));
            assert!((long.len()..long.len() + 200).contains(&room), "{room}");
            let polled = client.poll_within("t", "g", &mut room).await;
            assert_eq!(polled, Ok((1, vec![vec![1]])));
        }
        let refused = client.poll_within("t", "g", &mut NoRoom).await;
        assert_eq!(refused, Err(Status::CannotReadMessage.code().get()));
    });
}

struct NoRoom;

impl AnswerRoom for NoRoom {
    fn bytes(&self) -> usize {
        POLL_BYTES_MAX
    }

    async fn grow(&mut self, _: usize) -> Result<(), Status> {
        Err(Status::CannotReadMessage)
    }
}

/// Also if the policy is never to sync.
#[test]
fn what_was_closed_survives_a_loss_of_power() {
    run(seeds(20), async |world| {
        let host = world.host("disk");
        for round in 0..2_u64 {
            let done = host.spawn(async move {
                let iggy = open(SyncPolicy::Never).await?;
                let mut client = Client::login(&iggy).await;
                if round == 0 {
                    client.create_stream().await.unwrap();
                    client.create_topic("t", 1, UNLIMITED).await.unwrap();
                }
                let all = client.poll_all("t", 0, 10).await.unwrap();
                let found = all.into_iter().map(|(_, payload)| payload);
                assert!(found.eq((0..30 * round).map(payload)));
                for n in 0..30 {
                    client.send("t", 0, &[payload(30 * round + n)]).await.unwrap();
                }
                client.store_offset("t", 0, 29).await.unwrap();
                assert_eq!(client.offset("t", 0).await, Some(29));
                iggy.close().await.map_err(std::io::Error::other)
            });
            done.await.unwrap()?;
            let down = Duration::from_millis(10);
            world.apply(Fault::Crash { host: host.clone(), down });
            Sim::sleep(2 * down).await;
        }
        Ok(())
    });
}

/// The messages of the last round may be lost, and the consumer is to have those that come instead.
#[test]
fn an_offset_behind_the_end_of_the_log_is_set_back() {
    let set_back = Rc::new(Cell::new(0));
    run(seeds(40), async |world| {
        let host = world.host("disk");
        for is_second in [false, true] {
            let set_back = Rc::clone(&set_back);
            let done = host.spawn(async move {
                let iggy = open(SyncPolicy::Never).await?;
                let mut client = Client::login(&iggy).await;
                if !is_second {
                    client.create_stream().await.unwrap();
                    client.create_topic("t", 1, UNLIMITED).await.unwrap();
                    for n in 0..10 {
                        client.send("t", 0, &[payload(n)]).await.unwrap();
                    }
                    client.store_offset("t", 0, 9).await.unwrap();
                    client.create_group("t", "g").await.unwrap(); // syncs the offset
                    return Ok(());
                }
                let left = client.poll_all("t", 0, 10).await.unwrap().len() as u64;
                assert_eq!(client.offset("t", 0).await, left.checked_sub(1));
                set_back.set(set_back.get() + u32::from(left < 10));
                Ok::<_, std::io::Error>(())
            });
            done.await.unwrap()?;
            let down = Duration::from_millis(10);
            world.apply(Fault::Crash { host: host.clone(), down });
            Sim::sleep(2 * down).await;
        }
        Ok(())
    });
    assert!(set_back.get() > 0, "no crash has lost a message");
}

/// The bytes of the records of the catalogue's journal.
async fn journal_bytes() -> u64 {
    let dir = Path::new(DIR).join("catalogue");
    let mut bytes = 0;
    for entry in Sim::list_dir(&dir).await.unwrap() {
        let path = dir.join(entry.name);
        if path.extension().is_some_and(|extension| extension == "log") {
            let file = Sim::open(&path, OpenMode::Read).await.unwrap();
            bytes += file.size().await.unwrap();
        }
    }
    bytes
}

/// A snapshot of the catalogue is made, and read again. It replaces the records whenever these have 1 MiB: 42,000 of
/// them have 3 MB with their headers.
#[test]
fn many_stored_offsets_make_no_long_journal() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        let payloads = vec![vec![1]; 1_000];
        client.send("t", 0, &payloads).await.unwrap();
        for n in 0..42_000 {
            client.store_offset("t", 0, n % 1_000).await.unwrap();
        }
        end(iggy, client).await;
        let snapshot = Sim::open(Path::new("/data/catalogue/snapshot"), OpenMode::Read).await;
        let len = snapshot.unwrap().size().await.unwrap();
        assert!(len < 1_000, "{len} bytes");
        let len = journal_bytes().await;
        assert!(len <= 1 << 20, "the journal has {len} bytes: its records are not removed");
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        assert_eq!(client.offset("t", 0).await, Some(999));
        assert_eq!(client.poll_all("t", 0, 1_000).await.unwrap().len(), 1_000);
    });
}
