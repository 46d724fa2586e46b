//! The drain in the simulation: time is virtual and advances by the work that each poll consumes, so thousands of busy
//! connections make each turn of the worker long.

use std::io;
use std::time::Duration;

use clap::Parser;
use owned_io::{
    ByteStream, Clock, ConnectOptions, Executor, OwnedRead, OwnedWriteExt, StopSignal, Tcp,
};
use owned_io_server::config::Flags;
use owned_io_server::server;
use owned_io_sim::{Sim, World};

/// With so many a turn of the worker takes 0.1 s. The worker has 1 s after the deadline.
const FLOODS: usize = 2_000;

/// When all are connected.
const CONNECTED: Duration = Duration::from_secs(10);

/// Each of them is reset by the deadline, and the worker ends in time.
#[test]
fn thousands_of_floods_are_cut_off_at_the_deadline() {
    let flags = ["server", "--workers", "1", "--sink", "10.0.0.1:7", "--drain-seconds", "0"];
    let config = Flags::parse_from(flags).into_config().unwrap();
    let stop = StopSignal::new();
    let drain = stop.clone();
    let outcome = server::run::<Sim>(&config, drain, move |listener| {
        let clients = World::current().host("clients");
        clients.work_takes_no_time(); // as if each had a core of its own
        for _ in 0..FLOODS {
            drop(clients.spawn(flood(ConnectOptions::new(listener.addr))));
        }
        let stop = stop.clone();
        drop(clients.spawn(async move {
            Sim::sleep(CONNECTED + Duration::from_millis(200)).await;
            stop.stop();
        }));
    });
    let cut_off = outcome.unwrap().cut_off;
    assert!(cut_off > FLOODS / 2, "{cut_off}: too few were busy");
}

/// Sends empty messages, and reads the answers, until the server resets the connection.
async fn flood(server: ConnectOptions) -> io::Result<()> {
    let began = Sim::now();
    let (mut read, mut write) = Sim::connect(server).await?.into_split();
    Sim::sleep((began + CONNECTED).saturating_duration_since(Sim::now())).await;
    Sim::spawn_detached(async move {
        let mut answers = Vec::with_capacity(4 * 1024);
        while let Ok((1.., buf)) = read.read(answers).await.into_result() {
            answers = buf;
        }
    });
    let mut messages = vec![0; 16 * 1024];
    loop {
        ((), messages) = write.write_all(messages).await.into_result()?;
    }
}
