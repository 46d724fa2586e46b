//! Events over HTTP into a directory: what a client is told of a disk that is full or fails, and what is there after a
//! loss of power.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{ByteStream, Clock, Executor, MemoryAccount, OwnedRead, OwnedWriteExt};
use owned_io_log::SyncPolicy;
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::workers::Iggy;
use owned_io_server::memory::Memory;
use owned_io_server::service::http;
use owned_io_sim::{Fault, Sim, SimStream, World, run, seeds};

use super::client::{Client, open};
use super::restart::{UNLIMITED, payload, start};

const SECOND: Duration = Duration::from_secs(1);

/// A client's end of a connection for HTTP, and its account.
fn connect(iggy: &Rc<Iggy>) -> (SimStream, MemoryAccount) {
    let memory = Memory::divide(64 << 20, 100).expect("enough memory");
    let mut resources = Resources::new(memory, None, WebSockets::default(), Limits::default());
    resources.iggy = Some(Rc::clone(iggy));
    let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
    let (client, serving) = owned_io_sim::pipe();
    let connection = connections.add(serving.shutdown_handle());
    let account = connection.account().clone();
    let ctx = Context { connection, worker: Rc::new(resources) };
    drop(Sim::spawn(async move {
        let _ = http::serve::<Sim>(serving, &ctx).await; // an error: the client has gone
    }));
    (client, account)
}

