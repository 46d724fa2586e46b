//! A process that appends is killed at random moments. What it had said to be acknowledged is there, in order, and
//! nothing else than what it had appended.

#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use common::{read_all, scratch, small};
use owned_io::{Executor, Random};
use owned_io_log::{Batch, Partition};
use owned_io_tokio::Tokio;

/// The directory and the first number of a child.
const CHILD: &str = "OWNED_IO_LOG_CHILD";
const FIRST: &str = "OWNED_IO_LOG_FIRST";

/// How many numbers each child may use.
const NUMBERS: u64 = 1_000_000;

const KILLS: u64 = 10;

#[test]
fn acknowledged_batches_survive_a_kill() {
    let dir = Tokio::block_on(Default::default(), async { scratch::<Tokio>() }).unwrap();
    let mut acknowledged = BTreeMap::new();
    for round in 0..KILLS {
        let output = run_and_kill(&dir, round * NUMBERS);
        acknowledged.extend(output);
        let stored = Tokio::block_on(Default::default(), async {
            let (log, _) = Partition::<Tokio>::open(&dir, small()).await.expect("it opens");
            let stored = read_all(&log, 0, 1 << 20).await.expect("it is read");
            log.close().await.expect("it is closed");
            stored
        });
        check(&stored.unwrap(), &acknowledged, (round + 1) * NUMBERS);
    }
    assert!(!acknowledged.is_empty(), "no child lived long enough to append");
    std::fs::remove_dir_all(dir).unwrap();
}

/// The base offsets that a child has said to be acknowledged, and the numbers of the batches there.
fn run_and_kill(dir: &Path, first: u64) -> Vec<(u64, u64)> {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, dir)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    // It is killed a while after its first acknowledgement, so on a slow machine too.
    let mut lines = output.split(b'\n').map(|line| String::from_utf8(line.unwrap()).unwrap());
    let mut said = Vec::new();
    let first_line = lines.by_ref().find(|line| line.starts_with("ack "));
    let mut wait = [0];
    Tokio::fill_random(&mut wait);
    std::thread::sleep(Duration::from_micros(u64::from(wait[0]) * 200));
    child.kill().unwrap();
    for line in first_line.into_iter().chain(lines) {
        // The last line may be cut: its end says whether it is whole.
        let fields: Vec<_> = line.split(' ').collect();
        if let ["ack", base_offset, number, "."] = fields[..] {
            said.push((base_offset.parse().unwrap(), number.parse().unwrap()));
        }
    }
    child.wait().unwrap();
    said
}

fn check(stored: &[Batch], acknowledged: &BTreeMap<u64, u64>, number_max: u64) {
    let mut next = 0;
    let mut seen = BTreeMap::new();
    for batch in stored {
        assert_eq!(batch.base_offset, next, "a gap");
        next = batch.next_offset();
        let number = u64::from_le_bytes(batch.bytes[..8].try_into().unwrap());
        assert!(number < number_max, "batch {number} was never appended");
        assert_eq!(batch.bytes, batch_bytes(number), "batch {number}");
        seen.insert(batch.base_offset, number);
    }
    for (base_offset, number) in acknowledged {
        assert_eq!(seen.get(base_offset), Some(number), "what was acknowledged at {base_offset}");
    }
}

fn batch_bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..(number * 97) % 900).map(|at| (number + at) as u8));
    bytes
}

/// Not a test of its own: what the killed process runs.
#[test]
fn child() {
    let Some(dir) = env::var_os(CHILD).map(PathBuf::from) else { return };
    let first: u64 = env::var(FIRST).unwrap().parse().unwrap();
    let run = async move {
        let (log, _) = Partition::<Tokio>::open(dir, small()).await.expect("it opens");
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let log = log.clone();
                Tokio::spawn(async move {
                    for number in (first + writer..first + NUMBERS).step_by(3) {
                        let stamp = |_| [Bytes::from(batch_bytes(number))];
                        let appended = log.append(1, stamp).await.expect("it is appended");
                        let line = format!("ack {} {number} .\n", appended.base_offset);
                        std::io::stdout().write_all(line.as_bytes()).expect("the parent reads");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.expect("no panic");
        }
    };
    Tokio::block_on(Default::default(), run).unwrap();
}
