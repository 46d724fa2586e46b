//! Nothing that was acknowledged is lost, nothing is invented, nothing is out of order: whenever the power fails, the
//! process is killed, the disk is full or slow, or a sync fails. And canaries, which break the promise and are caught.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use common::{read_all, small};
use owned_io::{Clock, Executor};
use owned_io_log::{Batch, ErrorKind, Journal, Partition, PartitionConfig, SyncPolicy};
use owned_io_sim::{Config, Fault, FaultPlan, Host, Sim, World, run, seeds, simulate};

/// What the clients of a log know.
#[derive(Default)]
struct Clients {
    /// The batches that were submitted, by their number.
    submitted: Cell<u64>,
    /// The numbers of the acknowledged batches, by their base offset.
    acknowledged: RefCell<BTreeMap<u64, u64>>,
    /// How often the log was opened, and how often a batch failed.
    opened: Cell<u32>,
    failed: Cell<u32>,
}

impl Clients {
    /// Checks what a log has that was opened.
    fn check(&self, batches: &[Batch]) {
        let mut next = 0;
        let mut seen = BTreeMap::new();
        for batch in batches {
            assert_eq!(batch.base_offset, next, "a gap");
            next = batch.next_offset();
            let number = number_of(batch);
            assert!(number < self.submitted.get(), "batch {number} was never submitted");
            assert_eq!(batch.bytes, batch_bytes(number), "batch {number}");
            assert!(
                seen.insert(number, batch.base_offset).is_none(),
                "batch {number} is twice there"
            );
        }
        for (base_offset, number) in &*self.acknowledged.borrow() {
            assert_eq!(
                seen.get(number),
                Some(base_offset),
                "batch {number} was acknowledged at {base_offset}"
            );
        }
    }
}

fn batch_bytes(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend((0..(number * 97) % 900).map(|at| (number + at) as u8));
    bytes
}

fn number_of(batch: &Batch) -> u64 {
    u64::from_le_bytes(batch.bytes[..8].try_into().expect("each batch begins with its number"))
}

/// A service that opens the log, checks it, and appends by several tasks, until the host goes down or the log fails.
async fn serve(clients: Rc<Clients>, config: PartitionConfig) -> io::Result<()> {
    loop {
        let opened = Partition::<Sim>::open("/data/stream/0", config).await;
        let (log, _) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // Not `Corrupt`: these faults damage nothing that was synced. Not `Locked` for long.
                let is_passing = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Locked];
                assert!(is_passing.contains(&error.kind()), "{error}");
                Sim::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        clients.opened.set(clients.opened.get() + 1);
        match read_all(&log, 0, 5_000).await {
            Ok(batches) => clients.check(&batches),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
        let writers: Vec<_> =
            (0..3).map(|_| Sim::spawn(write(log.clone(), Rc::clone(&clients)))).collect();
        for writer in writers {
            let _ = writer.await;
        }
        let _ = log.close().await;
    }
}

async fn write(log: Partition<Sim>, clients: Rc<Clients>) {
    loop {
        let number = clients.submitted.get();
        clients.submitted.set(number + 1);
        let stamp = |_| [Bytes::from(batch_bytes(number))];
        match log.append(1 + (number % 3) as u32, stamp).await {
            Ok(appended) => {
                let before = clients.acknowledged.borrow_mut().insert(appended.base_offset, number);
                assert_eq!(before, None, "two batches at {}", appended.base_offset);
            }
            Err(error) => {
                clients.failed.set(clients.failed.get() + 1);
                if error.kind() != ErrorKind::NoSpace {
                    return;
                }
            }
        }
        let pause = World::current().random(3_000);
        Sim::sleep(Duration::from_micros(pause)).await;
    }
}

/// Crashes, kills, and faults of the disk except read errors, and a crash at the end. Returns the time of the crash too.
fn faults(world: World, host: &Host) -> (FaultPlan, Duration) {
    let mut plan = FaultPlan::new();
    let mut at = Duration::ZERO;
    for _ in 0..1 + world.random(5) {
        at += Duration::from_micros(10_000 + world.random(150_000));
        let lasts = Duration::from_micros(1 + world.random(20_000));
        let host = host.clone();
        plan = plan.at(
            at,
            match world.random(8) {
                0 | 1 => Fault::Crash { host, down: lasts },
                2 | 3 => Fault::Kill { host, down: lasts },
                4 | 5 => Fault::SyncErrors { host, lasts },
                6 => Fault::DiskFull { host, lasts },
                _ => Fault::SlowDisk { host, lasts },
            },
        );
    }
    let last = at + Duration::from_millis(20);
    (plan.at(last, Fault::Crash { host: host.clone(), down: Duration::from_millis(10) }), last)
}

/// Waits for the last crash, and until the host has opened its log again.
async fn wait_for_the_end(last: Duration, opened: &Cell<u32>) {
    Sim::sleep(last + Duration::from_millis(1)).await;
    let before = opened.get();
    // Bounded by the events of a simulation.
    while opened.get() == before {
        Sim::sleep(Duration::from_millis(10)).await;
    }
    Sim::sleep(Duration::from_millis(20)).await;
}

