//! Files whose bytes have changed while the server was down: who is told, and that nobody else notices.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use iggy_binary_protocol::WirePollingStrategy;
use owned_io::{Clock, File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt};
use owned_io_log::SyncPolicy;
use owned_io_server::iggy::Status;
use owned_io_server::iggy::workers::Iggy;
use owned_io_sim::{Sim, World, block_on, run, seeds};

use super::client::{Client, open};
use super::restart::{UNLIMITED, bytes_read, end, payload, start};

/// The messages of each partition. They fill several files, because a file has 4 KiB.
pub(super) const MESSAGES: u64 = 54;

/// The messages of each batch.
const BATCH: u64 = 2;

/// The bytes of the header of a file, and of a batch: see `format.rs` of the log.
const FILE_HEADER: usize = 40;
const BATCH_HEADER: usize = 48;

/// The partition whose files are damaged. The other one is not.
pub(super) const DAMAGED: u32 = 0;
const SOUND: u32 = 1;

pub(super) const UNREADABLE: Status = Status::CannotReadMessage;

/// How a server ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Clean,
    /// As after a kill: there is no mark of a clean end.
    Killed,
}

impl End {
    async fn end(self, iggy: Rc<Iggy>, client: Client) {
        match self {
            Self::Clean => end(iggy, client).await,
            Self::Killed => {
                drop((iggy, client));
                Sim::sleep(Duration::from_secs(1)).await; // until the tasks of the log have ended
            }
        }
    }
}

/// A directory with all messages in both partitions, whose server has ended.
pub(super) async fn fill(ending: End) {
    let iggy = start().await;
    let mut client = Client::login(&iggy).await;
    client.create_stream().await.unwrap();
    client.create_topic("t", 2, UNLIMITED).await.unwrap();
    for first in (0..MESSAGES).step_by(BATCH as usize) {
        for partition in [DAMAGED, SOUND] {
            let payloads: Vec<_> = (first..first + BATCH).map(payload).collect();
            client.send("t", partition, &payloads).await.unwrap();
        }
    }
    ending.end(iggy, client).await;
}

/// The files of the partition with messages, in order.
pub(super) async fn files() -> Vec<PathBuf> {
    let dir = Path::new("/data/partitions").join(DAMAGED.to_string());
    let entries = Sim::list_dir(&dir).await.unwrap();
    let paths = entries.into_iter().map(|entry| dir.join(entry.name));
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "log")).collect();
    files.sort();
    files
}

/// The offset of the first message of a file: its name.
pub(super) fn base_offset(path: &Path) -> u64 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

async fn read(path: &Path) -> Vec<u8> {
    let file = Sim::open(path, OpenMode::Read).await.unwrap();
    let len = file.size().await.unwrap() as usize;
    file.read_exact_at(Vec::with_capacity(len), len, 0).await.into_result().unwrap().1
}

/// Changes the bytes of a file.
pub(super) async fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = read(path).await;
    change(&mut bytes);
    let file = Sim::open(path, OpenMode::Write).await.unwrap();
    file.set_len(bytes.len() as u64).await.unwrap();
    file.write_all_at(bytes, 0).await.into_result().unwrap();
}

/// Where the batches of a file begin, and the offset of the first message of each.
async fn batches(path: &Path) -> Vec<(usize, u64)> {
    let bytes = read(path).await;
    let (mut at, mut found) = (FILE_HEADER, Vec::new());
    while at < bytes.len() {
        let len = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap());
        found.push((at, u64::from_le_bytes(bytes[at + 24..at + 32].try_into().unwrap())));
        at += BATCH_HEADER + len as usize;
    }
    found
}

/// Polls each message alone. Returns the offsets that cannot be read, and the end of the partition. Panics if a message
/// is not the one that was sent.
pub(super) async fn poll_each(client: &mut Client) -> (Vec<u64>, u64) {
    let (mut unreadable, mut end) = (Vec::new(), MESSAGES);
    for offset in 0..MESSAGES {
        match client.poll("t", DAMAGED, WirePollingStrategy::offset(offset), 1).await {
            Ok(polled) if polled.is_empty() => end = end.min(offset),
            Ok(polled) => {
                assert_eq!(polled, [(offset, payload(offset))]);
                assert_eq!(end, MESSAGES, "there is a message behind the end");
            }
            Err(status) => {
                assert_eq!(status, UNREADABLE.code().get());
                unreadable.push(offset);
            }
        }
    }
    (unreadable, end)
}

