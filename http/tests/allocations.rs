//! Once warm, a request with a short body and its short answer allocate nothing. An answer with a long body by
//! reference takes one small allocation, which heads and framing share.

#[path = "../../websocket/tests/counting/mod.rs"]
mod counting;
mod ends;

use bytes::Bytes;
use counting::allocations;
use ends::{Server, buffers};
use owned_io::{Executor, OwnedRead, OwnedWriteExt};
use owned_io_http::{Config, Connection, Error, Response};
use owned_io_sim::{Sim, pipe};

const REQUEST: &str = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

/// The head of an answer with status 200, without its length: the status line, the date, and the line ends.
const HEAD_BYTES: usize =
    "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: \r\n\r\n".len();

async fn answer_each(connection: &mut Server, answer: Bytes) -> Result<(), Error> {
    while connection.next().await?.is_some() {
        while connection.read_body().await?.is_some() {}
        connection.respond(&Response::new(200), answer.clone()).await?;
    }
    Ok(())
}

/// Sends 200 requests, one after the other, and returns the allocations of the last 100 on both sides.
fn allocations_of(answer: Bytes) -> usize {
    owned_io_sim::block_on(async {
        let (near, mut far) = pipe();
        let answer_bytes = HEAD_BYTES + answer.len().to_string().len() + answer.len();
        let serving = Sim::spawn(async move {
            let mut connection = Connection::new(near, &buffers(), Config::default());
            answer_each(&mut connection, answer).await
        });
        let (mut before, mut buf) = (0, Vec::with_capacity(16 * 1024));
        for round in 0..200 {
            if round == 100 {
                before = allocations();
            }
            far.write_all(REQUEST).await.into_result().unwrap();
            let mut left = answer_bytes;
            while left > 0 {
                let n;
                (n, buf) = far.read(buf).await.into_result().unwrap();
                assert!((1..=left).contains(&n), "{n} bytes, {left} are left");
                left -= n;
            }
        }
        let allocated = allocations() - before;
        drop(far);
        serving.await.unwrap().unwrap();
        allocated
    })
}

#[test]
fn a_short_answer_allocates_nothing() {
    assert_eq!(allocations_of(Bytes::from_static(b"hello")), 0);
}

#[test]
fn a_long_answer_allocates_once() {
    let allocated = allocations_of(Bytes::from(vec![b'x'; 50_000]));
    assert!(allocated <= 100, "{allocated} times");
}
