//! How connections end, and their limits.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use owned_io::{ByteStream, Clock, Executor, OwnedReadExt, OwnedWriteExt};
use owned_io_sim::Sim;
use owned_io_tungstenite::BufferGrowth;
use owned_io_websocket::stream::{Error, Message};
use owned_io_websocket::{Config, Limit, Misuse, Timeout, Violation};

use super::common::{BINARY, CLOSE, CONTINUATION, FIN, PING, Role, TEXT, frame};
use super::ends::{NORMAL, Protocol, read_to_end, seconds_since, simulate};
use super::{GROWTHS, bridge_and_native_client, bridges, buffers, message, payload, raw_client};

#[test]
fn messages_sent_before_a_close_arrive_whichever_side_closes() {
    for growth in GROWTHS {
        for server_closes in [false, true] {
            simulate(|| async move {
                let (server, client) = bridges(growth).await;
                let (mut one, mut other) =
                    if server_closes { (server, client) } else { (client, server) };
                let closing = Sim::spawn(async move {
                    one.outgoing.write(Message::Text("last")).unwrap();
                    one.outgoing.close_handle().close(NORMAL).unwrap();
                    let late = one.outgoing.write(Message::Text("late"));
                    assert_eq!(late, Err(Misuse::SentAfterClose.into()));
                    one.outgoing.flush().await.unwrap();
                    assert_eq!(one.incoming.receive().await.unwrap(), None);
                    let answer = one.incoming.peer_close().unwrap();
                    assert_eq!(answer.code, NORMAL.code);
                });
                assert_eq!(other.incoming.receive().await.unwrap(), Some(Message::Text("last")));
                assert_eq!(other.incoming.peer_close(), None);
                assert_eq!(other.incoming.receive().await.unwrap(), None);
                assert_eq!(other.incoming.peer_close(), Some(NORMAL));
                closing.await.unwrap();
            });
        }
    }
}

#[test]
fn a_close_handle_closes_from_another_task_and_keeps_no_connection_open() {
    simulate(|| async {
        for bridge_closes in [false, true] {
            let (bridge, native) = bridge_and_native_client(BufferGrowth::LINEAR).await;
            let handles = (bridge.outgoing.close_handle(), native.outgoing.close_handle());
            let (mut bridge, mut native) = (bridge, native);
            let waiting = [
                Sim::spawn(async move { bridge.incoming.receive().await.map(|got| got.is_none()) }),
                Sim::spawn(async move { native.incoming.receive().await.map(|got| got.is_none()) }),
            ];
            let closing =
                if bridge_closes { handles.0.close(NORMAL) } else { handles.1.close(NORMAL) };
            closing.unwrap();
            for closed in waiting {
                assert!(closed.await.unwrap().unwrap());
            }
            // The connections have ended, so this has no effect.
            assert_eq!((handles.0.close(NORMAL), handles.1.close(NORMAL)), (Ok(()), Ok(())));
        }
    });
}

#[test]
fn a_peer_that_ends_without_a_close_frame_is_an_error_each_time() {
    for growth in GROWTHS {
        simulate(|| async move {
            let half_a_frame = &frame(Role::Server, FIN | BINARY, &[7; 50_000])[..40_000];
            for sent in [b"", half_a_frame] {
                let (mut server, mut raw) =
                    raw_client(Config::default(), buffers(), growth, b"").await;
                raw.write_all(sent.to_vec()).await.into_result().unwrap();
                drop(raw);
                for _ in 0..2 {
                    let error = server.incoming.receive().await.unwrap_err();
                    let ended = Protocol::Peer(Violation::EndedWithoutClose);
                    assert!(matches!(error, Error::Protocol(error) if error == ended), "{error:?}");
                }
            }
        });
    }
}

#[test]
fn a_peer_that_does_not_read_is_cut_off() {
    for growth in GROWTHS {
        simulate(|| async move {
            let (mut server, raw) = raw_client(Config::default(), buffers(), growth, b"").await;
            let start = Sim::now();
            server.outgoing.write(Message::Binary(&[0; 1_000_000])).unwrap();
            let error = server.outgoing.flush().await.unwrap_err();
            let late = Protocol::Timeout(Timeout::Write);
            assert!(matches!(error, Error::Protocol(error) if error == late), "{error:?}");
            assert_eq!(seconds_since(start), 60);
            let error = server.incoming.receive().await.unwrap_err();
            assert!(matches!(error, Error::Protocol(error) if error == late), "{error:?}");
            drop(raw);
        });
    }
}

