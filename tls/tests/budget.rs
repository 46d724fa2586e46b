//! A budget reserves what connections hold. Connections that hold much give it up, and others continue.

mod common;
#[path = "../../websocket/tests/counting/mod.rs"]
mod counting;

use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use common::{Plain, acceptor, pattern, tls_error};
use counting::{allocations, live_bytes};
use owned_io::{
    ByteStream, Clock, Executor, JoinHandle, MemoryBudget, OwnedRead, OwnedReadExt, OwnedWriteExt,
    Pool, PoolConfig, select,
};
use owned_io_sim::{Sim, SimStream};
use owned_io_tls::{Buffers, TlsError, TlsStream};

const KIB: usize = 1024;
const CONNECTIONS: usize = 20;

fn buffers(budget: &MemoryBudget) -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), budget.clone())
}

async fn connection(buffers: &Buffers) -> (Plain<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let buffers = buffers.clone();
    let server = Sim::spawn(async move { acceptor().accept::<Sim, _>(b, &buffers).await.unwrap() });
    (Plain::connected(a).await, server.await.unwrap())
}

/// The server's task for one connection, until that fails.
async fn failing(serve: impl Future<Output = io::Result<()>>) -> io::Error {
    serve.await.expect_err("it is never done")
}

async fn echo(mut stream: TlsStream<SimStream>) -> io::Result<()> {
    loop {
        let (n, bytes) = stream.read(Vec::with_capacity(16 * KIB)).await.into_result()?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(bytes).await.into_result()?;
    }
}

/// A neighbour echoes a message each 100 ms for a while. Returns the most that was held meanwhile, of the budget and
/// of all memory.
async fn neighbour_goes_on(buffers: &Buffers, seconds: u64) -> (usize, isize) {
    let (mut client, server) = connection(buffers).await;
    let serving = Sim::spawn(echo(server));
    let sent = pattern(1000);
    let (mut held_max, mut live_max) = (0, 0);
    for _ in 0..seconds * 10 {
        let before = Sim::now();
        client.write(&sent).await;
        assert_eq!(client.read_exact(sent.len()).await, sent);
        let took = Sim::now() - before;
        assert!(took < Duration::from_millis(100), "{took:?}");
        held_max = held_max.max(buffers.budget().common_bytes_held());
        live_max = live_max.max(live_bytes());
        Sim::sleep(Duration::from_millis(100)).await;
    }
    drop(client);
    let _ = serving.await;
    (held_max, live_max)
}

fn count_evicted(errors: &[io::Error]) -> usize {
    let is_evicted = |error: &&io::Error| {
        error.kind() == io::ErrorKind::QuotaExceeded && *tls_error(error) == TlsError::Evicted
    };
    errors.iter().filter(is_evicted).count()
}

/// The connections that have failed by now. The others are dropped.
async fn failures(serving: Vec<JoinHandle<io::Error>>) -> Vec<io::Error> {
    let mut errors = Vec::new();
    for task in serving {
        let mut task = pin!(task);
        let waited = Sim::sleep(Duration::from_millis(1));
        if let Some(error) = select(task.as_mut(), waited).await.first {
            errors.push(error.unwrap());
        }
    }
    errors
}

#[test]
fn connections_with_part_of_a_record_hold_no_more_than_the_budget() {
    owned_io_sim::block_on(async {
        let shares = (CONNECTIONS + 1) * 4 * KIB;
        let budget = MemoryBudget::new(shares + 100 * KIB).with_shares(CONNECTIONS + 1, shares);
        let buffers = buffers(&budget);
        let (mut clients, mut serving) = (Vec::new(), Vec::new());
        let before = live_bytes();
        for _ in 0..CONNECTIONS {
            let (mut client, mut server) = connection(&buffers).await;
            let mut record = client.encrypted(&[7; 16_000]);
            record.truncate(15_000);
            client.stream.write_all(record).await.into_result().unwrap();
            clients.push(client);
            serving.push(Sim::spawn(failing(async move {
                server.read(Vec::with_capacity(16 * KIB)).await.into_result()?;
                Ok(())
            })));
        }
        let (held_max, live_max) = neighbour_goes_on(&buffers, 20).await;
        println!("{held_max} bytes of the budget, {} in all", live_max - before);
        assert!((60 * KIB..=100 * KIB).contains(&held_max), "{held_max}");
        let errors = failures(serving).await;
        let evicted = count_evicted(&errors);
        assert_eq!(evicted, errors.len(), "{errors:?}");
        assert!(evicted >= CONNECTIONS / 2, "{evicted}");
        drop(clients);
    });
}

