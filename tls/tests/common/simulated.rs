//! Both ends of a connection in the simulation.

use std::future::Future;
use std::sync::Arc;

use owned_io::{Executor, OwnedRead};
use owned_io_sim::{Config, Sim, SimStream};
use owned_io_tls::rustls::{ALL_VERSIONS, SupportedProtocolVersion};
use owned_io_tls::{Acceptor, Connector, TlsError, TlsStream};

use super::{Forger, Plain, buffers, client_config, server_config, server_name};

/// Many seeds: each cuts transfers at other points.
pub(crate) fn simulate<F: Future<Output = ()>>(case: impl Fn() -> F) {
    for seed in owned_io_sim::seeds(30) {
        println!("seed {seed}"); // shown if the test fails
        Sim::block_on(Config::with_seed(seed), case()).unwrap();
    }
}

pub(crate) fn acceptor() -> Acceptor {
    Acceptor::new(Arc::new(server_config(ALL_VERSIONS)))
}

pub(crate) async fn accept(stream: SimStream) -> TlsStream<SimStream> {
    acceptor().accept::<Sim, _>(stream, &buffers()).await.unwrap()
}

/// A client and a server, both ours, on one connection.
pub(crate) async fn both() -> (TlsStream<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let server = Sim::spawn(accept(b));
    let connector = Connector::new(Arc::new(client_config(ALL_VERSIONS)));
    let client = connector.connect::<Sim, _>(a, server_name(), &buffers()).await.unwrap();
    (client, server.await.unwrap())
}

/// Plain rustls as the client, and our server.
pub(crate) async fn with_plain_client() -> (Plain<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let server = Sim::spawn(accept(b));
    (Plain::connected(a).await, server.await.unwrap())
}

/// A client that violates the protocol, and our server.
pub(crate) async fn with_forger(
    version: &'static SupportedProtocolVersion,
) -> (Forger<SimStream>, TlsStream<SimStream>) {
    let (a, b) = owned_io_sim::pipe();
    let mut config = server_config(ALL_VERSIONS);
    config.send_tls13_tickets = 0;
    let server = Sim::spawn(async move {
        Acceptor::new(Arc::new(config)).accept::<Sim, _>(b, &buffers()).await.unwrap()
    });
    (Forger::connected(a, version).await, server.await.unwrap())
}

pub(crate) async fn read_to_end(stream: &mut impl OwnedRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (n, buf) = stream.read(Vec::with_capacity(5000)).await.into_result().unwrap();
        if n == 0 {
            return all;
        }
        all.extend_from_slice(&buf);
    }
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

pub(crate) fn tls_error(error: &std::io::Error) -> &TlsError {
    error.get_ref().and_then(|inner| inner.downcast_ref()).expect("a TLS error inside")
}
