//! The time-outs of a connection, in simulated time.

mod common;
mod ends;

use std::cell::Cell;
use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

use common::{BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, Role, TEXT, frame};
use ends::{
    NORMAL, Protocol, buffers, close_server, pair, raw_client, read_to_end, request, seconds_since,
    simulate,
};
use owned_io::{
    ByteStream, Clock, Executor, MemoryBudget, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt,
    Pool, PoolConfig, select,
};
use owned_io_sim::{Sim, pipe};
use owned_io_websocket::handshake::{Offer, Refusal};
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, accept, connect};
use owned_io_websocket::{Config, Timeout, Violation};

#[test]
fn a_silent_peer_is_pinged_and_then_closed() {
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
fn pings_keep_their_interval_when_the_pong_timeout_is_longer() {
    simulate(|| async {
        let mut config = Config::default();
        config.stream.ping_interval = Some(Duration::from_secs(5));
        config.stream.pong_timeout = Duration::from_secs(50);
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
fn a_peer_that_answers_pings_stays_until_the_idle_timeout() {
    simulate(|| async {
        let mut config = Config::default();
        config.stream.idle_timeout = Some(Duration::from_secs(300));
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
        assert!(peer.await.unwrap().unwrap(), "the client received no close");
    });
}

#[test]
fn a_peer_that_is_sent_messages_is_not_idle() {
    simulate(|| async {
        let mut config = Config::default();
        (config.stream.ping_interval, config.stream.idle_timeout) =
            (None, Some(Duration::from_secs(60)));
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
fn a_message_that_does_not_end_times_out_however_slowly_it_arrives() {
    simulate(|| async {
        let mut config = Config::default();
        (config.stream.ping_interval, config.stream.message_timeout) =
            (None, Some(Duration::from_secs(100)));
        let long = frame(Role::Server, FIN | BINARY, &[1; 100_000]);
        for (start, rest) in [long.split_at(1), long.split_at(50), long.split_at(40_000)] {
            let buffers =
                Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(100_000));
            let (mut server, raw) = raw_client(config, buffers.clone(), b"").await;
            let (mut read, mut write) = raw.into_split();
            // Time before the message begins does not count.
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
            // The close frame has to be answered within 5 s more.
            assert!((100..=105).contains(&seconds_since(begun)));
            assert_eq!(read_to_end(&mut read).await, b"\x88\x02\x03\xF0");
            drop(server);
            dribbling.await.unwrap().unwrap_err();

            let (mut next, mut raw) = raw_client(config, buffers, b"").await;
            let long = long.clone();
            let sending = Sim::spawn(async move { raw.write_all(long).await.into_result() });
            assert!(
                next.incoming.receive().await.unwrap().is_some(),
                "the memory was not returned"
            );
            sending.await.unwrap().unwrap();
        }
    });
}

/// Without pings there is a time without any deadline between two messages. The timer of the first message ends in it.
#[test]
fn without_pings_each_message_times_out() {
    simulate(|| async {
        let mut config = Config::default();
        (config.stream.ping_interval, config.stream.message_timeout) =
            (None, Some(Duration::from_secs(100)));
        let (mut server, mut raw) = raw_client(config, buffers(), b"").await;
        let message = frame(Role::Server, FIN | TEXT, b"whole");
        let peer = Sim::spawn(async move {
            let (start, rest) = message.split_at(4);
            raw.write_all(start.to_vec()).await.into_result()?;
            Sim::sleep(Duration::from_secs(10)).await;
            raw.write_all(rest.to_vec()).await.into_result()?;
            Sim::sleep(Duration::from_secs(490)).await;
            raw.write_all(start.to_vec()).await.into_result()?;
            Ok::<_, std::io::Error>(raw)
        });
        let began = Sim::now();
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("whole")));
        let mut receiving = pin!(server.incoming.receive());
        let patience = Sim::sleep(Duration::from_secs(1000));
        let received = select(receiving.as_mut(), patience).await.first;
        let error = received.expect("the second message times out").map(drop).unwrap_err();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Message))));
        // The close frame has to be answered within 5 s more.
        assert!((600..=605).contains(&seconds_since(began)));
        peer.await.unwrap().unwrap();
    });
}

