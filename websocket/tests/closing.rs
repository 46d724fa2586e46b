//! How a server ends the connection once both sides have closed, in simulated time.

mod common;
mod ends;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use common::{CLOSE, FIN, Role, frame};
use ends::{
    Protocol, buffers, close_server, raw_client, raw_client_over, read_to_end, seconds_since,
    simulate,
};
use owned_io::backend::{Duplex, Endpoint, ShutdownTarget};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, IoBuf, IoVec, OwnedWrite, OwnedWriteExt, ShutdownHandle,
};
use owned_io_sim::{Sim, SimReadHalf, SimStream, SimWriteHalf, pipe};
use owned_io_websocket::stream::Message;
use owned_io_websocket::{Config, Misuse};

/// The payload of a normal close.
const CLOSE_NORMAL: &[u8] = b"\x03\xE8";

/// The server's close frame.
const CLOSED_BY_SERVER: &[u8] = b"\x88\x02\x03\xE8";

/// The client sees the end although the server keeps both halves. Nothing is shut down, unless the transport needs that.
#[test]
fn a_server_drops_its_connection_once_both_have_closed() {
    simulate(|| async {
        for (server_begins, is_plain) in
            [(false, true), (true, true), (false, false), (true, false)]
        {
            let (a, raw) = pipe();
            let (transport, shutdowns) = observed(a, is_plain);
            let (mut server, mut raw) =
                raw_client_over(transport, raw, Config::default(), buffers(), b"").await;
            let start = Sim::now();
            let serving = Sim::spawn(async move {
                close_server(&mut server, server_begins).await;
                server
            });
            let close = frame(Role::Server, FIN | CLOSE, CLOSE_NORMAL);
            raw.write_all(close).await.into_result().unwrap();
            let mut server = serving.await.unwrap();
            assert_eq!(read_to_end(&mut raw).await, CLOSED_BY_SERVER);
            assert_eq!(seconds_since(start), 0);
            assert_eq!(shutdowns.get() == 0, is_plain, "{} shutdowns", shutdowns.get());

            // The halves say what they would say after any close.
            assert_eq!(server.incoming.receive().await.unwrap(), None);
            assert_eq!(server.incoming.try_receive(), None);
            let refused = server.outgoing.write(Message::Text("late")).unwrap_err();
            assert_eq!(refused, Protocol::Misuse(Misuse::SentAfterClose));
            server.outgoing.flush().await.unwrap();
            server.outgoing.shutdown_handle().shutdown(Shutdown::Both);
        }
    });
}

/// The flush of the other half then ends the stream.
#[test]
fn a_close_whose_receive_was_dropped_still_ends_the_stream() {
    simulate(|| async {
        let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
        let long = "x".repeat(200_000); // more than the transport takes
        server.outgoing.write(Message::Text(&long)).unwrap();
        let close = frame(Role::Server, FIN | CLOSE, CLOSE_NORMAL);
        let (mut read, mut write) = raw.into_split();
        write.write_all(close).await.into_result().unwrap();
        {
            let mut receive = pin!(server.incoming.receive());
            let limit = Sim::now() + Duration::from_secs(1);
            while Sim::now() < limit {
                assert!(poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx))).await.is_pending());
                Sim::sleep(Duration::from_millis(10)).await;
            }
        }
        let reading = Sim::spawn(async move { read_to_end(&mut read).await });
        server.outgoing.flush().await.unwrap();
        let received = reading.await.unwrap();
        assert!(received.ends_with(CLOSED_BY_SERVER));
        drop((server, write));
    });
}

/// It must not. The server does not close its end while something is unread, so the client is not reset before it has
/// read the answer and the end.
#[test]
fn a_client_that_keeps_sending_behind_its_close_frame_is_answered() {
    simulate(|| async {
        for pause in [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(20)] {
            let (mut server, raw) = raw_client(Config::default(), buffers(), b"").await;
            let start = Sim::now();
            let serving = Sim::spawn(async move {
                assert_eq!(server.incoming.receive().await.unwrap(), None);
                assert!(seconds_since(start) <= 5);
            });
            let (mut read, mut write) = raw.into_split();
            let close = frame(Role::Server, FIN | CLOSE, CLOSE_NORMAL);
            write.write_all(close).await.into_result().unwrap();
            let sending = Sim::spawn(async move {
                let mut sent = 0;
                while sent < 200 && write.write_all("x").await.into_result().is_ok() {
                    sent += 1;
                    Sim::sleep(pause).await;
                }
                write // open until the server has ended
            });
            assert_eq!(read_to_end(&mut read).await, CLOSED_BY_SERVER);
            serving.await.unwrap();
            drop(sending.await.unwrap());
        }
    });
}

/// A transport that counts its shutdowns. One that is not plain has more to send before it ends, as TLS has.
fn observed(stream: SimStream, is_plain: bool) -> (Observed, Rc<Cell<u32>>) {
    let shutdowns = Rc::<Cell<u32>>::default();
    let target =
        Target { inner: stream.shutdown_handle(), shutdowns: Rc::clone(&shutdowns), is_plain };
    let (read, write) = stream.into_split();
    (Duplex::new(read, ObservedWrite { inner: write, target: Rc::new(target) }), shutdowns)
}

type Observed = Duplex<SimReadHalf, ObservedWrite>;

struct ObservedWrite {
    inner: SimWriteHalf,
    target: Rc<Target>,
}

struct Target {
    inner: ShutdownHandle,
    shutdowns: Rc<Cell<u32>>,
    is_plain: bool,
}

impl ShutdownTarget for Target {
    fn shutdown(&self, how: Shutdown) {
        self.shutdowns.set(self.shutdowns.get() + 1);
        self.inner.shutdown(how);
    }

    fn drops_cleanly(&self) -> bool {
        self.is_plain && self.inner.drops_cleanly()
    }

    fn abort(&self) {
        self.inner.abort();
    }
}

impl OwnedWrite for ObservedWrite {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.inner.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.inner.write_vectored(bufs).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.target.shutdowns.set(self.target.shutdowns.get() + 1);
        self.inner.shutdown().await
    }
}

impl Endpoint for ObservedWrite {
    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Target> = Rc::downgrade(&self.target);
        ShutdownHandle::new(target)
    }
}
