//! The watch, in the simulation: connections that are idle, or whose peers take nothing.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;

use owned_io::{
    BufResult, ByteStream, Clock, Executor, JoinHandle, OwnedRead, OwnedReadExt, OwnedWriteExt,
};
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::memory::Memory;
use owned_io_server::service::echo;
use owned_io_server::ticker::Ticker;
use owned_io_server::watch::watch;
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};

const SEEDS: u64 = 100;

const LIMITS: fn() -> Limits = || Limits {
    message_time_max: Duration::from_secs(4),
    tcp_idle_time_max: Some(Duration::from_secs(8)),
    ..Limits::default()
};

fn simulate(case: impl AsyncFn()) {
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

/// A client of a watched echo, and the task of the echo.
fn echoing(limits: Limits) -> (SimStream, JoinHandle<io::Result<()>>) {
    let (client, server) = pipe();
    let memory = Memory::divide(64 << 20, 100).unwrap();
    let worker = Rc::new(Resources::new(memory, None, WebSockets::default(), limits));
    let connections = Connections::new(DrainSignal::default(), worker.budget.clone());
    drop(Sim::spawn(watch::<Sim>(connections.clone(), limits, Ticker::default())));
    let connection = connections.add(server.shutdown_handle());
    let ctx = Context { connection, worker };
    let serving = Sim::spawn(async move { echo::serve(server, &ctx).await });
    (client, serving)
}

#[test]
fn idle_connections_are_closed_after_their_limit_and_not_before() {
    simulate(async || {
        let (mut client, serving) = echoing(LIMITS());
        for _ in 0..5 {
            client.write_all("x").await.into_result().unwrap();
            let echo = client.read_exact(Vec::with_capacity(1), 1).await;
            assert_eq!(echo.into_result().unwrap().1, b"x");
            Sim::sleep(Duration::from_millis(7_900)).await;
        }
        client.write_all("x").await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
        let start = Sim::now();
        assert_eq!(client.read(Vec::with_capacity(1)).await.into_result().unwrap().0, 0);
        let took = (Sim::now() - start).as_secs_f64();
        assert!((8.0..10.1).contains(&took), "{took}");
        assert_eq!(serving.await.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

/// Whatever the other limit is.
#[test]
fn idle_connections_are_closed_within_a_third_of_their_limit() {
    for (message, idle) in [(4, 5), (5, 4), (30, 31), (7, 100), (30, 1)] {
        let (message_time_max, tcp_idle_time_max) =
            (Duration::from_secs(message), Some(Duration::from_secs(idle)));
        simulate(async || {
            let limits = Limits { message_time_max, tcp_idle_time_max, ..LIMITS() };
            let (mut client, _serving) = echoing(limits);
            client.write_all("x").await.into_result().unwrap();
            client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
            let start = Sim::now();
            assert_eq!(client.read(Vec::with_capacity(1)).await.into_result().unwrap().0, 0);
            let took = (Sim::now() - start).as_secs_f64() / idle as f64;
            assert!(
                (0.99..4.0 / 3.0).contains(&took),
                "{took} of {idle} s, with {message} s for a message"
            );
        });
    }
}

#[test]
fn connections_whose_peers_take_nothing_are_reset_after_their_limit_and_not_before() {
    simulate(async || {
        let (client, serving) = echoing(LIMITS());
        let (mut read, mut write) = client.into_split();
        let writing = Sim::spawn(async move {
            loop {
                let BufResult(result, _) = write.write_all(vec![7; 10_000]).await;
                if let Err(error) = result {
                    return error.kind();
                }
            }
        });
        for _ in 0..5 {
            // A small read now and then is enough, if it makes room.
            Sim::sleep(Duration::from_millis(3_900)).await;
            read.read_exact(Vec::with_capacity(100_000), 100_000).await.into_result().unwrap();
        }
        let start = Sim::now();
        let error = serving.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let took = (Sim::now() - start).as_secs_f64();
        assert!(took < 5.2, "{took}");
        let told = writing.await.unwrap();
        assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&told), "{told}");
        // Reads what has arrived, up to the reset, unless the writer has received that.
        while read.read(vec![0; 64 * 1024]).await.into_result().is_ok_and(|(n, _)| n > 0) {}
    });
}

#[test]
fn without_a_limit_no_connection_is_closed() {
    simulate(async || {
        let (mut client, _serving) = echoing(Limits { tcp_idle_time_max: None, ..LIMITS() });
        Sim::sleep(Duration::from_secs(1_000)).await;
        client.write_all("x").await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
    });
}
