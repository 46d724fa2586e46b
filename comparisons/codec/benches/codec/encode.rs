//! The sending side of a server: messages of `len` bytes are queued and then flushed once. Each pass returns the
//! number of bytes written.

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use bytes::Bytes;
use owned_io_comparisons_codec::{Connection, Tally, Wire};
use owned_io_websocket::engine::Engine;
use owned_io_websocket::{Config, Fragment, MessageKind};

pub(crate) fn owned_io(len: usize, messages: usize) -> impl FnMut() -> usize {
    let mut config = Config::default();
    config.engine.queue_bytes_max = usize::MAX;
    let Engine { mut sender, control, .. } = Engine::server(config, Instant::now());
    let mut connection = Connection::new(&Wire { bytes: Vec::new(), tally: Tally::default() });
    let (payload, mut queue) = (vec![b'a'; len], Vec::new());
    move || {
        for _ in 0..messages {
            let fragment = Fragment::Whole(MessageKind::Binary);
            sender.encode(&control, fragment, black_box(&payload), &mut queue).unwrap();
        }
        connection.written = 0;
        connection.write_all(black_box(&queue)).unwrap();
        sender.handle_written(&control, queue.len(), Instant::now());
        queue.clear();
        connection.written
    }
}

pub(crate) fn tungstenite(len: usize, messages: usize) -> impl FnMut() -> usize {
    use tungstenite::protocol::{Role, WebSocket};
    let connection = Connection::new(&Wire { bytes: Vec::new(), tally: Tally::default() });
    let mut socket = WebSocket::from_raw_socket(connection, Role::Server, None);
    let payload = Bytes::from(vec![b'a'; len]);
    move || {
        socket.get_mut().written = 0;
        for _ in 0..messages {
            socket.write(tungstenite::Message::Binary(black_box(&payload).clone())).unwrap();
        }
        socket.flush().unwrap();
        socket.get_ref().written
    }
}
