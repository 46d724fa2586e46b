//! Tails of partitions on disk: messages that were removed, that cannot be read, and batches that are long.

use std::rc::Rc;
use std::time::Duration;

use owned_io::{ByteStream, Clock, Executor, MemoryBudget, Pool, PoolConfig};
use owned_io_server::config::{Limits, WebSockets};
use owned_io_server::connections::Connections;
use owned_io_server::context::{Context, Resources};
use owned_io_server::drain::DrainSignal;
use owned_io_server::iggy::workers::Iggy;
use owned_io_server::memory::Memory;
use owned_io_server::service::http;
use owned_io_server::service::tail::BINARY_PROTOCOL;
use owned_io_sim::{Fault, Sim, SimStream, World, block_on, pipe, run, seeds};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Message, WebSocket, connect};
use serde_json::{Value, json};

use super::client::Client;
use super::restart::{UNLIMITED, end, payload, start};

async fn listen(iggy: &Rc<Iggy>, path: &str, protocols: &[&str]) -> WebSocket<SimStream> {
    let memory = Memory::divide(64 << 20, 100).expect("enough memory");
    let mut resources = Resources::new(memory, None, WebSockets::default(), Limits::default());
    resources.iggy = Some(Rc::clone(iggy));
    let connections = Connections::new(DrainSignal::default(), resources.budget.clone());
    let (client, serving) = pipe();
    let connection = connections.add(serving.shutdown_handle());
    let ctx = Context { connection, worker: Rc::new(resources) };
    drop(Sim::spawn(async move {
        let _ = http::serve::<Sim>(serving, &ctx).await; // an error: the client has gone
    }));
    let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
    let offer = Offer {
        host: "localhost",
        path: &format!("/tail/{path}"),
        protocols,
        headers: &[("Authorization", "Basic aWdneTpzZWNyZXQ=")], // iggy:secret
        ..Offer::default()
    };
    let config = owned_io_websocket::Config::default();
    connect::<Sim, _>(client, &buffers, config, &offer).await.expect("an upgrade").0
}

async fn next_json(socket: &mut WebSocket<SimStream>) -> Value {
    match socket.incoming.receive().await.unwrap() {
        Some(Message::Text(text)) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The offset and the payload of a binary message.
async fn next_binary(socket: &mut WebSocket<SimStream>) -> (u64, Vec<u8>) {
    match socket.incoming.receive().await.unwrap() {
        Some(Message::Binary(bytes)) => {
            let (head, payload) = bytes.split_at(16);
            (u64::from_le_bytes(head[..8].try_into().unwrap()), payload.to_vec())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_listens_is_told_which_messages_retention_has_removed() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, (20_000, u64::MAX)).await.unwrap();
        for n in 0..100 {
            client.send("t", 0, &[payload(n)]).await.unwrap();
        }
        Sim::sleep(Duration::from_secs(15)).await; // retention is enforced every 10
        let mut json = listen(&iggy, "s/t/0?from=3", &[]).await;
        let lost = next_json(&mut json).await;
        let first = lost["lost"]["to"].as_u64().unwrap();
        assert_eq!(lost, json!({"lost": {"from": 3, "to": first}}));
        assert!((4..100).contains(&first), "{first}");
        for n in first..100 {
            assert_eq!(next_json(&mut json).await["offset"], n);
        }
        client.send("t", 0, &[payload(100)]).await.unwrap();
        assert_eq!(next_json(&mut json).await["offset"], 100);

        let mut binary = listen(&iggy, "s/t/0?from=3", &[BINARY_PROTOCOL]).await;
        assert!(binary.incoming.receive().await.unwrap().is_none());
        let frame = binary.incoming.peer_close().unwrap();
        assert_eq!(frame.code.unwrap().get(), 4000);
        assert_eq!(frame.reason, format!("messages 3 to {} were removed", first - 1));

        let mut binary = listen(&iggy, "s/t/0?from=first", &[BINARY_PROTOCOL]).await;
        for n in first..=100 {
            assert_eq!(next_binary(&mut binary).await, (n, payload(n)));
        }
    });
}

#[test]
fn batches_longer_than_a_read_come_whole() {
    block_on(async {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        let mut live = listen(&iggy, "s/t/0", &[BINARY_PROTOCOL]).await;
        let lens = [3 << 20, 10, 1 << 20, 200_000, 1];
        for (n, len) in (0..).zip(lens) {
            client.send("t", 0, &[vec![n; len]]).await.unwrap();
        }
        let mut late = listen(&iggy, "s/t/0?from=first", &[BINARY_PROTOCOL]).await;
        for socket in [&mut live, &mut late] {
            for (n, len) in (0..).zip(lens) {
                let (offset, payload) = next_binary(socket).await;
                assert!(offset == u64::from(n) && payload == vec![n; len], "{offset}");
            }
        }
    });
}

#[test]
fn who_listens_is_told_of_a_read_error() {
    run(seeds(20), async |world: World| {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        for n in 0..50 {
            client.send("t", 0, &[payload(n)]).await.unwrap();
        }
        end(iggy, client).await; // so that nothing is in memory
        let iggy = start().await;
        world.apply(Fault::ReadErrors { host: world.main_host(), lasts: Duration::from_secs(1) });
        let mut socket = listen(&iggy, "s/t/0?from=first", &[]).await;
        assert!(socket.incoming.receive().await.unwrap().is_none());
        let frame = socket.incoming.peer_close().unwrap();
        assert_eq!(frame.code.unwrap().get(), 1011);
        assert_eq!(frame.reason, "message 0 cannot be read");
        Sim::sleep(Duration::from_secs(2)).await;
        let mut socket = listen(&iggy, "s/t/0?from=first", &[BINARY_PROTOCOL]).await;
        for n in 0..50 {
            assert_eq!(next_binary(&mut socket).await, (n, payload(n)));
        }
        Ok(())
    });
}
