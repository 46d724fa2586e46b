//! What a connection does once something takes too long, in the simulator's time.

mod common;
mod ends;

use std::time::Duration;

use common::{BINARY, FIN, PING, PONG, Role, frame};
use ends::{
    NORMAL, Protocol, buffers, pair, raw_client, read_to_end, request, seconds_since, simulate,
};
use owned_io::{ByteStream, OwnedReadExt, OwnedWriteExt, Pool, PoolConfig, Runtime};
use owned_io_sim::{Sim, pipe};
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, accept};
use owned_io_websocket::{Config, Timeout, Violation};

#[test]
fn silence_is_answered_with_a_ping_and_then_with_the_end() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let start = Sim::now();
        let error = server.incoming.receive().await.unwrap_err();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Pong))));
        // 30 s until the ping, 20 s for the pong, 5 s for the close frame to be answered.
        assert_eq!(seconds_since(start), 55);
        assert_eq!(read_to_end(&mut raw).await, b"\x89\x00\x88\x02\x03\xF3");
    });
}

#[test]
fn pings_come_at_their_interval_however_long_a_pong_may_take() {
    simulate(|| async {
        let mut config = Config::default();
        config.ping_interval = Some(Duration::from_secs(5));
        config.pong_timeout = Duration::from_secs(50);
        let (mut server, mut raw) = raw_client(config, buffers(), b"").await;
        let peer = Sim::spawn(async move {
            let mut pings = 0;
            let start = Sim::now();
            while seconds_since(start) < 100 {
                let read = raw.read_exact(Vec::with_capacity(2), 2).await.into_result();
                assert_eq!(read.unwrap().1, [FIN | PING, 0]);
                pings += 1;
                let pong = frame(Role::Server, FIN | PONG, b"");
                raw.write_all(pong).await.into_result().unwrap();
            }
            pings
        });
        let ended = Protocol::Peer(Violation::EndedWithoutClose);
        let error = server.incoming.receive().await.unwrap_err();
        assert!(matches!(error, Error::Protocol(error) if error == ended));
        assert_eq!(peer.await.unwrap(), 20);
    });
}

#[test]
fn peers_that_answer_pings_stay_until_they_are_idle_for_too_long() {
    simulate(|| async {
        let mut config = Config::default();
        config.idle_timeout = Some(Duration::from_secs(300));
        let (mut server, mut client) = pair(config, Config::default()).await;
        let start = Sim::now();
        let peer = Sim::spawn(async move {
            Sim::sleep(Duration::from_secs(40)).await;
            client.outgoing.send(Message::Text("still here")).await.unwrap();
            client.incoming.receive().await.map(|message| message.is_none())
        });
        let message = server.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Text("still here")));
        let error = server.incoming.receive().await.unwrap_err();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Idle))));
        assert_eq!(seconds_since(start), 340);
        assert!(peer.await.unwrap().unwrap(), "a close that the client was told");
    });
}

#[test]
fn a_peer_that_is_sent_messages_is_not_idle() {
    simulate(|| async {
        let mut config = Config::default();
        (config.ping_interval, config.idle_timeout) = (None, Some(Duration::from_secs(60)));
        let (server, mut client) = pair(config, Config::default()).await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let start = Sim::now();
        let waiting = Sim::spawn(async move { incoming.receive().await.map(drop).unwrap_err() });
        let peer = Sim::spawn(async move {
            while client.incoming.receive().await?.is_some() {}
            Ok::<_, Error>(())
        });
        for _ in 0..3 {
            Sim::sleep(Duration::from_secs(50)).await;
            outgoing.send(Message::Text("an event")).await.unwrap();
        }
        let error = waiting.await.unwrap();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Idle))));
        assert_eq!(seconds_since(start), 210);
        peer.await.unwrap().unwrap();
    });
}

#[test]
fn a_message_that_does_not_end_is_given_up_however_it_is_dribbled() {
    simulate(|| async {
        let mut config = Config::default();
        (config.ping_interval, config.message_timeout) = (None, Some(Duration::from_secs(100)));
        let long = frame(Role::Server, FIN | BINARY, &[1; 100_000]);
        for (start, rest) in [long.split_at(1), long.split_at(50), long.split_at(40_000)] {
            let buffers = Buffers::new(Pool::new(PoolConfig::default()), 100_000);
            let (mut server, raw) = raw_client(config, buffers.clone(), b"").await;
            let (mut read, mut write) = raw.into_split();
            // Time passes before it begins.
            Sim::sleep(Duration::from_secs(500)).await;
            let begun = Sim::now();
            let (start, rest) = (start.to_vec(), rest.to_vec());
            let dribbling = Sim::spawn(async move {
                write.write_all(start).await.into_result()?;
                for byte in rest {
                    Sim::sleep(Duration::from_secs(29)).await;
                    write.write_all(vec![byte]).await.into_result()?;
                }
                Ok::<_, std::io::Error>(())
            });
            let error = server.incoming.receive().await.unwrap_err();
            assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Message))));
            // 5 s more until the close frame has to be answered.
            assert!((100..=105).contains(&seconds_since(begun)));
            assert_eq!(read_to_end(&mut read).await, b"\x88\x02\x03\xF0");
            drop(server);
            dribbling.await.unwrap().unwrap_err();

            let (mut next, mut raw) = raw_client(config, buffers, b"").await;
            let long = long.clone();
            let sending = Sim::spawn(async move { raw.write_all(long).await.into_result() });
            assert!(next.incoming.receive().await.unwrap().is_some(), "what it held is given back");
            sending.await.unwrap().unwrap();
        }
    });
}

#[test]
fn a_close_that_is_not_answered_ends_in_time() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let start = Sim::now();
        let error = server.close(NORMAL).await.unwrap_err();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Close))));
        assert_eq!(seconds_since(start), 5);
        assert_eq!(read_to_end(&mut raw).await, b"\x88\x05\x03\xE8bye");

        // The other half waits already when the closing begins.
        let (server, _raw) = raw_client(Config::default(), buffers(), b"").await;
        let WebSocket { mut incoming, mut outgoing } = server;
        let waiting = Sim::spawn(async move { incoming.receive().await.map(drop).unwrap_err() });
        Sim::sleep(Duration::from_secs(1)).await;
        let start = Sim::now();
        outgoing.close(NORMAL).await.unwrap();
        let error = waiting.await.unwrap();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Close))));
        assert_eq!(seconds_since(start), 5);
    });
}

#[test]
fn a_handshake_of_a_byte_a_second_is_cut_off() {
    simulate(|| async {
        let (a, mut raw) = pipe();
        let buffers = buffers();
        let pool = buffers.pool().clone();
        let accepted = Sim::spawn(async move {
            let start = Sim::now();
            let error = accept::<Sim, _>(a, &buffers, Config::default()).await.map(drop);
            (error.unwrap_err(), seconds_since(start))
        });
        for byte in request() {
            if raw.write_all(vec![byte]).await.into_result().is_err() {
                break;
            }
            Sim::sleep(Duration::from_secs(1)).await;
        }
        let (error, secs) = accepted.await.unwrap();
        let late =
            matches!(error, Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut);
        assert!(late && secs == 10);
        assert_eq!(pool.leased(), 0);
    });
}