#[test]
fn connections_whose_peers_do_not_read_hold_no_more_than_the_budget() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(400 * KIB).with_shares(CONNECTIONS + 1, 200 * KIB);
        let buffers = buffers(&budget);
        let (mut clients, mut serving) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let (client, mut server) = connection(&buffers).await;
            clients.push(client);
            serving.push(Sim::spawn(failing(async move {
                loop {
                    server.write_all(vec![7; 64 * KIB]).await.into_result()?;
                }
            })));
        }
        let (held_max, _) = neighbour_goes_on(&buffers, 5).await;
        let common = 400 * KIB - (CONNECTIONS + 1) * (200 * KIB / (CONNECTIONS + 1));
        assert!((common / 2..=common).contains(&held_max), "{held_max} of {common}");
        drop(clients);
        failures(serving).await;
    });
}

/// Others wait for memory that a single connection holds.
async fn evict(budget: &MemoryBudget) {
    for _ in 0..3 {
        Sim::sleep(MemoryBudget::HOLDER_IDLE_MAX).await;
        budget.evict_holders(Sim::now());
    }
}

#[test]
fn an_evicted_connection_fails_and_its_peer_is_told() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(100 * KIB);
        let (mut client, server) = connection(&buffers(&budget)).await;
        let (mut read, mut write) = server.into_split();
        let mut record = client.encrypted(&[7; 16_000]);
        record.truncate(15_000);
        client.stream.write_all(record).await.into_result().unwrap();
        let reading =
            Sim::spawn(async move { read.read(Vec::with_capacity(KIB)).await.into_result() });
        Sim::sleep(Duration::from_millis(100)).await;
        assert!(budget.common_bytes_held() >= 15_000);
        evict(&budget).await;
        let error = reading.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert_eq!(tls_error(&error), &TlsError::Evicted);
        assert_eq!(budget.common_bytes_held(), 0, "it is freed, with the halves still there");
        let error = write.write_all(b"more".to_vec()).await.0.unwrap_err();
        assert_eq!(tls_error(&error), &TlsError::Evicted);
        client.alert().await;
    });
}

#[test]
fn an_evicted_connection_whose_peer_takes_nothing_is_reset() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(100 * KIB);
        let (client, mut server) = connection(&buffers(&budget)).await;
        let writing = Sim::spawn(failing(async move {
            loop {
                server.write_all(vec![7; 64 * KIB]).await.into_result()?;
            }
        }));
        Sim::sleep(Duration::from_millis(100)).await;
        assert!(budget.common_bytes_held() > 64 * KIB);
        evict(&budget).await;
        assert_eq!(tls_error(&writing.await.unwrap()), &TlsError::Evicted);
        assert_eq!(budget.common_bytes_held(), 0);
        let mut stream = client.stream;
        let mut ended = Ok(1);
        while ended.as_ref().is_ok_and(|n| *n > 0) {
            ended = stream.read(Vec::with_capacity(64 * KIB)).await.0;
        }
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

/// A waiting connection that holds nothing is not evicted.
#[test]
fn a_read_that_waits_for_memory_goes_on_once_there_is_some() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(100 * KIB);
        let buffers = buffers(&budget);
        let (mut client, mut server) = connection(&buffers).await;
        let mut other = budget.account().reservation();
        other.resize(100 * KIB).unwrap();
        let start = Sim::now();
        let sending = Sim::spawn(async move {
            client.write(&pattern(16 * KIB)).await;
            client
        });
        let reading = Sim::spawn(async move {
            let read = server.read_exact(Vec::with_capacity(16 * KIB), 16 * KIB).await;
            (read.into_result().unwrap().1, server)
        });
        Sim::sleep(Duration::from_millis(500)).await;
        drop(other);
        let (received, server) = reading.await.unwrap();
        assert_eq!(received, pattern(16 * KIB));
        let waited = Sim::now() - start;
        assert!(waited >= Duration::from_millis(500), "{waited:?}: it did not wait");
        assert_eq!(budget.common_bytes_held(), 0);
        drop((sending.await.unwrap(), server));
    });
}