/// The program does something else, and the peer's bytes wait.
#[test]
fn time_without_a_pending_receive_does_not_count() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let long = frame(Role::Server, FIN | BINARY, &[1; 100_000]);
        let (start, rest) = long.split_at(500);
        let first = [&frame(Role::Server, FIN | TEXT, b"good")[..], start].concat();
        let rest = rest.to_vec();
        let peer = Sim::spawn(async move {
            raw.write_all(first).await.into_result()?;
            raw.write_all(rest).await.into_result()?;
            raw.write_all(frame(Role::Server, FIN | BINARY, &[2; 400_000])).await.into_result()?;
            Ok::<_, std::io::Error>(raw)
        });
        assert_eq!(server.incoming.receive().await.unwrap(), Some(Message::Text("good")));
        Sim::sleep(Duration::from_secs(130)).await;
        // `try_receive` finds an incomplete message. That does not count as waiting for it.
        assert_eq!(server.incoming.try_receive(), None);
        Sim::sleep(Duration::from_secs(130)).await;
        let message = server.incoming.receive().await.unwrap();
        assert_eq!(message, Some(Message::Binary(&[1; 100_000])));

        let (mut bytes, start) = (0, Sim::now());
        while let Some(piece) = server.incoming.receive_piece().await.unwrap() {
            bytes += piece.payload.len();
            let last = piece.last;
            Sim::sleep(Duration::from_secs(20)).await;
            if last {
                break;
            }
        }
        assert!(bytes == 400_000 && seconds_since(start) > 2 * 120);
        peer.await.unwrap().unwrap();
    });
}

/// Pings between the fragments do not extend the time.
#[test]
fn the_message_timeout_applies_to_a_message_in_fragments() {
    simulate(|| async {
        for limit in [Some(Duration::from_secs(100)), None] {
            for pieces in [false, true] {
                let mut config = Config::default();
                config.stream.message_timeout = limit;
                let (mut server, raw) = raw_client(config, buffers(), b"").await;
                let (mut read, mut write) = raw.into_split();
                let fragments = Sim::spawn(async move {
                    write.write_all(frame(Role::Server, TEXT, b"a")).await.into_result()?;
                    for _ in 0..40 {
                        Sim::sleep(Duration::from_secs(9)).await;
                        let ping = frame(Role::Server, FIN | PING, b"");
                        write.write_all(ping).await.into_result()?;
                        let next = frame(Role::Server, CONTINUATION, b"b");
                        write.write_all(next).await.into_result()?;
                    }
                    let end = frame(Role::Server, FIN | CONTINUATION, b"");
                    write.write_all(end).await.into_result()
                });
                let peer = Sim::spawn(async move { read_to_end(&mut read).await });
                let start = Sim::now();
                let got = loop {
                    if pieces {
                        match server.incoming.receive_piece().await {
                            Ok(Some(piece)) if !piece.last => {}
                            other => break other.map(drop),
                        }
                    } else {
                        break server.incoming.receive().await.map(drop);
                    }
                };
                match limit {
                    None => {
                        got.unwrap();
                        assert_eq!(seconds_since(start), 360);
                    }
                    Some(_) => {
                        let error = got.unwrap_err();
                        let late = Protocol::Timeout(Timeout::Message);
                        assert!(matches!(error, Error::Protocol(error) if error == late));
                        assert!((100..=105).contains(&seconds_since(start)));
                        drop(server);
                        assert!(peer.await.unwrap().ends_with(b"\x88\x02\x03\xF0"));
                        fragments.await.unwrap().unwrap_err();
                    }
                }
            }
        }
    });
}

