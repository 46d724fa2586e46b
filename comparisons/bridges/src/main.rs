//! One message of 16 MB through tungstenite over sync buffers, and through the native engine, each way,
//! in memory and over loopback: what it takes. See the README.
//!
//! ```sh
//! cargo run --release -p owned-io-comparisons-bridges
//! ```

mod again;
mod counted;
mod exchange;
mod memory;
mod peer;

use std::io;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use exchange::Taken;
use owned_io::{ConnectOptions, Executor, ListenOptions, Runtime, Tcp, TcpListener};
use owned_io_compio::Compio;
use owned_io_sim::{Sim, pipe};
use owned_io_tokio::Tokio;
use owned_io_tungstenite::Strategy;
use owned_io_websocket::stream::Error;

/// How long the message is.
const MESSAGE_BYTES: usize = 16_000_000;

/// How often each is done; shown is the one with the median time.
const ROUNDS: usize = 3;

/// How long one may take.
const TIME_MAX: Duration = Duration::from_secs(120);

/// What sends or receives the message.
#[derive(Clone, Copy)]
struct Case {
    direction: Direction,
    /// None: the native engine.
    strategy: Option<Strategy>,
    /// Whether small writes leave at once (`TCP_NODELAY`).
    nodelay: bool,
}

/// What the end that is measured does.
#[derive(Clone, Copy)]
enum Direction {
    Sends,
    Receives,
}

const ENGINES: [(&str, Option<Strategy>, bool); 6] = [
    ("tungstenite, fixed 8 KiB", Some(Strategy::FIXED), true),
    ("the same, Nagle's way", Some(Strategy::FIXED), false),
    ("tungstenite, fixed 1 MiB", Some(Strategy::Fixed { bytes: 1 << 20 }), true),
    ("tungstenite, linear", Some(Strategy::LINEAR), true),
    ("tungstenite, exponential", Some(Strategy::EXPONENTIAL), true),
    ("native", None, true),
];

type Once = fn(Case, Bytes) -> io::Result<Taken>;

const CONNECTIONS: [(&str, Once); 3] = [
    ("in memory", in_memory),
    ("tokio, over loopback", over_loopback::<Tokio>),
    ("compio, over loopback", over_loopback::<Compio>),
];

fn main() -> io::Result<()> {
    let payload: Bytes = (0..MESSAGE_BYTES).map(|i| i as u8).collect();
    for (connection, once) in CONNECTIONS {
        for (done, direction) in [("sent", Direction::Sends), ("received", Direction::Receives)] {
            println!("\n{MESSAGE_BYTES} bytes {done}, {connection}\n");
            println!(
                "| engine | ms | operations | copied, MB | moved, MB | allocations | peak, MB |"
            );
            println!("|---|---|---|---|---|---|---|");
            for (name, strategy, nodelay) in ENGINES {
                let case = Case { direction, strategy, nodelay };
                match median(once, case, &payload) {
                    Ok(taken) => print(name, &taken),
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        println!("| {name} | over {} s | | | | | |", TIME_MAX.as_secs());
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    again::run(&payload)
}

fn print(name: &str, taken: &Taken) {
    let (copied, moved) = match taken.work {
        Some((copied, moved)) => (megabytes(copied), megabytes(moved)),
        None => ("–".to_owned(), "–".to_owned()),
    };
    println!(
        "| {name} | {:.1} | {} | {copied} | {moved} | {} | {} |",
        taken.time.as_secs_f64() * 1e3,
        taken.operations,
        taken.memory.allocations,
        megabytes(taken.memory.peak_bytes.unsigned_abs()),
    );
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn median(once: Once, case: Case, payload: &Bytes) -> io::Result<Taken> {
    let rounds = (0..ROUNDS).map(|_| once(case, payload.clone()));
    let mut taken = rounds.collect::<io::Result<Vec<_>>>()?;
    taken.sort_by_key(|taken| taken.time);
    Ok(taken.swap_remove(ROUNDS / 2))
}

/// Both ends on this thread: there is no socket, and no other end to wait for.
fn in_memory(case: Case, payload: Bytes) -> io::Result<Taken> {
    Sim::block_on(owned_io_sim::Config::default(), async move {
        let (client, server) = pipe();
        let peer = Sim::spawn(peer::run(client, case.direction, payload.clone()));
        let taken = exchange::serve::<Sim>(server, case, payload).await.map_err(into_io)?;
        peer.await.map_err(|_| io::Error::other("the client panicked"))??;
        Ok(taken)
    })?
}

/// The server on this thread; the client on another, on tokio, whatever the server is on.
fn over_loopback<R: Runtime>(case: Case, payload: Bytes) -> io::Result<Taken> {
    R::block_on(R::Config::default(), async move {
        let mut options = ListenOptions::new(([127, 0, 0, 1], 0).into());
        options.nodelay = case.nodelay;
        let bound = R::bind(options)?;
        let mut listener = R::listen(&bound)?;
        let (addr, sent) = (bound.local_addr(), payload.clone());
        let peer = thread::spawn(move || {
            Tokio::block_on(<Tokio as Executor>::Config::default(), async {
                let stream = Tokio::connect(ConnectOptions::new(addr)).await?;
                peer::run(stream, case.direction, sent).await
            })?
        });
        let (stream, _) = listener.accept().await?;
        let taken = exchange::serve::<R>(stream, case, payload).await.map_err(into_io)?;
        peer.join().map_err(|_| io::Error::other("the client panicked"))??;
        Ok(taken)
    })?
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::other(other),
    }
}
