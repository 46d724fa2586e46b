//! Once warm, an echo of any size allocates nothing, on either side. A large payload that is sent by reference
//! allocates nothing either. An owned message that is sent by reference takes one small allocation. A frame for many
//! connections takes two, whatever their number.

mod counting;

use std::time::Duration;

use bytes::Bytes;
use counting::{allocations, live_bytes};
use owned_io::{
    Clock, Executor, MemoryBudget, OwnedReadExt, OwnedWriteExt, Pool, PoolConfig, select,
};
use owned_io_sim::{Sim, SimStream, pipe};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{
    Buffers, EncodedFrame, Error, Message, Outgoing, Received, WebSocket, accept, connect,
};
use owned_io_websocket::{CloseCode, CloseFrame, Config, Fragment, MessageKind};

#[test]
fn echo_of_every_size_in_both_roles() {
    // Two of the five sizes are assembled, each as binary and as text, in each of 20 rounds.
    for (owned, allowed) in [(false, 0), (true, 2 * 2 * 20)] {
        owned_io_sim::block_on(async {
            let (a, b) = pipe();
            let buffers =
                Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
            let serving = {
                let buffers = buffers.clone();
                Sim::spawn(async move {
                    let server = accept::<Sim, _>(a, &buffers, Config::default()).await?;
                    echo(server, owned).await
                })
            };
            let offer = Offer::default();
            let (mut client, _) =
                connect::<Sim, _>(b, &buffers, Config::default(), &offer).await.unwrap();
            let allocated = ask(&mut client).await;
            assert!(allocated <= allowed, "{allocated} times");
            let normal = CloseFrame { code: Some(CloseCode::NORMAL), reason: "" };
            client.close(normal).await.unwrap();
            serving.await.unwrap().unwrap();
        });
    }
}

#[test]
fn one_frame_for_many_connections() {
    owned_io_sim::block_on(async {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 20));
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            let (a, b) = pipe();
            let accepting = {
                let buffers = buffers.clone();
                Sim::spawn(async move { accept::<Sim, _>(a, &buffers, Config::default()).await })
            };
            let (config, offer) = (Config::default(), Offer::default());
            clients.push(connect::<Sim, _>(b, &buffers, config, &offer).await.unwrap().0);
            servers.push(accepting.await.unwrap().unwrap());
        }
        let payload = vec![7; 20_000];
        let mut before = 0;
        for round in 0..40 {
            if round == 20 {
                before = allocations(); // warm
            }
            for len in [100, 20_000] {
                let frame =
                    EncodedFrame::new(Fragment::Whole(MessageKind::Binary), &payload[..len]);
                for server in &mut servers {
                    server.outgoing.write_frame(&frame).unwrap();
                    server.outgoing.flush().await.unwrap();
                }
                for client in &mut clients {
                    let message = client.incoming.receive().await.unwrap();
                    assert_eq!(message, Some(Message::Binary(&payload[..len])));
                }
            }
        }
        let allocated = allocations() - before;
        assert!(allocated <= 2 * 2 * 20, "{allocated} times");
    });
}

#[test]
fn an_idle_connection_is_small_whatever_it_did_before() {
    const PAIRS: isize = 20;
    owned_io_sim::block_on(async {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(1 << 24));
        let (mut used, mut idle) = (0, Vec::new());
        for pair in -10..PAIRS {
            if pair == 0 {
                used = live_bytes(); // earlier connections have allocated what all share
            }
            let before = live_bytes();
            let (mut a, mut b) = pipe();
            for _ in 0..2 {
                a.write_all(vec![0; 64 * 1024]).await.into_result().unwrap();
                b.read_exact(Vec::with_capacity(65_536), 65_536).await.into_result().unwrap();
                std::mem::swap(&mut a, &mut b);
            }
            if pair >= 0 {
                used += live_bytes() - before; // memory of the simulator
            }
            let accepting = {
                let buffers = buffers.clone();
                Sim::spawn(async move { accept::<Sim, _>(a, &buffers, Config::default()).await })
            };
            let (config, offer) = (Config::default(), Offer::default());
            let (mut client, _) = connect::<Sim, _>(b, &buffers, config, &offer).await.unwrap();
            let mut server = accepting.await.unwrap().unwrap();
            let sending = Sim::spawn(async move {
                for _ in 0..20 {
                    for _ in 0..500 {
                        server.outgoing.write(Message::Binary(&[1; 200])).unwrap();
                    }
                    let large = Bytes::from(vec![2; 200_000]);
                    server
                        .outgoing
                        .write_bytes(Fragment::Whole(MessageKind::Binary), large)
                        .unwrap();
                }
                server.outgoing.flush().await.unwrap();
                server
            });
            for _ in 0..20 * 501 {
                client.incoming.receive().await.unwrap().unwrap();
            }
            for mut socket in [sending.await.unwrap(), client] {
                let mut receiving = Box::pin(async move {
                    let _ = socket.incoming.receive().await;
                    drop(socket);
                });
                let waited = Sim::sleep(Duration::from_millis(10));
                assert!(select(receiving.as_mut(), waited).await.first.is_none());
                idle.push(receiving);
            }
        }
        let each = (live_bytes() - used) / (2 * PAIRS);
        assert!(each < 4096, "{each} bytes each");
    });
}

async fn echo(server: WebSocket<SimStream>, owned: bool) -> Result<(), Error> {
    let WebSocket { mut incoming, mut outgoing } = server;
    let shared = Bytes::from(vec![7; 100_000]);
    let answer = |outgoing: &mut Outgoing, message: Message<'_>| {
        outgoing.write(message)?;
        if message == Message::Text("and yours?") {
            outgoing.write_bytes(Fragment::Whole(MessageKind::Binary), shared.clone())?;
        }
        Ok::<_, Error>(())
    };
    loop {
        if owned {
            match incoming.receive_owned().await? {
                Some(Received::Borrowed(message)) => answer(&mut outgoing, message)?,
                Some(Received::Owned(kind, payload)) => {
                    outgoing.write_bytes(Fragment::Whole(kind), payload)?;
                }
                None => return Ok(()),
            }
        } else {
            match incoming.receive().await? {
                Some(message) => answer(&mut outgoing, message)?,
                None => return Ok(()),
            }
        }
        outgoing.flush().await?;
    }
}

/// The allocations of both sides once all is warm.
async fn ask(client: &mut WebSocket<SimStream>) -> usize {
    let payload = vec![b'a'; 64 * 1024];
    let text = std::str::from_utf8(&payload).unwrap();
    let yours = vec![7; 100_000];
    let mut before = 0;
    for round in 0..60 {
        if round == 40 {
            before = allocations(); // warm
        }
        let ask = Message::Text("and yours?");
        client.outgoing.send(ask).await.unwrap();
        assert_eq!(client.incoming.receive().await.unwrap(), Some(ask));
        assert_eq!(client.incoming.receive().await.unwrap(), Some(Message::Binary(&yours)));
        for len in [16, 200, 1000, 16 * 1024, 64 * 1024] {
            for message in [Message::Binary(&payload[..len]), Message::Text(&text[..len])] {
                client.outgoing.ping(b"there?").unwrap();
                client.outgoing.send(message).await.unwrap();
                assert_eq!(client.incoming.receive().await.unwrap(), Some(message));
            }
        }
    }
    allocations() - before
}