/// A violation is found while no buffer is left and the peer has more to send. If its bytes were not read, the peer
/// would not see the close frame.
#[test]
fn a_violation_is_told_even_if_no_buffer_is_left() {
    simulate(|| async {
        let mut pool = PoolConfig::default();
        pool.leased_max = 1;
        let buffers = Buffers::new(Pool::new(pool), MemoryBudget::new(1 << 20));
        let (mut server, mut raw) = raw_client(Config::default(), buffers.clone(), b"").await;
        let peer = Sim::spawn(async move {
            raw.write_all(b"\x81\x01a".to_vec()).await.into_result().unwrap(); // not masked
            for _ in 0..10 {
                Sim::sleep(Duration::from_secs(1)).await;
                let _ = raw.write_all(vec![0; 10_000]).await; // fails once the server has closed
            }
            read_to_end(&mut raw).await
        });
        let elsewhere = Sim::spawn(async move {
            Sim::sleep(Duration::from_millis(500)).await; // the violation has been found by then
            buffers.pool().take().unwrap()
        });
        let start = Sim::now();
        let error = server.incoming.receive().await.unwrap_err();
        let unmasked = Protocol::Peer(Violation::NotMasked);
        assert!(matches!(error, Error::Protocol(error) if error == unmasked));
        assert_eq!(
            seconds_since(start),
            5,
            "the server reads while the peer sends, for the close timeout at most"
        );
        assert_eq!(peer.await.unwrap(), b"\x88\x02\x03\xEA");
        drop(elsewhere.await.unwrap());
    });
}

