//! `--balance least-connections` in the simulation: workers that drain while connections are on their way between them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use owned_io::{Clock, ConnectOptions, OwnedReadExt, OwnedWriteExt, StopSignal, Tcp};
use owned_io_server::config::Flags;
use owned_io_server::server;
use owned_io_sim::{Sim, World};

const CLIENTS: usize = 30;

/// The server is stopped at this many moments, while clients connect.
const STOPS: u32 = 60;

/// The clients end with the server, and the server does not wait for anything but them.
#[test]
fn a_drain_waits_for_handed_over_connections_and_not_for_its_deadline() {
    let flags = ["server", "--workers", "3", "--balance", "least-connections"];
    let flags = [&flags[..], &["--echo", "10.0.0.1:7", "--drain-seconds", "60"]].concat();
    let config = Flags::parse_from(flags).into_config().unwrap();
    for number in 0..STOPS {
        let (stop, is_late) = (StopSignal::new(), Arc::new(AtomicBool::new(false)));
        let (drain, late) = (stop.clone(), Arc::clone(&is_late));
        let outcome = server::run::<Sim>(&config, drain, move |listener| {
            let clients = World::current().host("clients");
            for _ in 0..CLIENTS {
                drop(clients.spawn(exchange(listener.addr)));
            }
            let (stop, late) = (stop.clone(), Arc::clone(&late));
            drop(clients.spawn(async move {
                Sim::sleep(number * Duration::from_micros(50)).await;
                stop.stop();
                Sim::sleep(Duration::from_secs(5)).await;
                late.store(true, Ordering::Relaxed);
            }));
        });
        assert_eq!(outcome.unwrap().cut_off, 0, "stop {number}");
        assert!(!is_late.load(Ordering::Relaxed), "stop {number}: it took more than 5 s");
    }
}

/// Sends and reads until the server ends the connection.
async fn exchange(server: SocketAddr) -> io::Result<()> {
    let mut stream = Sim::connect(ConnectOptions::new(server)).await?;
    loop {
        stream.write_all("hello").await.into_result()?;
        let ((), answer) = stream.read_exact(Vec::with_capacity(5), 5).await.into_result()?;
        assert_eq!(answer, b"hello");
    }
}