#[test]
fn a_message_that_does_not_end_times_out_however_slowly_it_arrives() {
    let mut config = Config::default();
    config.stream.message_timeout = Some(Duration::from_secs(100));
    let long = frame(Role::Server, FIN | BINARY, &[1; 100_000]);
    let bytes = |from: usize| long[from..from + 10].iter().map(|byte| vec![*byte]).collect();
    let pings = vec![frame(Role::Server, FIN | PING, b""); 10];
    // Bytes that arrive with the request, bytes that arrive next, and writes that arrive every 29 seconds.
    let cases: [(&[u8], &[u8], Vec<_>); 4] = [
        (b"", &long[..1], bytes(1)),
        (&long[..50], b"", bytes(50)),
        (b"", &long[..40_000], bytes(40_000)),
        (b"", &frame(Role::Server, BINARY, &[1; 1_000]), pings),
    ];
    let cases = &cases.map(|(first, start, rest)| (first.to_vec(), start.to_vec(), rest));
    for growth in GROWTHS {
        simulate(|| async move {
            for (first, start, rest) in cases.clone() {
                let begun = Sim::now();
                let (mut server, raw) = raw_client(config, buffers(), growth, &first).await;
                let (mut read, mut write) = raw.into_split();
                let dribbling = Sim::spawn(async move {
                    write.write_all(start).await.into_result()?;
                    for bytes in rest {
                        Sim::sleep(Duration::from_secs(29)).await;
                        write.write_all(bytes).await.into_result()?;
                    }
                    Ok::<_, std::io::Error>(())
                });
                let error = server.incoming.receive().await.unwrap_err();
                let late = Protocol::Timeout(Timeout::Message);
                assert!(matches!(error, Error::Protocol(error) if error == late), "{error:?}");
                // The close frame has to be answered within 5 s more.
                assert!((100..=105).contains(&seconds_since(begun)), "{}", seconds_since(begun));
                let answer = read_to_end(&mut read).await;
                let pongs = answer.strip_suffix(b"\x88\x02\x03\xF0").unwrap();
                assert!(pongs.chunks(2).all(|pong| pong == b"\x8A\x00"));
                drop(server);
                dribbling.await.unwrap().unwrap_err();
            }
        });
    }
}

#[test]
fn each_message_has_a_time_of_its_own() {
    let mut config = Config::default();
    config.stream.message_timeout = Some(Duration::from_secs(100));
    let message = frame(Role::Server, FIN | BINARY, b"message");
    let (start, end) = message.split_at(5);
    let writes = [start.to_vec(), [end, start].concat(), [end, start].concat(), end.to_vec()];
    let writes = &writes;
    for growth in GROWTHS {
        simulate(|| async move {
            let (mut server, mut raw) = raw_client(config, buffers(), growth, b"").await;
            let writes = writes.clone();
            let peer = Sim::spawn(async move {
                for bytes in writes {
                    raw.write_all(bytes).await.into_result().unwrap();
                    Sim::sleep(Duration::from_secs(80)).await;
                }
                // Silence between messages is allowed.
                Sim::sleep(Duration::from_secs(500)).await;
                raw.write_all(frame(Role::Server, FIN | CLOSE, b"")).await.into_result().unwrap();
                read_to_end(&mut raw).await
            });
            for _ in 0..3 {
                let received = server.incoming.receive().await.unwrap();
                assert_eq!(received, Some(Message::Binary(b"message")));
            }
            assert_eq!(server.incoming.receive().await.unwrap(), None);
            assert_eq!(peer.await.unwrap(), b"\x88\x00");
        });
    }
}

#[test]
fn a_peer_that_does_not_close_is_cut_off() {
    for growth in GROWTHS {
        simulate(|| async move {
            let (mut server, raw) = raw_client(Config::default(), buffers(), growth, b"").await;
            let start = Sim::now();
            let error = server.close(NORMAL).await.unwrap_err();
            let late = Protocol::Timeout(Timeout::Close);
            assert!(matches!(error, Error::Protocol(error) if error == late), "{error:?}");
            assert_eq!(seconds_since(start), 5);
            drop(raw);
        });
    }
}

