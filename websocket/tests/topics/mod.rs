//! Helpers of the tests of topics.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Duration;

use owned_io::{Executor, JoinHandle};
use owned_io_sim::Sim;
use owned_io_websocket::{
    Config, Error, Message, MessageKind, OnLag, Subscriber, Topic, WebSocket,
};

use crate::ends::{Socket, buffers, pair};

pub(crate) const KIB: usize = 1024;
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const BIN: MessageKind = MessageKind::Binary;

/// Without pings: the write of one also continues with what a topic has failed to deliver.
pub(crate) fn quiet() -> Config {
    let mut config = Config::default();
    config.stream.ping_interval = None;
    config
}

pub(crate) fn topic(kept_bytes_max: usize) -> Topic {
    Topic::new::<Sim>(&buffers(), kept_bytes_max)
}

/// Message number `n` of a topic: its number, and `len` bytes more.
pub(crate) fn numbered(n: u32, len: usize) -> Vec<u8> {
    [&n.to_be_bytes()[..], &vec![n as u8; len]].concat()
}

pub(crate) fn publish(topic: &Topic, payload: &[u8]) {
    topic.publish(Message::Binary(payload)).unwrap();
}

/// Receives until the connection ends, and keeps the subscription meanwhile.
pub(crate) fn serve(socket: Socket, subscriber: Subscriber) -> JoinHandle<Result<(), Error>> {
    let WebSocket { mut incoming, outgoing } = socket;
    Sim::spawn(async move {
        let (_outgoing, _subscriber) = (outgoing, subscriber);
        while incoming.receive().await?.is_some() {}
        Ok(())
    })
}

/// A client of a server that subscribes it and then only receives.
pub(crate) async fn subscribed(
    topic: &Topic,
    on_lag: OnLag,
) -> (Socket, JoinHandle<Result<(), Error>>) {
    let (server, client) = pair(quiet(), quiet()).await;
    let subscriber = topic.subscribe(&server.outgoing, on_lag).unwrap();
    (client, serve(server, subscriber))
}

pub(crate) async fn receive(client: &mut Socket) -> Vec<u8> {
    client.incoming.receive().await.unwrap().expect("a message").as_bytes().to_vec()
}

pub(crate) fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload.first_chunk().unwrap())
}
