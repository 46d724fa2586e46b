//! Connections on which nothing moves, in the simulation.

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
use owned_io_server::watch::watch;
use owned_io_sim::{Config, Sim, SimStream, pipe, seeds};

const SEEDS: u64 = 100;

const LIMITS: fn() -> Limits = || Limits {
    message_time_max: Duration::from_secs(4),
    idle_time_max: Some(Duration::from_secs(8)),
    ..Limits::default()
};

fn simulate(case: impl AsyncFn()) {
    for seed in seeds(SEEDS) {
        println!("seed {seed}"); // shown when it fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

/// A client of an echo that is watched, and how that ends.
fn echoing(limits: Limits) -> (SimStream, JoinHandle<io::Result<()>>) {
    let (client, server) = pipe();
    let memory = Memory::divide(64 << 20, 100).unwrap();
    let worker = Rc::new(Resources::new(memory, None, WebSockets::default(), limits));
    let connections = Connections::new(DrainSignal::default(), worker.budget.clone());
    drop(Sim::spawn(watch::<Sim>(connections.clone(), limits)));
    let connection = connections.add(server.shutdown_handle());
    let ctx = Context { connection, worker };
    let serving = Sim::spawn(async move { echo::serve(server, &ctx).await });
    (client, serving)
}

#[test]
fn who_is_idle_for_too_long_is_ended_and_nobody_before() {
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

#[test]
fn who_takes_nothing_for_too_long_is_reset_and_nobody_before() {
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
            // A little now and then is enough, where it makes room.
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
        // What has arrived is there, and then the reset, unless the writer was told.
        while read.read(vec![0; 64 * 1024]).await.into_result().is_ok_and(|(n, _)| n > 0) {}
    });
}

#[test]
fn nobody_is_idle_for_too_long_where_there_is_no_limit() {
    simulate(async || {
        let (mut client, _serving) = echoing(Limits { idle_time_max: None, ..LIMITS() });
        Sim::sleep(Duration::from_secs(1_000)).await;
        client.write_all("x").await.into_result().unwrap();
        client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap();
    });
}
