//! Text over a transport that is safe code and breaks every rule: it opens the buffers it is lent, and
//! rewrites what was received and checked before. No `str` may come of that which is not UTF-8.
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
use owned_io_websocket::{Config, Kind};

/// A character of three bytes; any cut of a text of these that is not at a multiple of three leaves the
/// engine with part of a character.
const EURO: &str = "\u{20AC}";

/// Gives one chunk with each read; and from some read on, fills all that a buffer held before with bytes
/// that no text has.
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
        } else if let Some(spare) = opened.downcast_mut::<Option<Spare<Vec<u8>>>>() {
            rewrite(spare);
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

/// The first message of these chunks, which come after the handshake, if the transport begins with the
/// read of chunk `from` to change what it gave before: text that is UTF-8.
fn receive(chunks: impl IntoIterator<Item = Vec<u8>>, from: usize) -> Result<Vec<u8>, Error> {
    let chunks = [request()].into_iter().chain(chunks).collect();
    owned_io_sim::block_on(async {
        let (a, _b) = pipe();
        let (_, write) = a.into_split();
        let stream = Duplex::new(Hostile { chunks, reads_before: 1 + from }, write);
        let mut socket = accept::<Sim, _>(stream, &buffers(), Config::default()).await.unwrap();
        let message = socket.incoming.receive().await?.expect("a message");
        assert_eq!(message.kind(), Kind::Text);
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
fn the_rest_of_a_long_frame_behind_the_message() {
    let text = EURO.repeat(20_000);
    receive(cut(&frame(Role::Server, FIN | TEXT, text.as_bytes()), &[1000]), 1).unwrap();
}

#[test]
fn the_rest_of_a_fragment_behind_its_start_is_out_of_reach() {
    let mut chunks = cut(&frame(Role::Server, TEXT, EURO.repeat(30).as_bytes()), &[10, 51]);
    chunks.push(frame(Role::Server, FIN | CONTINUATION, EURO.as_bytes()));
    assert_eq!(receive(chunks, 2).unwrap(), EURO.repeat(31).as_bytes());
}

#[test]
fn the_rest_of_a_short_message_behind_its_start_is_out_of_reach() {
    let whole = frame(Role::Server, FIN | TEXT, EURO.repeat(30).as_bytes());
    assert_eq!(receive(cut(&whole, &[10, 51]), 2).unwrap(), EURO.repeat(30).as_bytes());
}

#[test]
fn text_that_the_transport_never_has_again_is_right() {
    let whole = frame(Role::Server, FIN | TEXT, EURO.as_bytes());
    assert_eq!(receive([whole], 0).unwrap(), EURO.as_bytes());
    let fragments = [
        frame(Role::Server, TEXT, &EURO.as_bytes()[..1]),
        frame(Role::Server, FIN | CONTINUATION, &EURO.as_bytes()[1..]),
    ];
    assert_eq!(receive(fragments.clone(), 0).unwrap(), EURO.as_bytes(), "a read for each");
    assert_eq!(receive([fragments.concat()], 0).unwrap(), EURO.as_bytes(), "in one read");
}
