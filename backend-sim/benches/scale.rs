//! The scale that one core reaches: 10,000, 100,000 and a million echo connections that are idle most of the time,
//! both ends in one process, over simulated links.
//!
//! ```text
//! cargo bench -p owned-io-sim --bench scale            # all three; the last takes about 4 GiB
//! cargo bench -p owned-io-sim --bench scale -- 100000  # one
//! ```
//!
//! Times are seconds of CPU. A bench is also a test: each connection checks its echoes, and all echoes are counted.
//! Each size runs in its own process, so that memory is measured for each.

use std::cell::Cell;
use std::env;
use std::io;
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use owned_io::{
    ByteStream, Clock, ConnectOptions, Executor, ListenOptions, OwnedRead, OwnedWriteExt, Pool,
    PoolConfig, Tcp, TcpListener, copy,
};
use owned_io_sim::{Config, Host, Sim, World, simulate};

const SIZES: [u32; 3] = [10_000, 100_000, 1_000_000];

/// The size without `--bench`, as `cargo test --benches` runs it: a smoke test.
const SMOKE_SIZE: u32 = 200;

/// The number of echoes over all connections.
const ECHOES: u64 = 2_000_000;

const MESSAGE: &[u8; 64] = &[0x5a; 64];

/// The average virtual time between two messages of a connection.
const IDLE_MEAN: Duration = Duration::from_secs(30);

/// Connections from one client host to the server: fewer than there are ports.
const PER_HOST: u32 = 25_000;

/// How long the server's core is busy with one new connection, in virtual time, with a reserve.
const OPENING: Duration = Duration::from_micros(20);

const PORT: u16 = 7;

fn main() -> ExitCode {
    let is_bench = env::args().any(|arg| arg == "--bench");
    let size = env::args().find_map(|arg| arg.parse().ok());
    match size {
        Some(size) => run(size, if is_bench { ECHOES } else { u64::from(size) * 2 }),
        None if !is_bench => run(SMOKE_SIZE, u64::from(SMOKE_SIZE) * 10),
        None => {
            println!(
                "| connections | opened per second | events per second | ns per event | events per \
                 echo | echoes per second | resident bytes per connection, both ends |"
            );
            println!("|---|---|---|---|---|---|---|");
            for size in SIZES {
                let again = env::current_exe().expect("our own path");
                let status = Command::new(again).args(["--bench", &size.to_string()]).status();
                if !status.is_ok_and(|status| status.success()) {
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}

fn run(connections: u32, echoes: u64) {
    let before = resident_bytes();
    let mut config = Config::with_seed(1);
    config.trace_records = 64;
    simulate(config, async |world| {
        let server = world.host("server");
        server.start(serve);
        let shared = Rc::new(Shared {
            opened: Cell::new(0),
            echoes_left: Cell::new(echoes),
            echoes_done: Cell::new(0),
        });
        let started = busy();
        let mut client_host = None;
        for number in 0..connections {
            if number % PER_HOST == 0 {
                client_host = Some((world.host("clients"), Pool::new(PoolConfig::default())));
            }
            let (host, pool) = client_host.as_ref().expect("made with the first");
            let after = OPENING * number;
            let client = client(world, server.clone(), after, pool.clone(), Rc::clone(&shared));
            drop(host.spawn(client));
        }
        while shared.opened.get() < connections {
            Sim::sleep(Duration::from_millis(100)).await;
        }
        let opening = busy() - started;
        let resident = resident_bytes() - before;
        let events_before = world.events();
        let done_before = shared.echoes_done.get();
        let started = busy();
        while shared.echoes_done.get() < echoes {
            Sim::sleep(Duration::from_millis(100)).await;
        }
        let took = busy() - started;
        let events = world.events() - events_before;
        let echoed = echoes - done_before;
        assert!(echoed > echoes / 2, "too few were left to be measured: {echoed}");
        println!(
            "| {connections} | {:.0} | {:.0} | {:.0} | {:.1} | {:.0} | {} |",
            f64::from(connections) / opening.as_secs_f64(),
            events as f64 / took.as_secs_f64(),
            took.as_secs_f64() * 1e9 / events as f64,
            events as f64 / echoed as f64,
            echoed as f64 / took.as_secs_f64(),
            resident.max(resident_bytes() - before) / u64::from(connections),
        );
        Ok(())
    });
}

struct Shared {
    opened: Cell<u32>,
    echoes_left: Cell<u64>,
    echoes_done: Cell<u64>,
}

async fn serve() -> io::Result<()> {
    let mut listener = Sim::listen(&Sim::bind(ListenOptions::new(([0, 0, 0, 0], PORT).into()))?)?;
    let pool = Pool::new(PoolConfig::default());
    loop {
        let (stream, _) = listener.accept().await?;
        let pool = pool.clone();
        drop(Sim::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            copy(&mut read, &mut write, &pool).await
        }));
    }
}

/// Echoes at random times until there were enough echoes, and stays connected.
async fn client(world: World, server: Host, after: Duration, pool: Pool, shared: Rc<Shared>) {
    Sim::sleep(after).await;
    let connecting = Box::pin(Sim::connect(ConnectOptions::new(server.at(PORT))));
    let mut stream = connecting.await.expect("expected to connect");
    shared.opened.set(shared.opened.get() + 1);
    loop {
        let twice_the_mean = 2 * IDLE_MEAN.as_nanos() as u64;
        Sim::sleep(Duration::from_nanos(world.random(twice_the_mean))).await;
        if shared.echoes_left.get() == 0 {
            return std::future::pending().await;
        }
        shared.echoes_left.set(shared.echoes_left.get() - 1);
        stream.write_all(MESSAGE).await.into_result().expect("expected to write");
        let mut missing = MESSAGE.len();
        while missing > 0 {
            let bytes = stream.read_pooled(&pool).await.expect("expected to read");
            assert!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == MESSAGE[0]));
            missing -= bytes.len();
        }
        shared.echoes_done.set(shared.echoes_done.get() + 1);
    }
}

/// The CPU time of this process, so that other processes on the machine matter little. Without `/proc`, the time of
/// day.
fn busy() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = schedstat.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        Duration::from_nanos,
    )
}

/// The resident memory of this process, from `/proc`; zero without it.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
