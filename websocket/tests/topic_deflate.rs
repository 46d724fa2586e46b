//! Topics with subscribers that have negotiated compression, on the simulator.

mod common;
mod ends;

use common::{BINARY, FIN};
use ends::{Socket, buffers, simulate};
use owned_io::{Executor, OwnedReadExt, OwnedWriteExt};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::deflate::Deflate;
use owned_io_websocket::handshake::{Key, Offer};
use owned_io_websocket::{Config, Message, OnLag, Topic, WebSocket, accept, connect};

const COMPRESSED: u8 = 0x40;

fn server_config(send_takeover: bool) -> Config {
    let mut deflate = Deflate::default();
    deflate.send_takeover = send_takeover;
    let mut config = Config::default();
    config.handshake.deflate = Some(deflate);
    config
}

fn offer(deflate: Option<Deflate>) -> Offer<'static> {
    Offer { deflate, ..Offer::default() }
}

/// Subscribes a server for good.
fn subscribe(topic: &Topic, server: Socket) {
    let WebSocket { mut incoming, outgoing } = server;
    let subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
    drop(Sim::spawn(async move {
        let _kept = (outgoing, subscriber);
        while let Ok(Some(_)) = incoming.receive().await {}
    }));
}

/// A client that reads frames by hand.
async fn raw(topic: &Topic, config: Config, deflate: Option<Deflate>) -> SimStream {
    let (near, mut raw) = pipe();
    let accepted = Sim::spawn(async move { accept::<Sim, _>(near, &buffers(), config).await });
    let mut request = Vec::new();
    offer(deflate).encode(&Key::new([7; 16]), &mut request).unwrap();
    raw.write_all(request).await.into_result().unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.extend(raw.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap().1);
    }
    subscribe(topic, accepted.await.unwrap().unwrap());
    raw
}

/// The first byte of a frame of at most 65,535 bytes, and its payload.
async fn read_frame(raw: &mut SimStream) -> (u8, Vec<u8>) {
    let (_, start) = raw.read_exact(Vec::with_capacity(4), 4).await.into_result().unwrap();
    let (len, more) = match start[1] {
        126 => (usize::from(u16::from_be_bytes([start[2], start[3]])), &[][..]),
        short => (usize::from(short), &start[2..]),
    };
    let left = len - more.len();
    let (_, rest) = raw.read_exact(Vec::with_capacity(left), left).await.into_result().unwrap();
    (start[0], [more, &rest].concat())
}

#[test]
fn a_message_is_compressed_once_for_all_with_the_same_settings() {
    simulate(|| async {
        let topic = Topic::new::<Sim>(&buffers(), 256 * 1024);
        let (shared, takeover) = (server_config(false), server_config(true));
        let mut smaller_window = Deflate::default();
        smaller_window.receive_window_bits = 10;
        let mut first = raw(&topic, shared, Some(Deflate::default())).await;
        let mut second = raw(&topic, shared, Some(Deflate::default())).await;
        let mut plain = [
            raw(&topic, shared, None).await,
            raw(&topic, shared, Some(smaller_window)).await,
            raw(&topic, takeover, Some(takeover_offer())).await,
        ];
        let event = b"{\"price\": 1, \"name\": \"a\"}".repeat(40);
        for payload in [&event[..], b"too short to compress", &event, &[7; 40_000]] {
            topic.publish(Message::Binary(payload)).unwrap();
            let got = read_frame(&mut first).await;
            assert_eq!(got, read_frame(&mut second).await);
            if payload.len() == event.len() {
                assert_eq!(got.0, FIN | COMPRESSED | BINARY);
                assert!(got.1.len() < payload.len() / 4);
            } else {
                assert_eq!(got, (FIN | BINARY, payload.to_vec()));
            }
            for raw in &mut plain {
                assert_eq!(read_frame(raw).await, (FIN | BINARY, payload.to_vec()));
            }
        }
    });
}

fn takeover_offer() -> Deflate {
    let mut deflate = Deflate::default();
    deflate.receive_takeover = true;
    deflate
}

/// Compressed messages of the topic, of the connection and pings, to clients that come and go.
#[test]
fn clients_decompress_what_topics_and_connections_send() {
    simulate(|| async {
        let topic = Topic::new::<Sim>(&buffers(), 256 * 1024);
        for takeover in [false, true, false] {
            let (near, far) = pipe();
            let config = server_config(takeover);
            let accepted =
                Sim::spawn(async move { accept::<Sim, _>(near, &buffers(), config).await });
            let deflate = if takeover { takeover_offer() } else { Deflate::default() };
            let offer = offer(Some(deflate));
            let (mut client, _) =
                connect::<Sim, _>(far, &buffers(), Config::default(), &offer).await.unwrap();
            let WebSocket { mut incoming, mut outgoing } = accepted.await.unwrap().unwrap();
            let subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
            drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
            for n in 0..20 {
                let text = format!("message {n} of the topic, ").repeat(1 + 10 * n);
                topic.publish(Message::Text(&text)).unwrap();
                assert_eq!(client.incoming.receive().await.unwrap(), Some(Message::Text(&text)));
                let text = format!("message {n} of the connection, ").repeat(1 + 10 * n);
                outgoing.send(Message::Text(&text)).await.unwrap();
                assert_eq!(client.incoming.receive().await.unwrap(), Some(Message::Text(&text)));
            }
            drop(subscriber);
        }
        assert_eq!((topic.subscriber_count(), topic.kept_bytes()), (0, 0));
    });
}