#[test]
fn a_close_that_is_not_answered_ends_after_the_close_timeout() {
    simulate(|| async {
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        let start = Sim::now();
        let error = server.close(NORMAL).await.unwrap_err();
        assert!(matches!(error, Error::Protocol(Protocol::Timeout(Timeout::Close))));
        assert_eq!(seconds_since(start), 5);
        assert_eq!(read_to_end(&mut raw).await, b"\x88\x05\x03\xE8bye");

        // The read half already waits when the close begins.
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

/// The client keeps its side of the stream open: whichever closes first, the server is the first to end the stream
/// (RFC 6455 section 7.1.1).
#[test]
fn a_server_does_not_wait_once_both_have_closed() {
    const CLOSE_NORMAL: &[u8] = b"\x03\xE8";
    simulate(|| async {
        for server_begins in [false, true] {
            let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
            let start = Sim::now();
            let serving = Sim::spawn(async move {
                close_server(&mut server, server_begins).await;
            });
            let close = frame(Role::Server, FIN | CLOSE, CLOSE_NORMAL);
            raw.write_all(close).await.into_result().unwrap();
            serving.await.unwrap();
            assert_eq!(seconds_since(start), 0);
            assert_eq!(read_to_end(&mut raw).await, b"\x88\x02\x03\xE8");
        }
    });
}

/// The server reads on, because it would reset the connection otherwise, and the client might not see the close frame.
#[test]
fn a_client_that_sends_behind_its_close_frame_has_the_close_timeout() {
    let waited = Cell::new(0);
    simulate(|| async {
        let mut bytes = frame(Role::Server, FIN | CLOSE, b"\x03\xE8");
        bytes.extend_from_slice(&[0; 100]);
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), &bytes).await;
        let start = Sim::now();
        assert_eq!(server.incoming.receive().await.unwrap(), None);
        match seconds_since(start) {
            5 => waited.set(waited.get() + 1),
            // A read has ended right behind the close frame.
            seconds => assert_eq!(seconds, 0),
        }
        drop(server);
        assert_eq!(read_to_end(&mut raw).await, b"\x88\x02\x03\xE8");
    });
    assert!(waited.get() > 0, "the server never waited");
}

/// A client that receives a ping behind its close frame answers it (RFC 6455 section 5.5.2).
#[test]
fn a_client_that_owes_a_pong_has_the_close_timeout() {
    simulate(|| async {
        for answers in [false, true] {
            let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
            server.outgoing.ping(b"").unwrap();
            server.outgoing.flush().await.unwrap();
            let start = Sim::now();
            let serving = Sim::spawn(async move {
                assert_eq!(server.incoming.receive().await.unwrap(), None);
            });
            let close = frame(Role::Server, FIN | CLOSE, b"\x03\xE8");
            raw.write_all(close).await.into_result().unwrap();
            if answers {
                Sim::sleep(Duration::from_secs(2)).await;
                let pong = frame(Role::Server, FIN | PONG, b"");
                raw.write_all(pong).await.into_result().unwrap();
                raw.shutdown().await.unwrap();
            }
            serving.await.unwrap();
            assert_eq!(seconds_since(start), if answers { 2 } else { 5 });
            assert_eq!(read_to_end(&mut raw).await, b"\x89\x00\x88\x02\x03\xE8");
        }

        // One that was answered before is over.
        let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
        server.outgoing.ping(b"").unwrap();
        server.outgoing.flush().await.unwrap();
        let mut bytes = frame(Role::Server, FIN | PONG, b"");
        bytes.extend(frame(Role::Server, FIN | CLOSE, b"\x03\xE8"));
        raw.write_all(bytes).await.into_result().unwrap();
        let start = Sim::now();
        assert_eq!(server.incoming.receive().await.unwrap(), None);
        assert_eq!(seconds_since(start), 0);
    });
}

#[test]
fn a_handshake_that_the_server_does_not_answer_times_out() {
    simulate(|| async {
        for dribbles in [false, true] {
            let (a, mut raw) = pipe();
            let buffers = buffers();
            let pool = buffers.pool().clone();
            let asking = Sim::spawn(async move {
                let (start, offer) = (Sim::now(), Offer::default());
                let asked = connect::<Sim, _>(a, &buffers, Config::default(), &offer).await;
                (asked.map(drop).unwrap_err(), seconds_since(start))
            });
            for byte in b"HTTP/1.1 101 Switching Protocols\r\n" {
                Sim::sleep(Duration::from_secs(1)).await;
                if dribbles && raw.write_all(vec![*byte]).await.into_result().is_err() {
                    break;
                }
            }
            let (error, secs) = asking.await.unwrap();
            let late = matches!(error, Error::Io(error) if error.kind() == ErrorKind::TimedOut);
            assert!(late && secs == 10);
            assert_eq!(pool.leased(), 0);
        }
        let (a, raw) = pipe();
        drop(raw);
        let offer = Offer::default();
        let asked = connect::<Sim, _>(a, &buffers(), Config::default(), &offer).await.map(drop);
        assert!(matches!(asked, Err(Error::Io(_))), "{asked:?}");
    });
}

/// The client neither reads the answer nor ends the stream, or it sends without end.
#[test]
fn a_refused_client_has_the_close_timeout() {
    simulate(|| async {
        for (floods, seconds) in [(false, 5), (false, 60), (true, 5)] {
            let mut config = Config::default();
            config.handshake.close_timeout = Duration::from_secs(seconds);
            let (a, mut raw) = pipe();
            let accepted = Sim::spawn(async move {
                let start = Sim::now();
                let accepted = accept::<Sim, _>(a, &buffers(), config).await.map(drop);
                (accepted.unwrap_err(), seconds_since(start))
            });
            raw.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.into_result().unwrap();
            let mut sent = 0;
            while floods && raw.write_all(vec![b'x'; 64 * 1024]).await.into_result().is_ok() {
                sent += 64 * 1024;
                assert!(sent < 4 << 20, "a megabyte, and what is on the way");
            }
            let (error, secs) = accepted.await.unwrap();
            assert!(matches!(error, Error::Refused(Refusal::NoUpgrade)), "{error:?}");
            assert_eq!(secs, if floods { 0 } else { seconds });
        }
    });
}

/// A client that has sent something is answered 408: RFC 9110 section 15.5.9.
#[test]
fn a_handshake_of_a_byte_a_second_is_cut_off() {
    simulate(|| async {
        for silent in [false, true] {
            let (a, mut raw) = pipe();
            let buffers = buffers();
            let pool = buffers.pool().clone();
            let accepted = Sim::spawn(async move {
                let start = Sim::now();
                let error = accept::<Sim, _>(a, &buffers, Config::default()).await.map(drop);
                (error.unwrap_err(), seconds_since(start))
            });
            for byte in request().into_iter().take(10) {
                if !silent {
                    raw.write_all(vec![byte]).await.into_result().unwrap();
                }
                Sim::sleep(Duration::from_millis(999)).await;
            }
            let (error, secs) = accepted.await.unwrap();
            assert_eq!(secs, 10);
            if silent {
                let late = matches!(error, Error::Io(error) if error.kind() == ErrorKind::TimedOut);
                assert!(late && raw.read(vec![0; 1]).await.into_result().unwrap().0 == 0);
            } else {
                assert!(matches!(error, Error::Refused(Refusal::Late)), "{error:?}");
                let expected = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n";
                let answer = raw.read_exact(Vec::with_capacity(64), expected.len()).await;
                assert_eq!(answer.into_result().unwrap().1, expected);
            }
            assert_eq!(pool.leased(), 0);
        }
    });
}
