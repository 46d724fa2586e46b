//! Helpers of the stream's tests: both ends of a connection, on the simulator.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::{Duration, Instant};

use owned_io::{
    ByteStream, Clock, Executor, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig,
};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::handshake::{Key, Offer};
use owned_io_websocket::stream::{Buffers, WebSocket, accept, connect};
use owned_io_websocket::{CloseCode, CloseFrame, Config};

pub(crate) type Socket = WebSocket<SimStream>;
pub(crate) type Protocol = owned_io_websocket::ProtocolError;

pub(crate) const NORMAL: CloseFrame<'static> =
    CloseFrame { code: Some(CloseCode::NORMAL), reason: "bye" };

/// Runs `test` under as many seeds as `SIM_SEEDS` says. Reads and writes are short everywhere.
pub(crate) fn simulate<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(owned_io_sim::Config::with_seed(seed), test()).unwrap();
    }
}

pub(crate) fn buffers() -> Buffers {
    Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20))
}

/// A server and a client after the handshake.
pub(crate) async fn pair(server: Config, client: Config) -> (Socket, Socket) {
    let (a, b) = pipe();
    let accepted = Sim::spawn(async move { accept::<Sim, _>(a, &buffers(), server).await });
    let offer = Offer::default();
    let (client, protocol) = connect::<Sim, _>(b, &buffers(), client, &offer).await.unwrap();
    assert_eq!(protocol, None);
    (accepted.await.unwrap().unwrap(), client)
}

pub(crate) fn request() -> Vec<u8> {
    let mut request = Vec::new();
    Offer::default().encode(&Key::new([7; 16]), &mut request).unwrap();
    request
}

/// A server, and a client that is driven by hand. `first` arrives with the request.
pub(crate) async fn raw_client(
    config: Config,
    buffers: Buffers,
    first: &[u8],
) -> (Socket, SimStream) {
    let (a, raw) = pipe();
    raw_client_over(a, raw, config, buffers, first).await
}

/// The same over a transport of the server whose other end is `raw`.
pub(crate) async fn raw_client_over<S: ByteStream>(
    transport: S,
    mut raw: SimStream,
    config: Config,
    buffers: Buffers,
    first: &[u8],
) -> (WebSocket<S>, SimStream) {
    let accepted = Sim::spawn(async move { accept::<Sim, _>(transport, &buffers, config).await });
    let mut bytes = request();
    bytes.extend_from_slice(first);
    raw.write_all(bytes).await.into_result().unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let (_, byte) = raw.read(Vec::with_capacity(1)).await.into_result().unwrap();
        response.extend_from_slice(&byte);
    }
    (accepted.await.unwrap().unwrap(), raw)
}

/// A server that closes first, or waits for its client to do so, until both have closed.
pub(crate) async fn close_server<S: ByteStream>(server: &mut WebSocket<S>, server_begins: bool) {
    if server_begins {
        let frame = CloseFrame { code: Some(CloseCode::NORMAL), reason: "" };
        server.outgoing.close(frame).await.unwrap();
    }
    assert_eq!(server.incoming.receive().await.unwrap(), None);
}

/// Rounded to the nearest second.
pub(crate) fn seconds_since(start: Instant) -> u64 {
    (Sim::now() - start + Duration::from_millis(500)).as_secs()
}

pub(crate) async fn read_to_end(stream: &mut impl OwnedRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (n, buf) = stream.read(Vec::with_capacity(4096)).await.into_result().unwrap();
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}