/// The close timeout applies to writes even without a write timeout.
#[test]
fn a_peer_that_does_not_read_the_close_is_cut_off() {
    let mut config = Config::default();
    config.stream.write_timeout = None;
    for growth in GROWTHS {
        simulate(|| async move {
            // The peer reads nothing, or it reads slowly. Reading slowly is allowed unless the peer violated the
            // protocol.
            for (wire, taken_bytes, expected) in [
                (vec![], 0, Some(Protocol::Timeout(Timeout::Close))),
                (vec![], 50_000, None),
                (frame(Role::Server, FIN | 3, b""), 1_000, Some(Violation::ReservedOpcode.into())),
            ] {
                let (mut server, mut raw) = raw_client(config, buffers(), growth, &wire).await;
                let start = Sim::now();
                let peer = Sim::spawn(async move {
                    let mut left = 1_000_010;
                    while taken_bytes > 0 && left > 0 {
                        Sim::sleep(Duration::from_secs(2)).await;
                        let n = taken_bytes.min(left);
                        let read = raw.read_exact(Vec::with_capacity(n), n).await.into_result();
                        if read.is_err() {
                            return raw;
                        }
                        left -= n;
                    }
                    let close = frame(Role::Server, FIN | CLOSE, b"");
                    if taken_bytes > 0 {
                        raw.write_all(close).await.into_result().unwrap();
                    }
                    raw
                });
                server.outgoing.write(Message::Binary(&[0; 1_000_000])).unwrap();
                let closed = match wire.is_empty() {
                    true => server.close(NORMAL).await,
                    false => server.incoming.receive().await.map(drop),
                };
                match (closed, expected) {
                    (Ok(()), None) => assert!(seconds_since(start) >= 38),
                    (Err(Error::Protocol(error)), Some(expected)) => {
                        assert_eq!((error, seconds_since(start)), (expected, 5));
                    }
                    other => panic!("{other:?}"),
                }
                drop(server);
                peer.await.unwrap();
            }
        });
    }
}

#[test]
fn each_violation_has_its_error_and_its_close_code() {
    let mut config = Config::default();
    (config.engine.frame_bytes_max, config.engine.message_bytes_max) = (1_000, 1_500);
    let limit = |limit, max, got| Protocol::Limit { limit, max, got };
    let fragments = [
        frame(Role::Server, BINARY, &[0; 1_000]),
        frame(Role::Server, FIN | CONTINUATION, &[0; 501]),
    ];
    let cases = [
        (frame(Role::Server, FIN | BINARY, &[0; 1_001]), limit(Limit::Frame, 1_000, 1_001), 1009),
        (fragments.concat(), limit(Limit::Message, 1_500, 1_501), 1009),
        (frame(Role::Client, FIN | BINARY, b""), Violation::NotMasked.into(), 1002),
        (frame(Role::Server, FIN | 0x40 | BINARY, b""), Violation::ReservedBits.into(), 1002),
        (frame(Role::Server, FIN | 3, b""), Violation::ReservedOpcode.into(), 1002),
        (frame(Role::Server, FIN | 11, b""), Violation::ReservedOpcode.into(), 1002),
        (frame(Role::Server, PING, b""), Violation::FragmentedControlFrame.into(), 1002),
        (frame(Role::Server, FIN | PING, &[0; 126]), Violation::LongControlFrame.into(), 1002),
        (
            frame(Role::Server, FIN | CONTINUATION, b""),
            Violation::ContinuationWithoutStart.into(),
            1002,
        ),
        (
            [frame(Role::Server, TEXT, b""), frame(Role::Server, TEXT, b"")].concat(),
            Violation::MessageWithinMessage.into(),
            1002,
        ),
        (frame(Role::Server, FIN | TEXT, b"\xFF"), Violation::TextNotUtf8.into(), 1007),
        (frame(Role::Server, FIN | CLOSE, b"\x03"), Violation::TruncatedCloseCode.into(), 1002),
    ];
    for growth in GROWTHS {
        simulate(|| {
            let cases = cases.clone();
            async move {
                for (wire, expected, code) in cases {
                    let (mut server, mut raw) = raw_client(config, buffers(), growth, &wire).await;
                    let answer = Sim::spawn(async move { read_to_end(&mut raw).await });
                    for _ in 0..2 {
                        let error = server.incoming.receive().await.unwrap_err();
                        let is_it = matches!(error, Error::Protocol(error) if error == expected);
                        assert!(is_it, "{error:?} instead of {expected:?}");
                    }
                    let close = [&[0x88, 2], &u16::to_be_bytes(code)[..]].concat();
                    assert_eq!(answer.await.unwrap(), close, "{expected:?}");
                }
            }
        });
    }
}