/// Panics unless another client, who uses both partitions, notices nothing.
pub(super) async fn expect_others_undisturbed(client: &mut Client) {
    let all = client.poll_all("t", SOUND, 7).await.unwrap();
    let sent = (0..MESSAGES).map(|offset| (offset, payload(offset)));
    assert!(all.into_iter().take(MESSAGES as usize).eq(sent));
    for partition in [DAMAGED, SOUND] {
        client.send("t", partition, &[payload(1_000)]).await.unwrap();
        let last = client.poll("t", partition, WirePollingStrategy::last(), 1).await.unwrap();
        assert_eq!(last[0].1, payload(1_000));
    }
    client.store_offset("t", DAMAGED, 3).await.unwrap();
    assert_eq!(client.offset("t", DAMAGED).await, Some(3));
    let topics = client.topics().await.len();
    client.create_topic(&format!("new {topics}"), 1, UNLIMITED).await.unwrap();
}

pub(super) async fn why_not() -> String {
    open(SyncPolicy::Batch).await.map(drop).expect_err("the directory is refused").to_string()
}

/// What is before it can be read, and what is in later files.
#[test]
fn damage_in_an_older_file_is_told_to_who_reads_there() {
    // In the header of a batch: its magic, its CRC, its length, its offset. And in its messages.
    for (byte, is_in_header) in [(0, true), (5, true), (14, true), (27, true), (60, false)] {
        for ending in [End::Clean, End::Killed] {
            block_on(async {
                fill(ending).await;
                let files = files().await;
                assert!(files.len() > 3, "{files:?}");
                let damaged = batches(&files[1]).await;
                let (at, offset) = damaged[1];
                edit(&files[1], |bytes| bytes[at + byte] ^= 0x10).await;

                let iggy = start().await;
                let (mut reader, mut other) =
                    (Client::login(&iggy).await, Client::login(&iggy).await);
                let all = reader.poll_all("t", DAMAGED, 7).await;
                assert_eq!(all, Err(UNREADABLE.code().get()));
                let (_, next_file) = batches(&files[2]).await[0];
                let lost = if is_in_header { offset..next_file } else { offset..offset + BATCH };
                let (unreadable, end) = poll_each(&mut reader).await;
                assert!(unreadable.iter().copied().eq(lost), "{byte}, {ending:?}: {unreadable:?}");
                assert_eq!(end, MESSAGES);
                expect_others_undisturbed(&mut other).await;
                // Nor does the reader lose its connection.
                expect_others_undisturbed(&mut reader).await;
            });
        }
    }
}

/// A start after a clean end does not read the last file. So who reads there is told.
#[test]
fn damage_in_the_last_file_is_told_after_a_clean_end() {
    block_on(async {
        fill(End::Clean).await;
        let last = files().await.pop().unwrap();
        let (at, offset) = batches(&last).await[0];
        edit(&last, |bytes| bytes[at + 60] ^= 1).await;

        let iggy = start().await;
        let (mut reader, mut other) = (Client::login(&iggy).await, Client::login(&iggy).await);
        let (unreadable, end) = poll_each(&mut reader).await;
        assert_eq!((unreadable, end), ((offset..offset + BATCH).collect(), MESSAGES));
        expect_others_undisturbed(&mut other).await;
    });
}

/// A start after a kill reads the last file. It is refused, because the bytes were on the disk, and cuts nothing:
/// once they are right again, everything is there.
#[test]
fn damage_in_the_last_file_refuses_a_start_after_a_kill() {
    block_on(async {
        fill(End::Killed).await;
        let last = files().await.pop().unwrap();
        let found = batches(&last).await;
        assert!(found.len() > 1, "nothing says that the damaged batch was on the disk");
        let at = found[0].0;
        for byte in [at, at + 14, at + 60] {
            edit(&last, |bytes| bytes[byte] ^= 1).await;
            let damaged = read(&last).await;
            let why = why_not().await;
            let culprit = format!("{} is damaged at byte {at}", last.display());
            assert!(why.contains(&culprit), "{why}");
            assert!(read(&last).await == damaged, "a refused start has changed the file");
            edit(&last, |bytes| bytes[byte] ^= 1).await;
        }
        let mut client = Client::login(&start().await).await;
        assert_eq!(poll_each(&mut client).await, (vec![], MESSAGES));
    });
}

