//! A future of a connection that is dropped at any of its awaits does what its documentation says.

mod common;
mod ends;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use common::{BINARY, CLOSE, FIN, Role, TEXT, frame};
use ends::{NORMAL, Socket, buffers, pair, raw_client};
use owned_io::{Clock, Executor, MemoryBudget, OwnedWriteExt, Pool, PoolConfig};
use owned_io_sim::{Config as SimConfig, Sim, pipe};
use owned_io_websocket::Config;
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Error, Message, accept, connect};

/// Runs `test` under many seeds. Each seed runs with 0, 1, 2 and more waits before a future is dropped. Returns the
/// distinct outcomes.
fn simulate<F: Future<Output: Ord>>(
    waits_max: usize,
    test: impl Fn(usize) -> F,
) -> BTreeSet<F::Output> {
    let runs = (0..30).flat_map(|seed| (0..waits_max).map(move |waits| (seed, waits)));
    runs.map(|(seed, waits)| {
        println!("seed {seed}, {waits} waits"); // shown when the test fails
        Sim::block_on(SimConfig::with_seed(seed), test(waits)).unwrap()
    })
    .collect()
}

/// Waits for `future` at most `waits_left` times, then drops it.
async fn dropped_after<F: Future>(waits_left: &mut usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Pending if *waits_left == 0 => Poll::Ready(None),
        Poll::Pending => {
            *waits_left -= 1;
            Poll::Pending
        }
        Poll::Ready(output) => Poll::Ready(Some(output)),
    })
    .await
}

/// The form in which a message is received.
#[derive(Clone, Copy)]
enum Form {
    Whole,
    Owned,
    Pieces,
}

async fn receive(server: &mut Socket, form: Form) -> Result<Option<Vec<u8>>, Error> {
    let incoming = &mut server.incoming;
    Ok(match form {
        Form::Whole => incoming.receive().await?.map(|message| message.as_bytes().to_vec()),
        Form::Owned => incoming.receive_owned().await?.map(|message| message.as_bytes().to_vec()),
        Form::Pieces => {
            let mut message = Vec::new();
            loop {
                let Some(piece) = incoming.receive_piece().await? else { return Ok(None) };
                message.extend_from_slice(piece.payload);
                if piece.last {
                    return Ok(Some(message));
                }
            }
        }
    })
}

#[test]
fn a_dropped_receive_interrupts_unless_the_stream_had_ended() {
    let wire = [
        frame(Role::Server, FIN | TEXT, b"short"),
        frame(Role::Server, FIN | BINARY, &[1; 9_000]),
        frame(Role::Server, FIN | BINARY, &[2; 30_000]),
    ];
    let wire = &wire.concat();
    let expected = [&b"short"[..], &[1; 9_000], &[2; 30_000]];
    for form in [Form::Whole, Form::Owned, Form::Pieces] {
        let received = simulate(40, |mut waits| async move {
            let (mut server, mut raw) = raw_client(Config::default(), buffers(), b"").await;
            let wire = wire.clone();
            let _peer = Sim::spawn(async move {
                raw.write_all(wire).await.into_result().unwrap();
                Sim::sleep(Duration::from_millis(1)).await; // so that the last receive waits
                let close = frame(Role::Server, FIN | CLOSE, b"");
                raw.write_all(close).await.into_result().unwrap();
                raw
            });
            let mut received = 0;
            loop {
                match dropped_after(&mut waits, receive(&mut server, form)).await {
                    None => break,
                    Some(message) => match message.unwrap() {
                        Some(message) => assert_eq!(message, expected[received]),
                        None => return None,
                    },
                }
                received += 1;
            }
            assert_eq!(server.incoming.try_receive(), None);
            for _ in 0..2 {
                match receive(&mut server, form).await {
                    Err(Error::Interrupted) => {}
                    Ok(None) => assert_eq!(received, expected.len()),
                    other => panic!("{other:?}"),
                }
            }
            Some(received)
        });
        let dropped_at = received.into_iter().flatten();
        assert!(dropped_at.eq(0..=expected.len()), "before each, and before the end");
    }
}

