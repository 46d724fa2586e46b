//! Text over a transport that is safe code but breaks the contract. It unwraps the buffers that it is given, and
//! overwrites bytes that were received and checked before. This must never produce a `str` that is not UTF-8.
#![forbid(unsafe_code)]

mod common;
mod ends;

use std::any::Any;
use std::collections::VecDeque;
use std::io;

use common::{CONTINUATION, FIN, Role, TEXT, frame};
use ends::{buffers, request};
use owned_io::backend::Duplex;
use owned_io::{BufResult, ByteStream, IoBufMut, IoBufMutExt, OwnedRead, Pool, PoolBuf, Spare};
use owned_io_sim::{Sim, pipe};
use owned_io_websocket::stream::{Error, accept};
use owned_io_websocket::{Config, MessageKind};

/// A character of three bytes. If a text of these is cut at any offset that is no multiple of three, the engine
/// holds a part of a character.
const EURO: &str = "\u{20AC}";

/// Returns one chunk with each read. After `reads_before` reads, it overwrites everything that a buffer held before
/// with bytes that are never part of UTF-8.
struct Hostile {
    chunks: VecDeque<Vec<u8>>,
    reads_before: usize,
}

impl OwnedRead for Hostile {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        let mut buf = Some(buf);
        let opened: &mut dyn Any = &mut buf;
        if self.reads_before > 0 {
            self.reads_before -= 1;
        } else if let Some(boxed) = opened.downcast_mut::<Option<Box<Spare<Vec<u8>>>>>() {
            let mut spare = boxed.take().map(|boxed| *boxed);
            rewrite(&mut spare);
            *boxed = spare.map(Box::new);
        } else if let Some(spare) = opened.downcast_mut::<Option<Spare<PoolBuf>>>() {
            rewrite(spare);
        }
        let mut buf = buf.expect("it was put back");
        let chunk = self.chunks.pop_front().unwrap_or_default();
        let n = buf.buf_fill(&chunk);
        if n < chunk.len() {
            self.chunks.push_front(chunk[n..].to_vec());
        }
        BufResult(io::Result::Ok(n), buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.read(pool.take()?).await.into_result().map(|(_, buf)| buf)
    }
}

fn rewrite<B: IoBufMut + AsMutBytes>(spare: &mut Option<Spare<B>>) {
    let mut whole = spare.take().expect("a buffer").into_inner();
    whole.as_mut_bytes().fill(0xFF);
    *spare = Some(whole.spare());
}

trait AsMutBytes {
    fn as_mut_bytes(&mut self) -> &mut [u8];
}

impl AsMutBytes for Vec<u8> {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        self
    }
}

impl AsMutBytes for PoolBuf {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// Receives the first message from these chunks, which follow the handshake, and asserts that it is UTF-8. The
/// transport begins to overwrite earlier bytes with the read of chunk `from`.
fn receive(chunks: impl IntoIterator<Item = Vec<u8>>, from: usize) -> Result<Vec<u8>, Error> {
    let chunks = [request()].into_iter().chain(chunks).collect();
    owned_io_sim::block_on(async {
        let (a, _b) = pipe();
        let (_, write) = a.into_split();
        let stream = Duplex::new(Hostile { chunks, reads_before: 1 + from }, write);
        let mut socket = accept::<Sim, _>(stream, &buffers(), Config::default()).await.unwrap();
        let message = socket.incoming.receive().await?.expect("a message");
        assert_eq!(message.kind(), MessageKind::Text);
        std::str::from_utf8(message.as_bytes()).expect("the text of a message is UTF-8");
        Ok(message.as_bytes().to_vec())
    })
}

fn cut(bytes: &[u8], at: &[usize]) -> Vec<Vec<u8>> {
    let ends = at.iter().copied().chain([bytes.len()]);
    let mut start = 0;
    ends.map(|end| bytes[std::mem::replace(&mut start, end)..end].to_vec()).collect()
}

#[test]
#[should_panic(expected = "the transport changed bytes that were received")]
fn an_overwritten_long_message_panics() {
    let text = EURO.repeat(20_000);
    receive(cut(&frame(Role::Server, FIN | TEXT, text.as_bytes()), &[1000]), 1).unwrap();
}

#[test]
fn the_start_of_a_fragment_cannot_be_overwritten() {
    let mut chunks = cut(&frame(Role::Server, TEXT, EURO.repeat(30).as_bytes()), &[10, 51]);
    chunks.push(frame(Role::Server, FIN | CONTINUATION, EURO.as_bytes()));
    assert_eq!(receive(chunks, 2).unwrap(), EURO.repeat(31).as_bytes());
}

#[test]
fn the_start_of_a_short_message_cannot_be_overwritten() {
    let whole = frame(Role::Server, FIN | TEXT, EURO.repeat(30).as_bytes());
    assert_eq!(receive(cut(&whole, &[10, 51]), 2).unwrap(), EURO.repeat(30).as_bytes());
}

#[test]
fn text_that_the_transport_gets_no_second_time_is_intact() {
    let whole = frame(Role::Server, FIN | TEXT, EURO.as_bytes());
    assert_eq!(receive([whole], 0).unwrap(), EURO.as_bytes());
    let fragments = [
        frame(Role::Server, TEXT, &EURO.as_bytes()[..1]),
        frame(Role::Server, FIN | CONTINUATION, &EURO.as_bytes()[1..]),
    ];
    assert_eq!(
        receive(fragments.clone(), 0).unwrap(),
        EURO.as_bytes(),
        "one read for each fragment"
    );
    assert_eq!(
        receive([fragments.concat()], 0).unwrap(),
        EURO.as_bytes(),
        "both fragments in one read"
    );
}