#[test]
fn the_message_limit_is_reported_where_the_frame_limit_is_the_same() {
    let mut config = Config::default();
    (config.engine.frame_bytes_max, config.engine.message_bytes_max) = (1_000, 1_000);
    let fragments =
        [frame(Role::Server, BINARY, &[0; 1_000]), frame(Role::Server, FIN | CONTINUATION, b"1")];
    for wire in [fragments.concat(), frame(Role::Server, FIN | BINARY, &[0; 1_001])] {
        for growth in GROWTHS {
            simulate(|| {
                let wire = wire.clone();
                async move {
                    let (mut server, raw) = raw_client(config, buffers(), growth, &wire).await;
                    drop(raw);
                    let error = server.incoming.receive().await.unwrap_err();
                    let (limit, max, got) = (Limit::Message, 1_000, 1_001);
                    let long = Protocol::Limit { limit, max, got };
                    assert!(matches!(error, Error::Protocol(error) if error == long), "{error:?}");
                }
            });
        }
    }
}

#[test]
fn long_length_fields_and_reserved_close_codes_are_accepted() {
    for growth in GROWTHS {
        simulate(|| async move {
            let mut wire = vec![0x82, 0x80 | 126, 0, 1, 0, 0, 0, 0, b'x']; // a length of 1 in the 16-bit field
            wire.extend(frame(Role::Server, FIN | CLOSE, &1005_u16.to_be_bytes()));
            let (mut server, mut raw) =
                raw_client(Config::default(), buffers(), growth, &wire).await;
            let answer = Sim::spawn(async move { read_to_end(&mut raw).await });
            let received = server.incoming.receive().await.unwrap();
            assert_eq!(received, Some(Message::Binary(b"x")));
            assert_eq!(server.incoming.receive().await.unwrap(), None);
            assert_eq!(answer.await.unwrap()[2..4], 1002_u16.to_be_bytes());
        });
    }
}

#[test]
fn the_queue_is_bounded_and_a_flush_empties_it() {
    for growth in GROWTHS {
        simulate(|| async move {
            let mut config = Config::default();
            config.engine.queue_bytes_max = 100_000;
            let (mut server, mut raw) = raw_client(config, buffers(), growth, b"").await;
            let reading = Sim::spawn(async move { read_to_end(&mut raw).await.len() });
            for _ in 0..2 {
                for _ in 0..9 {
                    server.outgoing.write(Message::Binary(&[0; 11_000])).unwrap();
                }
                assert_eq!(server.outgoing.queued_bytes(), 9 * 11_004);
                let full = server.outgoing.write(Message::Binary(&[0; 1_000]));
                let (limit, max, got) = (Limit::Queue, 100_000, 9 * 11_004 + 1_004);
                assert_eq!(full, Err(Protocol::Limit { limit, max, got }));
                server.outgoing.flush().await.unwrap();
            }
            drop(server);
            assert_eq!(reading.await.unwrap(), 18 * 11_004);
        });
    }
}

#[test]
fn a_dropped_flush_loses_nothing_and_a_dropped_receive_interrupts() {
    for growth in GROWTHS {
        simulate(|| async move {
            let (mut server, mut raw) = raw_client(Config::default(), buffers(), growth, b"").await;
            let payload = payload(500_000);
            server.outgoing.write(message(&payload)).unwrap();
            for _ in 0..10 {
                poll_once(server.outgoing.flush()).await;
            }
            let reading = Sim::spawn(async move {
                let ((), wire) = raw
                    .read_exact(Vec::with_capacity(500_010), 500_010)
                    .await
                    .into_result()
                    .unwrap();
                (wire, raw)
            });
            while server.outgoing.queued_bytes() > 0 {
                poll_once(server.outgoing.flush()).await;
                Sim::sleep(Duration::from_millis(1)).await;
            }
            let (wire, _raw) = reading.await.unwrap();
            assert!(wire[10..] == payload);
            poll_once(server.incoming.receive()).await;
            for _ in 0..2 {
                let error = server.incoming.receive().await.unwrap_err();
                assert!(matches!(error, Error::Interrupted), "{error:?}");
            }
        });
    }
}

/// Polls `future` once, and drops it.
async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _ = future.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}