/// A request to append lines to partition 0, the last one of its connection.
fn post(topic: &str, lines: &[Vec<u8>]) -> Vec<u8> {
    let body = lines.join(&b'\n');
    // iggy:secret
    let head = format!(
        "POST /events/s/{topic}?partition=0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
         Authorization: Basic aWdneTpzZWNyZXQ=\r\nContent-Type: application/x-ndjson\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

/// The status and the body of the answer.
async fn ask(iggy: &Rc<Iggy>, request: Vec<u8>) -> io::Result<(u16, String)> {
    let (client, _) = connect(iggy);
    let (mut read, mut write) = client.into_split();
    write.write_all(request).await.into_result()?;
    let mut answer = Vec::new();
    loop {
        let (n, bytes) = read.read(Vec::with_capacity(4096)).await.into_result()?;
        if n == 0 {
            break;
        }
        answer.extend_from_slice(&bytes);
    }
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    Ok((head["HTTP/1.1 ".len()..][..3].parse().expect("a status"), body.to_owned()))
}

/// Lines without line ends.
fn lines(from: u64, count: u64) -> Vec<Vec<u8>> {
    let line = |n| payload(n).into_iter().map(|byte| byte.max(b' ')).collect();
    (from..from + count).map(line).collect()
}

async fn create(iggy: &Rc<Iggy>) -> Client {
    let mut client = Client::login(iggy).await;
    client.create_stream().await.unwrap();
    client.create_topic("t", 1, UNLIMITED).await.unwrap();
    client.create_topic("other", 1, UNLIMITED).await.unwrap();
    client
}

async fn payloads(client: &mut Client, topic: &str) -> Vec<Vec<u8>> {
    let polled = client.poll_all(topic, 0, 100).await.unwrap();
    polled.into_iter().map(|(_, payload)| payload).collect()
}

#[test]
fn a_failed_sync_is_an_error_and_no_acknowledgement() {
    run(seeds(20), async |world: World| {
        let iggy = start().await;
        let mut client = create(&iggy).await;
        assert_eq!(ask(&iggy, post("t", &lines(0, 3))).await?.0, 200);
        world.apply(Fault::SyncErrors { host: world.main_host(), lasts: SECOND });
        let (status, body) = ask(&iggy, post("t", &lines(3, 3))).await?;
        assert!(status == 500 && body.contains("could not be stored"), "{status} {body}");
        Sim::sleep(2 * SECOND).await;
        assert_eq!(ask(&iggy, post("t", &lines(6, 3))).await?.0, 500, "the disk may have lost it");
        assert_eq!(payloads(&mut client, "t").await, lines(0, 3));
        assert_eq!(ask(&iggy, post("other", &lines(9, 3))).await?.0, 200);
        drop((iggy, client));
        Sim::sleep(SECOND).await;

        let mut client = Client::login(&start().await).await;
        let found = payloads(&mut client, "t").await;
        // The events that were refused may be there: all of a request, or none.
        assert!([3, 6].contains(&found.len()) && found == lines(0, found.len() as u64));
        assert_eq!(payloads(&mut client, "other").await, lines(9, 3));
        Ok(())
    });
}

#[test]
fn a_full_disk_is_told_and_takes_no_part_of_a_batch() {
    run(seeds(20), async |world: World| {
        world.main_host().limit_disk(60_000);
        let iggy = start().await;
        let mut client = create(&iggy).await;
        let mut appended = 0;
        let (status, body) = loop {
            let (status, body) = ask(&iggy, post("t", &lines(appended, 10))).await?;
            if status != 200 {
                break (status, body);
            }
            appended += 10;
            assert!(appended < 1_000, "the disk is never full");
        };
        assert!(status == 507 && body.contains("no room"), "{status} {body}");
        assert_eq!(payloads(&mut client, "t").await, lines(0, appended));
        client.purge_topic("t").await.unwrap();
        assert_eq!(ask(&iggy, post("t", &lines(0, 10))).await?.0, 200);
        Ok(())
    });
}

/// Its client may wait for it before it sends more.
#[test]
fn the_answer_to_an_earlier_request_does_not_wait_for_the_log() {
    run(seeds(10), async |world: World| {
        let iggy = start().await;
        let mut another = create(&iggy).await;
        let (mut client, _) = connect(&iggy);
        world.apply(Fault::SlowDisk { host: world.main_host(), lasts: Duration::from_secs(10) });
        let health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
        client.write_all([health, post("t", &lines(0, 3))].concat()).await.into_result()?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            let (n, byte) = client.read(Vec::with_capacity(1)).await.into_result()?;
            assert_eq!(n, 1, "the end of the stream");
            answer.extend_from_slice(&byte);
        }
        assert_eq!(another.topic("t").await.topic.messages_count, 0);
        Ok(())
    });
}

/// A client that sends and leaves at once: its batch is in the account of its connection until it is stored.
#[test]
fn a_batch_is_held_by_its_connection_although_the_client_has_gone() {
    const LONG: usize = 3 << 20;
    run(seeds(10), async |world: World| {
        let iggy = start().await;
        let mut another = create(&iggy).await;
        let (mut client, account) = connect(&iggy);
        let lasts = Duration::from_secs(10);
        world.apply(Fault::SlowDisk { host: world.main_host(), lasts });
        client.write_all(post("t", &[vec![b'e'; LONG]])).await.into_result()?;
        drop(client);
        let mut has_arrived = false;
        loop {
            let held = account.held_bytes();
            if another.topic("t").await.topic.messages_count > 0 {
                break;
            }
            has_arrived |= held >= LONG;
            assert!(!has_arrived || held >= LONG, "{held} are held while it is written");
            Sim::sleep(Duration::from_millis(1)).await;
        }
        assert!(has_arrived);
        Sim::sleep(SECOND).await;
        assert_eq!(account.held_bytes(), 0);
        Ok(())
    });
}

/// How many events there are in a request until the power fails.
const BATCH: u64 = 4;

/// Appends events, and counts those that are acknowledged.
async fn append_until_the_end(acknowledged: Rc<Cell<u64>>) -> io::Result<()> {
    let iggy = open(SyncPolicy::Batch).await?;
    create(&iggy).await;
    loop {
        let n = acknowledged.get();
        assert_eq!(ask(&iggy, post("t", &lines(n, BATCH))).await?.0, 200);
        acknowledged.set(n + BATCH);
    }
}

/// With each seed at another moment. What was answered by 200 is there, in order, and each batch is whole.
#[test]
fn acknowledged_events_survive_a_loss_of_power() {
    let total = Cell::new(0);
    run(seeds(40), async |world: World| {
        let host = world.host("disk");
        let acknowledged = Rc::new(Cell::new(0));
        let serving = host.spawn(append_until_the_end(Rc::clone(&acknowledged)));
        Sim::sleep(Duration::from_micros(5_000 + world.random(50_000))).await;
        let down = Duration::from_millis(10);
        world.apply(Fault::Crash { host: host.clone(), down });
        drop(serving);
        Sim::sleep(2 * down).await;
        let acknowledged = acknowledged.get();
        let checked = host.spawn(async move {
            let mut client = Client::login(&start().await).await;
            if client.topics().await.is_empty() {
                return assert_eq!(acknowledged, 0);
            }
            let found = payloads(&mut client, "t").await;
            let count = found.len() as u64;
            assert!(found == lines(0, count));
            assert!(
                [acknowledged, acknowledged + BATCH].contains(&count),
                "{count} of {acknowledged}"
            );
        });
        checked.await.expect("no panic");
        total.set(total.get() + acknowledged);
        Ok(())
    });
    assert!(total.get() > 100, "little was appended: {}", total.get());
}
