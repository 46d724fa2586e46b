//! The other codecs, each through its public API, on a connection that is always ready.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use futures_core::Stream;
use owned_io_comparisons_codec::{CHUNK_BYTES, Connection, Tally, Wire, expect_ready};

pub(crate) fn tungstenite(wire: &Wire) -> impl FnMut(&mut Tally) {
    use tungstenite::protocol::{Role, WebSocket};
    let mut socket = WebSocket::from_raw_socket(Connection::new(wire), Role::Server, None);
    let expected = wire.tally.messages;
    move |tally| {
        while tally.messages < expected {
            match socket.read().unwrap() {
                tungstenite::Message::Binary(payload) => tally.add(&payload),
                tungstenite::Message::Text(text) => tally.add(text.as_bytes()),
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn fastwebsockets(wire: &Wire) -> impl FnMut(&mut Tally) {
    use fastwebsockets::{FragmentCollector, Role, WebSocket};
    let mut socket = WebSocket::after_handshake(Connection::new(wire), Role::Server);
    socket.set_writev(false);
    let mut socket = FragmentCollector::new(socket); // it also validates UTF-8
    let expected = wire.tally.messages;
    move |tally| {
        while tally.messages < expected {
            tally.add(&expect_ready(socket.read_frame()).unwrap().payload);
        }
    }
}

pub(crate) fn tokio_websockets(wire: &Wire) -> impl FnMut(&mut Tally) {
    let mut socket = tokio_websockets::ServerBuilder::new().serve(Connection::new(wire));
    let expected = wire.tally.messages;
    move |tally| {
        let context = &mut Context::from_waker(Waker::noop());
        while tally.messages < expected {
            // The library yields now and then. Its future is then pending although the connection is ready.
            if let Poll::Ready(message) = Pin::new(&mut socket).poll_next(context) {
                tally.add(message.unwrap().unwrap().as_payload());
            }
        }
    }
}

pub(crate) fn sockudo(wire: &Wire) -> impl FnMut(&mut Tally) {
    use sockudo_ws::{Message, protocol::Protocol, protocol::Role};
    let mut protocol = Protocol::new(Role::Server, 16 << 20, 64 << 20);
    let (mut connection, expected) = (Connection::new(wire), wire.tally.messages);
    let (mut buf, mut messages) = (BytesMut::with_capacity(2 * CHUNK_BYTES), Vec::new());
    move |tally| {
        while tally.messages < expected {
            buf.extend_from_slice(connection.next(CHUNK_BYTES));
            protocol.process_into(&mut buf, &mut messages).unwrap();
            for message in messages.drain(..) {
                match message {
                    Message::Binary(payload) | Message::Text(payload) => tally.add(&payload),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

pub(crate) fn web_socket(wire: &Wire) -> impl FnMut(&mut Tally) {
    let stream = tokio::io::BufReader::with_capacity(CHUNK_BYTES, Connection::new(wire));
    let mut socket = web_socket::WebSocket::server(stream);
    let expected = wire.tally.messages;
    move |tally| {
        while tally.messages < expected {
            match expect_ready(socket.recv()).unwrap() {
                web_socket::Event::Data { data, .. } => tally.add(&data),
                _ => panic!("no data"),
            }
        }
    }
}