async fn scenario(world: World, clients: Rc<Clients>, config: PartitionConfig) -> io::Result<()> {
    let host = world.host("disk");
    let (plan, last) = faults(world, &host);
    host.start({
        let clients = Rc::clone(&clients);
        move || serve(Rc::clone(&clients), config)
    });
    world.inject(plan);
    wait_for_the_end(last, &clients.opened).await;
    assert!(!clients.acknowledged.borrow().is_empty(), "something was acknowledged");
    Ok(())
}

#[test]
fn acknowledged_batches_survive_everything() {
    let (opened, failed) = (Cell::new(0), Cell::new(0));
    run(seeds(100), async |world| {
        let clients = Rc::<Clients>::default();
        scenario(world, Rc::clone(&clients), small()).await?;
        opened.set(opened.get() + clients.opened.get());
        failed.set(failed.get() + clients.failed.get());
        Ok(())
    });
    assert!(failed.get() > 0 && opened.get() > 0, "the faults have no effect");
}

/// Runs the scenario until a seed fails, and returns how.
fn caught(config: PartitionConfig) -> Option<String> {
    (0..100).find_map(|seed| {
        let run = || {
            simulate(Config::with_seed(seed), async |world| {
                scenario(world, Rc::default(), config).await
            })
        };
        let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
        Some(owned_io::Panicked::new(panic).message().to_owned())
    })
}

/// The canary: a log that acknowledges before the sync.
#[test]
fn acknowledging_before_the_sync_is_caught() {
    for policy in [SyncPolicy::Never, SyncPolicy::Interval(Duration::from_millis(5))] {
        let mut config = small();
        config.sync = policy;
        let why = caught(config).unwrap_or_else(|| panic!("{policy} is not caught"));
        let is_loss = why.contains("was acknowledged at") || why.contains("two batches at");
        assert!(is_loss || why.contains("is damaged"), "{policy}: {why}");
    }
}

/// The state of a journal is that of all acknowledged changes, and of no others, however it ends.
#[test]
fn the_state_of_a_journal_survives_everything() {
    run(seeds(50), async |world| {
        let host = world.host("disk");
        // By key: the last value that was acknowledged, and all that were submitted after it.
        let known = Rc::new(RefCell::new(BTreeMap::<u8, Vec<u32>>::new()));
        let opened = Rc::new(Cell::new(0));
        let (plan, last) = faults(world, &host);
        host.start({
            let (known, opened) = (Rc::clone(&known), Rc::clone(&opened));
            move || keep_state(Rc::clone(&known), Rc::clone(&opened))
        });
        world.inject(plan);
        wait_for_the_end(last, &opened).await;
        assert!(!known.borrow().is_empty());
        Ok(())
    });
}

type Known = Rc<RefCell<BTreeMap<u8, Vec<u32>>>>;

async fn keep_state(known: Known, opened: Rc<Cell<u32>>) -> io::Result<()> {
    let mut value = 1_000_000 * opened.get();
    loop {
        let open = Journal::<Sim>::open(Path::new("/data/state"), small()).await;
        let Ok((journal, replay)) = open.inspect_err(|error| {
            let is_passing = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Locked];
            assert!(is_passing.contains(&error.kind()), "{error}");
        }) else {
            Sim::sleep(Duration::from_millis(50)).await;
            continue;
        };
        opened.set(opened.get() + 1);
        let journal = Rc::new(journal);
        let mut state = BTreeMap::<u8, u32>::new();
        let snapshot = replay.snapshot.unwrap_or_default();
        for record in snapshot.chunks(5).chain(replay.records.iter().map(|record| &record[..])) {
            state.insert(record[0], u32::from_le_bytes(record[1..].try_into().unwrap()));
        }
        for (key, values) in &mut *known.borrow_mut() {
            let found = state.get(key).copied().unwrap_or(0);
            assert!(values.contains(&found), "{key} is {found}, and may be {values:?}");
            *values = vec![found];
        }
        loop {
            value += 1;
            let key = World::current().random(8) as u8;
            let mut record = vec![key];
            record.extend(value.to_le_bytes());
            known.borrow_mut().entry(key).or_insert_with(|| vec![0]).push(value);
            state.insert(key, value);
            let appending = Sim::spawn({
                let journal = Rc::clone(&journal);
                async move { journal.append(record.into()).await }
            });
            Sim::sleep(Duration::ZERO).await; // it begins, and runs while the snapshot is made
            if journal.bytes_since_snapshot() > 300 {
                let records = state
                    .iter()
                    .flat_map(|(key, value)| [*key].into_iter().chain(value.to_le_bytes()));
                let _ = journal.snapshot(records.collect()).await;
            }
            match appending.await.expect("no panic") {
                Ok(()) => _ = known.borrow_mut().insert(key, vec![value]),
                Err(error) if error.kind() == ErrorKind::NoSpace => {}
                Err(_) => break,
            }
            Sim::sleep(Duration::from_micros(World::current().random(2_000))).await;
        }
        let journal = Rc::into_inner(journal).expect("no task has it");
        let _ = journal.close().await;
    }
}
