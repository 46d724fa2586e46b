//! Measures one message of 16 MB through tungstenite over sync buffers, and through the native engine: sent and
//! received, in memory and over loopback. See the README.
//!
//! ```sh
//! cargo run --release -p owned-io-comparisons-bridges
//! ```

mod client;
mod counted;
mod exchange;
mod memory;
mod retry;

use std::io;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use exchange::Cost;
use owned_io::{ConnectOptions, Executor, ListenOptions, Runtime, Tcp, TcpListener};
use owned_io_compio::Compio;
use owned_io_sim::{Sim, pipe};
use owned_io_tokio::Tokio;
use owned_io_tungstenite::BufferGrowth;
use owned_io_websocket::stream::Error;

/// The length of the message.
const MESSAGE_BYTES: usize = 16_000_000;

/// The rounds of each case. The round with the median time is printed.
const ROUNDS: usize = 3;

/// How long one round may take.
const TIME_MAX: Duration = Duration::from_secs(120);

/// What is measured.
#[derive(Clone, Copy)]
struct Case {
    direction: Direction,
    /// How the buffers of the bridge grow. None for the native engine.
    growth: Option<BufferGrowth>,
    /// Whether `TCP_NODELAY` is set.
    nodelay: bool,
}

/// What the server does with the message.
#[derive(Clone, Copy)]
enum Direction {
    Sends,
    Receives,
}

const ENGINES: [(&str, Option<BufferGrowth>, bool); 6] = [
    ("tungstenite, fixed 8 KiB", Some(BufferGrowth::FIXED), true),
    ("the same, without `TCP_NODELAY`", Some(BufferGrowth::FIXED), false),
    ("tungstenite, fixed 1 MiB", Some(BufferGrowth::Fixed { bytes: 1 << 20 }), true),
    ("tungstenite, linear", Some(BufferGrowth::LINEAR), true),
    ("tungstenite, exponential", Some(BufferGrowth::EXPONENTIAL), true),
    ("native", None, true),
];

/// Runs one round of a case.
type Round = fn(Case, Bytes) -> io::Result<Cost>;

const CONNECTIONS: [(&str, Round); 3] = [
    ("in memory", in_memory),
    ("tokio, over loopback", over_loopback::<Tokio>),
    ("compio, over loopback", over_loopback::<Compio>),
];

fn main() -> io::Result<()> {
    let payload: Bytes = (0..MESSAGE_BYTES).map(|i| i as u8).collect();
    for (connection, round) in CONNECTIONS {
        for (done, direction) in [("sent", Direction::Sends), ("received", Direction::Receives)] {
            println!("\n{MESSAGE_BYTES} bytes {done}, {connection}\n");
            println!(
                "| engine | ms | operations | copied, MB | moved, MB | allocations | peak, MB |"
            );
            println!("|---|---|---|---|---|---|---|");
            for (name, growth, nodelay) in ENGINES {
                let case = Case { direction, growth, nodelay };
                match median(round, case, &payload) {
                    Ok(cost) => print(name, &cost),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        println!("| {name} | over {} s | | | | | |", TIME_MAX.as_secs());
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    retry::run(&payload)
}

fn print(name: &str, cost: &Cost) {
    let (copied, moved) = match cost.work {
        Some((copied, moved)) => (megabytes(copied), megabytes(moved)),
        None => ("–".to_owned(), "–".to_owned()),
    };
    println!(
        "| {name} | {:.1} | {} | {copied} | {moved} | {} | {} |",
        cost.time.as_secs_f64() * 1e3,
        cost.operations,
        cost.memory.allocations,
        megabytes(cost.memory.peak_bytes.unsigned_abs()),
    );
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn median(round: Round, case: Case, payload: &Bytes) -> io::Result<Cost> {
    let rounds = (0..ROUNDS).map(|_| round(case, payload.clone()));
    let mut costs = rounds.collect::<io::Result<Vec<_>>>()?;
    costs.sort_by_key(|cost| cost.time);
    Ok(costs.swap_remove(ROUNDS / 2))
}

/// Runs both ends on this thread, without a socket.
fn in_memory(case: Case, payload: Bytes) -> io::Result<Cost> {
    Sim::block_on(owned_io_sim::Config::default(), async move {
        let (client, server) = pipe();
        let client = Sim::spawn(client::run(client, case.direction, payload.clone()));
        let cost = exchange::serve::<Sim>(server, case, payload).await.map_err(into_io)?;
        client.await.map_err(|_| io::Error::other("the client panicked"))??;
        Ok(cost)
    })?
}

/// Runs the server on this thread, and the client on another. The client is always on tokio.
fn over_loopback<R: Runtime>(case: Case, payload: Bytes) -> io::Result<Cost> {
    R::block_on(R::Config::default(), async move {
        let mut options = ListenOptions::new(([127, 0, 0, 1], 0).into());
        options.nodelay = case.nodelay;
        let bound = R::bind(options)?;
        let mut listener = R::listen(&bound)?;
        let (addr, sent) = (bound.local_addr(), payload.clone());
        let client = thread::spawn(move || {
            Tokio::block_on(<Tokio as Executor>::Config::default(), async {
                let stream = Tokio::connect(ConnectOptions::new(addr)).await?;
                client::run(stream, case.direction, sent).await
            })?
        });
        let (stream, _) = listener.accept().await?;
        let cost = exchange::serve::<R>(stream, case, payload).await.map_err(into_io)?;
        client.join().map_err(|_| io::Error::other("the client panicked"))??;
        Ok(cost)
    })?
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::other(other),
    }
}
