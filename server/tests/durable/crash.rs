//! Whatever was acknowledged is there, nothing is invented, nothing is out of order: whenever the power fails, the
//! process is killed, the disk is full or slow, or a sync fails. And a canary, which breaks the promise and is caught.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use owned_io::{Clock, Executor};
use owned_io_log::SyncPolicy;
use owned_io_server::iggy::Status;
use owned_io_server::iggy::workers::Iggy;
use owned_io_sim::{Config, Fault, FaultPlan, Host, Sim, World, run, seeds, simulate};

use super::client::{Client, open};

const WRITERS: u8 = 3;

/// A message says who sent it, and how many the same writer has sent before it.
type Sent = (u8, u64);

/// What the clients know of the server.
struct Known {
    /// How many messages each writer has submitted.
    submitted: RefCell<BTreeMap<u8, u64>>,
    /// By partition.
    acknowledged: RefCell<BTreeMap<u32, BTreeSet<Sent>>>,
    /// Whether each topic may be there: one answer if the last change of it was acknowledged.
    topics: RefCell<BTreeMap<String, Vec<bool>>>,
    /// Which offset may be stored.
    offsets: RefCell<Vec<Option<u64>>>,
    opened: Cell<u32>,
    failed: Cell<u32>,
    /// How many acknowledged messages were looked for, and found.
    found: Cell<usize>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            submitted: RefCell::default(),
            acknowledged: RefCell::default(),
            topics: RefCell::default(),
            offsets: RefCell::new(vec![None]),
            opened: Cell::new(0),
            failed: Cell::new(0),
            found: Cell::new(0),
        }
    }
}

impl Known {
    /// Compares what the server has with what it may have.
    async fn check(&self, client: &mut Client) {
        let topics = client.topics().await;
        for (topic, may_be) in &mut *self.topics.borrow_mut() {
            let is_there = topics.contains(topic);
            assert!(may_be.contains(&is_there), "topic {topic}: {is_there}, may be {may_be:?}");
            *may_be = vec![is_there];
        }
        if !topics.contains(&"m".to_owned()) {
            // It may be missing only as long as its creation was not acknowledged.
            assert!(
                self.acknowledged.borrow().is_empty(),
                "the messages are gone with their topic"
            );
            return;
        }
        for partition in 0..2 {
            let polled = client.poll_all("m", partition, 40).await.expect("it can be read");
            let mut seen = BTreeMap::<u8, u64>::new();
            let mut found = BTreeSet::new();
            for (expected, (offset, payload)) in (0..).zip(polled) {
                assert_eq!(offset, expected, "a gap");
                let (writer, number) = decode(&payload);
                assert!(number < self.submitted.borrow()[&writer], "it was never submitted");
                if let Some(before) = seen.insert(writer, number) {
                    assert!(before < number, "{writer}: {before} is before {number}");
                }
                found.insert((writer, number));
            }
            let acknowledged = self.acknowledged.borrow();
            for sent in acknowledged.get(&partition).into_iter().flatten() {
                assert!(found.contains(sent), "{sent:?} was acknowledged");
                self.found.set(self.found.get() + 1);
            }
        }
        let (stored, mut may_be) = (client.offset("m", 0).await, self.offsets.borrow_mut());
        assert!(may_be.contains(&stored), "{stored:?} of {may_be:?}");
        *may_be = vec![stored];
    }
}

fn encode((writer, number): Sent) -> Vec<u8> {
    let mut payload = vec![writer];
    payload.extend(number.to_le_bytes());
    payload.extend((0..number * 97 % 500).map(|at| (number + at) as u8));
    payload
}

fn decode(payload: &[u8]) -> Sent {
    let number = u64::from_le_bytes(payload[1..9].try_into().expect("it begins with its number"));
    let sent = (payload[0], number);
    assert_eq!(payload, encode(sent), "the bytes have changed");
    sent
}