/// A start takes the index from the mark of a clean end, and it may be wrong. Then each message is read all the same.
#[test]
fn an_index_that_lies_leaves_no_message_out() {
    let without_mark = block_on(async {
        fill(End::Clean).await;
        let last = files().await.pop().unwrap();
        Sim::remove_file(&last.with_file_name("clean")).await.unwrap();
        start_and_count().await.1
    });
    for (lie, change) in [
        ("nothing", (|_| {}) as fn(&mut Vec<[u64; 3]>)),
        ("that there are fewer batches", |entries| _ = entries.drain(1..entries.len() - 1)),
        ("where a batch begins", |entries| entries[1][0] += 1),
        ("which messages a batch has", |entries| entries[1][1] -= 1),
        ("nothing of the first batch", |entries| _ = entries.remove(0)),
        ("that the first batch is elsewhere", |entries| entries[0][0] = entries[1][0] - 1),
        ("when batches came", |entries| entries[1][2] -= 1),
    ] {
        block_on(async {
            fill(End::Clean).await;
            let last = files().await.pop().unwrap();
            // The last entry does not lie, because the start confirms the mark with the batches from there on.
            assert!(batches(&last).await.len() > 2, "the index is too short");
            edit(&last.with_file_name("clean"), |mark| forge(mark, change)).await;

            let (iggy, bytes) = start_and_count().await;
            assert!(bytes < without_mark, "{lie}: the mark is not used, {bytes} bytes");
            let (mut reader, mut other) = (Client::login(&iggy).await, Client::login(&iggy).await);
            let (unreadable, end) = poll_each(&mut reader).await;
            assert_eq!((unreadable, end), (vec![], MESSAGES), "{lie}");
            expect_others_undisturbed(&mut other).await;
        });
    }
}

/// A server, and how many bytes its start has read. A start that refuses a mark reads all of the last file too.
async fn start_and_count() -> (Rc<Iggy>, u64) {
    let world = World::current();
    world.note("it starts");
    let iggy = start().await;
    let bytes = bytes_read(&world, "it starts");
    (iggy, bytes)
}

/// Changes the index in a mark, whose entries are a position, an offset and a time, and makes the CRC right: see
/// `mark.rs` of the log.
fn forge(mark: &mut Vec<u8>, change: fn(&mut Vec<[u64; 3]>)) {
    let entries = mark.split_off(56);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let fields = |entry: &[u8]| [&entry[..8], &entry[8..16], &entry[16..]].map(number);
    let mut entries: Vec<_> = entries.chunks(24).map(fields).collect();
    change(&mut entries);
    mark[20..24].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    mark.extend(entries.as_flattened().iter().flat_map(|field| field.to_le_bytes()));
    let crc = crc32c::crc32c(&mark[16..]);
    mark[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// One byte anywhere in the partition, or the end of a file. Either the start is refused and names the file, or each
/// message is the one that was sent, or is refused. After a kill, the last batch may be gone, because nothing says
/// that it was on the disk.
#[test]
fn whatever_is_damaged_nothing_is_invented() {
    run(seeds(100), async |world: World| {
        let ending = if world.random(2) == 0 { End::Clean } else { End::Killed };
        fill(ending).await;
        let mut paths = files().await;
        let last = paths.last().unwrap().clone();
        if ending == End::Clean {
            paths.insert(0, last.with_file_name("clean"));
        }
        let chosen = world.random(paths.len() as u64) as usize;
        let path = &paths[chosen];
        let len = read(path).await.len() as u64;
        let (at, what) = (world.random(len) as usize, world.random(4));
        edit(path, |bytes| match what {
            0 => bytes.truncate(at),
            1 => bytes.extend(vec![what as u8; at]),
            _ => bytes[at] ^= 1 << (at % 8),
        })
        .await;

        let iggy = match open(SyncPolicy::Batch).await {
            Ok(iggy) => iggy,
            Err(error) => {
                let is_named = error.to_string().contains(&path.display().to_string());
                assert!(is_named && *path == last, "{error}");
                return Ok(());
            }
        };
        let (mut reader, mut other) = (Client::login(&iggy).await, Client::login(&iggy).await);
        let (unreadable, end) = poll_each(&mut reader).await;
        let in_file = match path.extension().is_some_and(|extension| extension == "log") {
            true => {
                base_offset(path)..paths.get(chosen + 1).map_or(MESSAGES, |next| base_offset(next))
            }
            false => 0..0, // without the mark, the last file is read
        };
        assert!(unreadable.iter().all(|offset| in_file.contains(offset)), "{unreadable:?}");
        // The last file may have lost its last batch. A file that is cut looks as if no more had been written.
        let end_min = match *path == last {
            true if what == 0 => in_file.start,
            true if ending == End::Killed => MESSAGES - BATCH,
            _ => MESSAGES,
        };
        assert!((end_min..=MESSAGES).contains(&end), "{end} messages are left");
        expect_others_undisturbed(&mut other).await;
        Ok(())
    });
}
