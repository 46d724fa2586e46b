//! The stream over tungstenite, on the simulator. Reads and writes are short everywhere. Most tests run under many
//! seeds and with each [`BufferGrowth`].

#[path = "../../../websocket/tests/common/mod.rs"]
mod common;
mod compression;
mod ending;
#[path = "../../../websocket/tests/ends/mod.rs"]
mod ends;
mod exchange;

use ends::request;
use owned_io::{Executor, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_tungstenite::{self as bridge, BufferGrowth};
use owned_io_websocket::Config;
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{self, Buffers, Message};

type Bridge = bridge::WebSocket<SimStream>;
type Native = stream::WebSocket<SimStream>;

const GROWTHS: [BufferGrowth; 3] =
    [BufferGrowth::FIXED, BufferGrowth::LINEAR, BufferGrowth::EXPONENTIAL];

/// A payload that is sent as text if `len` is even.
fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| b'a' + (i % 23) as u8).collect()
}

fn message(payload: &[u8]) -> Message<'_> {
    match payload.len() % 2 {
        0 => Message::Text(std::str::from_utf8(payload).unwrap()),
        _ => Message::Binary(payload),
    }
}

fn buffers() -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20))
}

/// A bridge as the server, and a bridge as the client.
async fn bridges(growth: BufferGrowth) -> (Bridge, Bridge) {
    let (a, b) = pipe();
    let config = Config::default();
    let accepted =
        Sim::spawn(async move { bridge::accept::<Sim, _>(a, &buffers(), config, growth).await });
    let offer = Offer::default();
    let connected = bridge::connect::<Sim, _>(b, &buffers(), config, growth, &offer).await;
    (accepted.await.unwrap().unwrap(), connected.unwrap().0)
}

async fn bridge_and_native_client(growth: BufferGrowth) -> (Bridge, Native) {
    let (a, b) = pipe();
    let config = Config::default();
    let accepted =
        Sim::spawn(async move { bridge::accept::<Sim, _>(a, &buffers(), config, growth).await });
    let offer = Offer::default();
    let (client, _) = stream::connect::<Sim, _>(b, &buffers(), config, &offer).await.unwrap();
    (accepted.await.unwrap().unwrap(), client)
}

async fn native_and_bridge_client(growth: BufferGrowth) -> (Native, Bridge) {
    let (a, b) = pipe();
    let config = Config::default();
    let accepted = Sim::spawn(async move { stream::accept::<Sim, _>(a, &buffers(), config).await });
    let (offer, buffers) = (Offer::default(), buffers());
    let connected = bridge::connect::<Sim, _>(b, &buffers, config, growth, &offer).await;
    (accepted.await.unwrap().unwrap(), connected.unwrap().0)
}

/// A bridge as the server, and a client that is driven by hand. `first` arrives with the request.
async fn raw_client(
    config: Config,
    buffers: Buffers,
    growth: BufferGrowth,
    first: &[u8],
) -> (Bridge, SimStream) {
    let (a, mut raw) = pipe();
    let accepted =
        Sim::spawn(async move { bridge::accept::<Sim, _>(a, &buffers, config, growth).await });
    raw.write_all([&request(), first].concat()).await.into_result().unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let (_, byte) = raw.read(Vec::with_capacity(1)).await.into_result().unwrap();
        response.extend_from_slice(&byte);
    }
    (accepted.await.unwrap().unwrap(), raw)
}
