//! What reaches the stream: how many writes, and which bytes are not copied.

mod ends;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use ends::buffers;
use owned_io::backend::ShutdownTarget;
use owned_io::{
    BufResult, ByteStream, Clock, Executor, IoBuf, IoBufExt, IoBufMut, IoBufMutExt, IoVec,
    OwnedRead, OwnedWrite, Pool, PoolBuf, ShutdownHandle, coop,
};
use owned_io_http::{BodyLength, Config, Connection, Response};
use owned_io_sim::Sim;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A stream that never waits. It reads its input and then the end, and takes every write as a whole.
struct Script {
    input: Vec<u8>,
    writes: Rc<RefCell<Vec<Write>>>,
    target: Rc<Ignored>,
}

/// A write: its bytes, and where its pieces are.
#[derive(Default)]
struct Write {
    bytes: Vec<u8>,
    pieces: Vec<usize>,
}

struct Ignored;

impl ShutdownTarget for Ignored {
    fn shutdown(&self, _how: Shutdown) {}
    fn abort(&self) {}
}

impl Script {
    fn new(input: impl Into<Vec<u8>>) -> (Self, Rc<RefCell<Vec<Write>>>) {
        let writes = Rc::default();
        let script =
            Self { input: input.into(), writes: Rc::clone(&writes), target: Rc::new(Ignored) };
        (script, writes)
    }
}

impl OwnedRead for Script {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        let n = buf.buf_fill(&self.input);
        self.input.drain(..n);
        BufResult(Ok(n), buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.read(pool.take()?).await.into_result().map(|(_, buf)| buf)
    }
}

impl OwnedWrite for Script {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let bytes = buf.buf_bytes();
        let write = Write { bytes: bytes.to_vec(), pieces: vec![bytes.as_ptr().addr()] };
        self.writes.borrow_mut().push(write);
        BufResult(Ok(bytes.len()), buf)
    }

    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        let mut write = Write::default();
        for piece in bufs.as_io_slices_within(coop::write_bytes_max()) {
            write.pieces.push(piece.as_ptr().addr());
            write.bytes.extend_from_slice(piece);
        }
        let n = write.bytes.len();
        self.writes.borrow_mut().push(write);
        bufs.advance(n);
        BufResult(Ok(n), bufs)
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ByteStream for Script {
    type ReadHalf = Self;
    type WriteHalf = Self;

    fn into_split(self) -> (Self, Self) {
        unimplemented!("it is not split")
    }

    fn shutdown_handle(&self) -> ShutdownHandle {
        let target: Weak<Ignored> = Rc::downgrade(&self.target);
        ShutdownHandle::new(target)
    }
}

#[test]
fn the_answers_to_requests_that_arrive_together_leave_in_one_write() {
    owned_io_sim::block_on(async {
        let (script, writes) = Script::new(GET.repeat(100));
        let mut connection = Connection::<Sim, _>::new(script, &buffers(), Config::default());
        let mut requests = 0;
        while connection.next().await.unwrap().is_some() {
            connection.respond(&Response::new(200), "hello").await.unwrap();
            requests += 1;
        }
        let writes = writes.borrow();
        assert_eq!((requests, writes.len()), (100, 1));
        let answers = String::from_utf8_lossy(&writes[0].bytes).matches("\r\n\r\nhello").count();
        assert_eq!(answers, 100);
    });
}

#[test]
fn a_long_body_is_not_copied_and_a_short_one_is() {
    owned_io_sim::block_on(async {
        let (long, short) = (Bytes::from(vec![b'l'; 2000]), Bytes::from(vec![b's'; 1000]));
        let (script, writes) = Script::new(GET.repeat(3));
        let mut connection = Connection::<Sim, _>::new(script, &buffers(), Config::default());
        for body in [&short, &long, &short] {
            connection.next().await.unwrap().unwrap();
            connection.respond(&Response::new(200), body.clone()).await.unwrap();
        }
        connection.flush().await.unwrap();
        let writes = writes.borrow();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            writes[0].pieces.len(),
            3,
            "two heads with a short body, the long body, the rest"
        );
        assert_eq!(writes[0].pieces[1], long.as_ptr().addr());
        assert!(!writes[0].pieces.contains(&short.as_ptr().addr()));
    });
}

#[test]
fn chunks_leave_together_until_the_queue_is_full() {
    owned_io_sim::block_on(async {
        let piece = Bytes::from(vec![b'p'; 16 * 1024]);
        let (script, writes) = Script::new(GET);
        let mut connection = Connection::<Sim, _>::new(script, &buffers(), Config::default());
        connection.next().await.unwrap().unwrap();
        connection.begin(&Response::new(200), BodyLength::Chunked).await.unwrap();
        for _ in 0..8 {
            connection.write_body(piece.clone()).await.unwrap();
        }
        connection.finish().await.unwrap();
        assert!(connection.next().await.unwrap().is_none());
        let writes = writes.borrow();
        assert_eq!(writes.len(), 3, "64 KiB, 64 KiB, and the end");
        let pieces = writes.iter().flat_map(|write| &write.pieces);
        assert_eq!(pieces.filter(|at| **at == piece.as_ptr().addr()).count(), 8);
        assert_eq!(writes[2].bytes, b"\r\n0\r\n\r\n");
    });
}

/// So a server whose clients read no answers copies little, and still writes much at once.
#[test]
fn pieces_that_are_not_copied_have_a_bound_of_their_own() {
    owned_io_sim::block_on(async {
        let piece = Bytes::from(vec![b'p'; 4 * 1024]);
        let (script, writes) = Script::new(GET);
        let mut config = Config::default();
        config.limits.queue_bytes_max = 2 * 1024;
        config.limits.queue_shared_bytes_max = 124 * 1024;
        let mut connection = Connection::<Sim, _>::new(script, &buffers(), config);
        connection.next().await.unwrap().unwrap();
        connection.begin(&Response::new(200), BodyLength::Chunked).await.unwrap();
        for _ in 0..62 {
            connection.write_body(piece.clone()).await.unwrap();
        }
        connection.finish().await.unwrap();
        assert!(connection.next().await.unwrap().is_none());
        assert_eq!(writes.borrow().len(), 3, "124 KiB, 124 KiB, and the end");
    });
}

/// The stream does not count work here: only the connection does.
#[test]
fn a_client_that_sends_many_requests_leaves_others_their_turn() {
    owned_io_sim::block_on(async {
        let turns = Rc::new(Cell::new(0));
        let counted = Rc::clone(&turns);
        drop(Sim::spawn(async move {
            for _ in 0..u32::MAX {
                counted.set(counted.get() + 1);
                Sim::sleep(Duration::ZERO).await;
            }
        }));
        let (script, _writes) = Script::new(GET.repeat(10_000));
        let serving = Sim::spawn(async move {
            let mut connection = Connection::<Sim, _>::new(script, &buffers(), Config::default());
            while connection.next().await.unwrap().is_some() {
                connection.respond(&Response::new(204), "").await.unwrap();
            }
        });
        serving.await.unwrap();
        assert!(turns.get() > 50, "{} turns", turns.get());
    });
}
