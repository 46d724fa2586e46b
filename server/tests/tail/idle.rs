//! The memory of connections that wait: an idle subscriber, and an idle echo.
//!
//! Most of it is futures, which keep space for each await that they contain. One more await with a large future, or a future
//! that is passed by value, adds to every connection, and nothing else tells.

use owned_io::{Buffers, Executor, MemoryBudget, Pool, PoolConfig};
use owned_io_server::config::WebSockets;
use owned_io_sim::{Config, Sim, SimStream};
use owned_io_websocket::handshake::Offer;
use owned_io_websocket::stream::{Message, WebSocket, connect};

use super::owners::server_bytes;
use super::server::{Server, next};

/// What a subscriber may take, in bytes, without optimisation. It takes 3,229: the session with the half that receives
/// 1,104, what both halves share 744, the future that writes 504, its task 424, and some small things of 8 to 90 each, such
/// as its account, its deadline, its subscription and its entry in the registry. When a service was no future of its own,
/// it took 2,600 more.
const SUBSCRIBER_BYTES_MAX: usize = 3_300;

/// The same for an echo over WebSocket. It takes 2,869.
const ECHO_BYTES_MAX: usize = 2_950;

/// So many that what they share counts little.
const CONNECTIONS: usize = 100;

#[test]
fn a_subscriber_that_waits_is_small() {
    simulate(async |server| {
        let mut producer = server.producer().await;
        let open = async || {
            let mut sockets = Vec::new();
            for _ in 0..CONNECTIONS {
                sockets.push(server.workers[0].tail("s/t/0", &[]).await);
            }
            sockets
        };
        let mut first = open().await; // its feed, and what is kept for reuse
        let before = server_bytes();
        let mut sockets = open().await;
        producer.send_numbered(0..1).await;
        for socket in first.iter_mut().chain(&mut sockets) {
            next(socket).await; // it is subscribed
        }
        assert_small(before, SUBSCRIBER_BYTES_MAX);
    });
}

#[test]
fn an_echo_that_waits_is_small() {
    simulate(async |server| {
        let open = async || {
            let mut sockets = Vec::new();
            for _ in 0..CONNECTIONS {
                sockets.push(echo(server).await);
            }
            sockets
        };
        let _first = open().await;
        let before = server_bytes();
        let _sockets = open().await;
        assert_small(before, ECHO_BYTES_MAX);
    });
}

fn simulate(case: impl AsyncFn(&Server)) {
    Sim::block_on(Config::with_seed(1), async {
        let server = Server::new(WebSockets::default()).await;
        case(&server).await;
    })
    .unwrap();
}

/// An echo that has answered a message.
async fn echo(server: &Server) -> WebSocket<SimStream> {
    let (client, _) = server.workers[0].serve();
    let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
    let offer = Offer { host: "localhost", path: "/echo", ..Offer::default() };
    let config = owned_io_websocket::Config::default();
    let (mut socket, _) = connect::<Sim, _>(client, &buffers, config, &offer).await.unwrap();
    socket.outgoing.send(Message::Text("hello")).await.unwrap();
    assert_eq!(socket.incoming.receive().await.unwrap(), Some(Message::Text("hello")));
    socket
}

/// Each of the connections that were opened since `before` takes at most `bytes_max`, and no less than half of that: a bound
/// that is far off bounds nothing.
fn assert_small(before: isize, bytes_max: usize) {
    let bytes = usize::try_from(server_bytes() - before).unwrap() / CONNECTIONS;
    println!("{bytes} bytes each");
    assert!((bytes_max / 2..=bytes_max).contains(&bytes), "{bytes} bytes each");
}