/// Opens the server, compares what it has, and uses it by several clients, until the host goes down or all have failed.
async fn serve(known: Rc<Known>, sync: SyncPolicy) -> io::Result<()> {
    loop {
        let iggy = match open(sync).await {
            Ok(iggy) => iggy,
            Err(error) => {
                // Nothing that was synced is damaged, and the lock of the server before is not there for long.
                assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                Sim::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let mut client = Client::login(&iggy).await;
        known.check(&mut client).await;
        known.opened.set(known.opened.get() + 1);
        if use_it(&known, &iggy, client).await.is_err() {
            known.failed.set(known.failed.get() + 1);
        }
        let _ = iggy.close().await;
    }
}

async fn use_it(known: &Rc<Known>, iggy: &Rc<Iggy>, mut client: Client) -> Result<(), u32> {
    if !client.topics().await.contains(&"m".to_owned()) {
        let _ = client.create_stream().await; // it may be there
        known.topics.borrow_mut().insert("m".to_owned(), vec![false, true]);
        client.create_topic("m", 2, (0, 0)).await?;
        known.topics.borrow_mut().insert("m".to_owned(), vec![true]);
    }
    let mut tasks = vec![Sim::spawn(change(client, Rc::clone(known)))];
    for writer in 0..WRITERS {
        let client = Client::login(iggy).await;
        tasks.push(Sim::spawn(write(writer, client, Rc::clone(known))));
    }
    for task in tasks {
        let _ = task.await;
    }
    Ok(())
}

async fn write(writer: u8, mut client: Client, known: Rc<Known>) {
    loop {
        let first = *known.submitted.borrow_mut().entry(writer).or_default();
        let sent: Vec<Sent> = (first..=first + first % 3).map(|number| (writer, number)).collect();
        known.submitted.borrow_mut().insert(writer, first + sent.len() as u64);
        let partition = World::current().random(2) as u32;
        let payloads: Vec<_> = sent.iter().copied().map(encode).collect();
        match client.send("m", partition, &payloads).await {
            Ok(()) => known.acknowledged.borrow_mut().entry(partition).or_default().extend(sent),
            Err(status) => {
                known.failed.set(known.failed.get() + 1);
                if status != Status::TopicFull.code().get() {
                    return;
                }
            }
        }
        Sim::sleep(Duration::from_micros(World::current().random(3_000))).await;
    }
}

/// Creates and deletes topics, and stores offsets.
async fn change(mut client: Client, known: Rc<Known>) {
    loop {
        let world = World::current();
        let done = if world.random(2) == 0 {
            let topic = format!("t{}", world.random(4));
            let is_there = client.topics().await.contains(&topic);
            known
                .topics
                .borrow_mut()
                .entry(topic.clone())
                .or_insert_with(|| vec![is_there])
                .push(!is_there);
            let changed = match is_there {
                true => client.delete_topic(&topic).await,
                false => client.create_topic(&topic, 1, (0, 0)).await,
            };
            changed.map(|()| _ = known.topics.borrow_mut().insert(topic, vec![!is_there]))
        } else {
            let count = client.topic("m").await.partitions[0].messages_count;
            let offset = (count > 0).then(|| world.random(count));
            match offset {
                None => Ok(()),
                Some(stored) => {
                    known.offsets.borrow_mut().push(offset);
                    let done = client.store_offset("m", 0, stored).await;
                    done.map(|()| *known.offsets.borrow_mut() = vec![offset])
                }
            }
        };
        if done.is_err() {
            return;
        }
        Sim::sleep(Duration::from_micros(World::current().random(10_000))).await;
    }
}

/// Crashes, kills, and faults of the disk except read errors, and a crash at the end. Returns the time of the crash too.
fn faults(world: &World, host: &Host) -> (FaultPlan, Duration) {
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

async fn scenario(world: World, known: Rc<Known>, sync: SyncPolicy) -> io::Result<()> {
    let host = world.host("disk");
    let (plan, last) = faults(&world, &host);
    host.start({
        let known = Rc::clone(&known);
        move || serve(Rc::clone(&known), sync)
    });
    world.inject(plan);
    Sim::sleep(last + Duration::from_millis(1)).await;
    let before = known.opened.get();
    // Bounded by the events of a simulation.
    while known.opened.get() == before {
        Sim::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[test]
fn acknowledged_messages_and_changes_survive_everything() {
    let (acknowledged, failed, found) = (Cell::new(0), Cell::new(0), Cell::new(0));
    run(seeds(100), async |world| {
        let known = Rc::<Known>::default();
        scenario(world, Rc::clone(&known), SyncPolicy::Batch).await?;
        let count: usize = known.acknowledged.borrow().values().map(BTreeSet::len).sum();
        acknowledged.set(acknowledged.get() + count);
        failed.set(failed.get() + known.failed.get());
        found.set(found.get() + known.found.get());
        Ok(())
    });
    assert!(acknowledged.get() > 0 && failed.get() > 0, "the faults have no effect");
    assert!(found.get() > 0, "no acknowledged message was looked for after a restart");
}

/// The canary: a server that acknowledges before the sync.
#[test]
fn acknowledging_before_the_sync_is_caught() {
    let caught = (0..100).find_map(|seed| {
        let run = || {
            simulate(Config::with_seed(seed), async |world| {
                scenario(world, Rc::default(), SyncPolicy::Never).await
            })
        };
        let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
        Some(owned_io::Panicked::new(panic).message().to_owned())
    });
    let why = caught.expect("no seed has caught it");
    assert!(why.contains("was acknowledged") || why.contains("may be"), "{why}");
}
