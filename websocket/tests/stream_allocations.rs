//! Once warm, an echo allocates nothing, whatever its size, on either side; nor does a large payload that
//! is sent by reference.

mod counting;

use bytes::Bytes;
use counting::allocations;
use owned_io::{Pool, PoolConfig, Runtime};
use owned_io_sim::{Sim, pipe};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, accept, connect};
use owned_io_websocket::{CloseCode, CloseFrame, Config, Kind, Part};

#[test]
fn echo_of_every_size_in_both_roles() {
    owned_io_sim::block_on(async {
        let (a, b) = pipe();
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), 1 << 20);
        let serving = {
            let buffers = buffers.clone();
            Sim::spawn(async move {
                let WebSocket { mut incoming, mut outgoing } =
                    accept::<Sim, _>(a, &buffers, Config::default()).await?;
                let shared = Bytes::from(vec![7; 100_000]);
                while let Some(message) = incoming.receive().await? {
                    outgoing.write(message)?;
                    if message == Message::Text("and yours?") {
                        outgoing.write_bytes(Part::Whole(Kind::Binary), shared.clone())?;
                    }
                    outgoing.flush().await?;
                }
                Ok::<_, Error>(())
            })
        };
        let offer = Offer::default();
        let (mut client, _) =
            connect::<Sim, _>(b, &buffers, Config::default(), &offer).await.unwrap();

        let payload = vec![b'a'; 64 * 1024];
        let text = std::str::from_utf8(&payload).unwrap();
        let yours = vec![7; 100_000];
        let mut before = 0;
        for round in 0..40 {
            if round == 20 {
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
        assert_eq!(allocations() - before, 0);
        let normal = CloseFrame { code: Some(CloseCode::NORMAL), reason: "" };
        client.close(normal).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}
