//! Once warm, an echo allocates nothing, whatever its size, on either side; nor does a large payload that
//! is sent by reference.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use owned_io::{Pool, PoolConfig, Runtime};
use owned_io_sim::{Sim, pipe};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Buffers, Error, Message, WebSocket, accept, connect};
use owned_io_websocket::{CloseCode, CloseFrame, Config, Kind, Part};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each method is the system allocator's, called with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
                before = ALLOCATIONS.load(Ordering::Relaxed); // warm
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
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
        let normal = CloseFrame { code: Some(CloseCode::NORMAL), reason: "" };
        client.close(normal).await.unwrap();
        serving.await.unwrap().unwrap();
    });
}