#[test]
fn a_read_that_waits_for_memory_too_long_fails() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(20 * KIB);
        let (mut client, mut server) = connection(&buffers(&budget)).await;
        let others: Vec<_> = (0..40).map(|_| budget.account().reservation()).collect();
        let mut forced = others;
        for other in &mut forced {
            other.force(20 * KIB); // it is evicted but does not release the memory
        }
        let mut record = client.encrypted(&[7; 16_000]);
        record.truncate(15_000);
        client.stream.write_all(record).await.into_result().unwrap();
        let start: Instant = Sim::now();
        let error = server.read(Vec::with_capacity(KIB)).await.0.unwrap_err();
        assert_eq!(tls_error(&error), &TlsError::OutOfMemory);
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let waited = (Sim::now() - start).as_secs();
        assert!((30..36).contains(&waited), "{waited} s: 30 s, and 5 s for the client to end");
    });
}

#[test]
fn a_handshake_waits_for_memory_no_longer_than_its_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(20 * KIB);
        let mut other = budget.account().reservation();
        other.resize(20 * KIB).unwrap();
        let (a, b) = owned_io_sim::pipe();
        let buffers = buffers(&budget);
        let start = Sim::now();
        let server = Sim::spawn(async move {
            let mut acceptor = acceptor();
            acceptor.handshake_timeout = TIMEOUT;
            let accepted = acceptor.accept::<Sim, _>(b, &buffers).await;
            (accepted.map(drop), Sim::now())
        });
        drop(Sim::spawn(Plain::connected(a)));
        let (accepted, ended) = server.await.unwrap();
        assert_eq!(tls_error(&accepted.unwrap_err()), &TlsError::OutOfMemory);
        let took = ended - start;
        assert!((TIMEOUT..=TIMEOUT * 2).contains(&took), "{took:?}: as long again for its end");
    });
}

/// A write takes less when there is little room.
#[test]
fn a_write_encrypts_what_there_is_memory_for() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(20 * KIB);
        let (mut client, mut server) = connection(&buffers(&budget)).await;
        let sent = pattern(100_000);
        let expected = sent.clone();
        let receiving =
            Sim::spawn(async move { client.read_exact(expected.len()).await == expected });
        let n = owned_io::OwnedWrite::write(&mut server, sent.clone()).await.0.unwrap();
        assert_eq!(n, 16 * KIB);
        let mut other = budget.account().reservation();
        other.resize(20 * KIB).unwrap();
        let left = sent[n..].to_vec();
        let more = owned_io::OwnedWrite::write(&mut server, left.clone()).await.0.unwrap();
        assert_eq!(more, 4 * KIB);
        server.write_all(left[more..].to_vec()).await.into_result().unwrap();
        assert!(receiving.await.unwrap());
        assert_eq!(budget.common_bytes_held(), 20 * KIB);
    });
}

/// TLS and the protocol over it share one account.
#[test]
fn a_connection_may_bring_its_account() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(100 * KIB);
        let account = budget.account();
        let (mut client, mut server) = connection(&buffers(&budget).with_account(&account)).await;
        let mut record = client.encrypted(&[7; 16_000]);
        record.truncate(15_000);
        client.stream.write_all(record).await.into_result().unwrap();
        {
            let mut reading = pin!(server.read(Vec::with_capacity(KIB)));
            let waited = Sim::sleep(Duration::from_millis(10));
            assert!(select(reading.as_mut(), waited).await.first.is_none());
            assert!(account.held_bytes() >= 15_000);
        }
        drop(server);
        assert_eq!(account.held_bytes(), 0);
    });
}

/// Only rustls allocates for each record.
#[test]
fn a_warm_echo_takes_no_memory_of_its_own() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(1 << 20);
        let (mut client, server) = connection(&buffers(&budget)).await;
        let serving = Sim::spawn(echo(server));
        let sent = pattern(1000);
        let mut counts = Vec::new();
        for _ in 0..60 {
            let records = client.encrypted(&sent);
            client.stream.write_all(records).await.into_result().unwrap();
            let before = allocations();
            Sim::sleep(Duration::from_millis(10)).await;
            counts.push(allocations() - before);
            assert_eq!(client.read_exact(sent.len()).await, sent);
            assert_eq!(budget.common_bytes_held(), 0);
        }
        println!("{counts:?}");
        // Two allocations of rustls, and the echo's own buffer. A read that is cut short leaves part of a record.
        let warm = &counts[20..];
        assert_eq!(warm.iter().min(), Some(&3), "{counts:?}");
        assert!(warm.iter().all(|count| *count <= 6), "{counts:?}");
        drop(client);
        let _ = serving.await;
    });
}