#[test]
fn a_dropped_send_queued_the_whole_message_or_nothing() {
    let mut config = Config::default();
    config.engine.queue_bytes_max = 100_000;
    let received = simulate(40, |mut waits| async move {
        let (mut server, mut client) = pair(config, Config::default()).await;
        let receiving = Sim::spawn(async move {
            let mut received = 0;
            while let Some(message) = client.incoming.receive().await? {
                assert_eq!(message, Message::Binary(&vec![received; 60_000]));
                received += 1;
            }
            Ok::<_, Error>(received)
        });
        // Two messages do not fit the queue together. The second waits until the first is written.
        for number in 0..2 {
            let payload = vec![number; 60_000];
            let sending = server.outgoing.send(Message::Binary(&payload));
            match dropped_after(&mut waits, sending).await {
                Some(sent) => sent.unwrap(),
                None => break,
            }
        }
        server.outgoing.flush().await.unwrap();
        server.close(NORMAL).await.unwrap();
        receiving.await.unwrap().unwrap()
    });
    assert!(received.into_iter().eq([1, 2]));
}

#[test]
fn a_dropped_close_goes_on_with_the_next_receive() {
    let is_written = simulate(40, |mut waits| async move {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        server.outgoing.write(Message::Binary(&[7; 30_000])).unwrap();
        let receiving = Sim::spawn(async move {
            let message = client.incoming.receive().await?;
            assert_eq!(message, Some(Message::Binary(&[7; 30_000])));
            Ok::<_, Error>(client.incoming.receive().await?.is_none())
        });
        let is_written = dropped_after(&mut waits, server.outgoing.close(NORMAL)).await.is_some();
        server.outgoing.write(Message::Text("too late")).unwrap_err();
        assert_eq!(server.incoming.receive().await.unwrap(), None);
        assert!(receiving.await.unwrap().unwrap());
        is_written
    });
    assert!(is_written.into_iter().eq([false, true]));
}

#[test]
fn a_dropped_wait_for_the_close_of_the_peer_interrupts() {
    let is_closed = simulate(60, |mut waits| async move {
        let (mut server, mut client) = pair(Config::default(), Config::default()).await;
        let receiving = Sim::spawn(async move { client.incoming.receive().await.map(|_| ()) });
        let closed = dropped_after(&mut waits, server.close(NORMAL)).await;
        let is_closed = closed.is_some();
        match server.incoming.receive().await {
            Ok(None) => {}
            Err(Error::Interrupted) => assert!(!is_closed),
            other => panic!("{other:?}"),
        }
        drop(server);
        let _ = receiving.await.unwrap(); // either closed or lost
        is_closed
    });
    assert!(is_closed.into_iter().eq([false, true]));
}

#[test]
fn a_dropped_handshake_drops_the_connection_and_returns_its_buffers() {
    for asks in [false, true] {
        let is_open = simulate(30, |mut waits| async move {
            let (a, b) = pipe();
            let own = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
            let offer = Offer::default();
            let (opened, peer) = if asks {
                let peer = Sim::spawn(async move {
                    let mut server = accept::<Sim, _>(b, &buffers(), Config::default()).await?;
                    server.incoming.receive().await.map(|_| ())
                });
                let opening = connect::<Sim, _>(a, &own, Config::default(), &offer);
                (
                    dropped_after(&mut waits, opening).await.map(|opened| opened.map(|(ws, _)| ws)),
                    peer,
                )
            } else {
                let peer = Sim::spawn(async move {
                    let offer = Offer::default();
                    let opened = connect::<Sim, _>(b, &buffers(), Config::default(), &offer).await;
                    opened?.0.incoming.receive().await.map(|_| ())
                });
                let opening = accept::<Sim, _>(a, &own, Config::default());
                (dropped_after(&mut waits, opening).await, peer)
            };
            let is_open = opened.is_some();
            drop(opened.map(Result::unwrap));
            assert_eq!(own.pool().leased(), 0);
            peer.await.unwrap().unwrap_err(); // the connection ended, during the handshake or after it
            is_open
        });
        assert!(is_open.into_iter().eq([false, true]));
    }
}
