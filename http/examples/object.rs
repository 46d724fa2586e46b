//! Serves one object of 1,345,292 bytes, whole and in ranges: `object ADDR` on tokio. A body that is posted to it
//! is counted; `/echo` answers with it, while it arrives.
//!
//! Try it with `curl -v http://127.0.0.1:8080/ -r 0-9`.

use std::net::SocketAddr;
use std::time::Duration;
use std::{env, error, io};

use bytes::Bytes;
use owned_io::{
    Buffers, ByteStream, ListenOptions, MemoryBudget, Pool, PoolConfig, Runtime, TcpListener,
};
use owned_io_http::{Config, Connection, Error, RangeChoice, Response};

const OBJECT_BYTES: usize = 1_345_292;
const ETAG: &str = "\"1\"";

fn main() -> Result<(), Box<dyn error::Error>> {
    let addr = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".into());
    Ok(run::<owned_io_tokio::Tokio>(addr.parse()?)?)
}

fn run<R: Runtime>(addr: SocketAddr) -> io::Result<()> {
    R::block_on(R::tuned(), accept::<R>(addr))?
}

async fn accept<R: Runtime>(addr: SocketAddr) -> io::Result<()> {
    let bound = R::bind(ListenOptions::new(addr))?;
    let mut listener = R::listen(&bound)?;
    println!("listening on {}", bound.local_addr());
    let buffers = Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(64 << 20));
    let object = Bytes::from(vec![b'x'; OBJECT_BYTES]);
    loop {
        let Ok((stream, _peer)) = listener.accept().await else {
            R::sleep(Duration::from_millis(50)).await; // out of descriptors, for example
            continue;
        };
        let (buffers, object) = (buffers.clone(), object.clone());
        drop(R::spawn(async move {
            if let Err(error) = serve::<R>(stream, &buffers, object).await {
                eprintln!("{error}");
            }
        }));
    }
}

async fn serve<R: Runtime>(
    stream: impl ByteStream,
    buffers: &Buffers,
    object: Bytes,
) -> Result<(), Error> {
    let mut connection = Connection::<R, _>::new(stream, buffers, Config::default());
    while let Some(request) = connection.next().await? {
        match (request.method(), request.path()) {
            ("GET" | "HEAD", "/") => {
                let headers = [("Accept-Ranges", "bytes"), ("ETag", ETAG)];
                let len = object.len() as u64;
                let (response, body) = match RangeChoice::of(&request, len, Some(ETAG)) {
                    RangeChoice::Whole => (Response::new(200), object.clone()),
                    RangeChoice::Part(part) => {
                        let body = object.slice(part.start as usize..part.end as usize);
                        (Response::partial(part, len), body)
                    }
                    RangeChoice::Unsatisfiable => (Response::unsatisfiable(len), Bytes::new()),
                };
                connection.respond(&response.with_headers(&headers), body).await?;
            }
            ("POST", "/echo") => {
                let length = request.body();
                connection.begin(&Response::new(200), length).await?;
                while let Some(piece) = connection.read_body().await? {
                    let piece = Bytes::copy_from_slice(piece);
                    connection.write_body(piece).await?;
                }
                connection.finish().await?;
            }
            ("POST", "/") => {
                let mut bytes = 0;
                while let Some(piece) = connection.read_body().await? {
                    bytes += piece.len();
                }
                connection.respond(&Response::new(200), format!("{bytes}\n")).await?;
            }
            (_, "/" | "/echo") => connection.respond(&Response::new(405), "").await?,
            _ => connection.respond(&Response::new(404), "the paths are / and /echo\n").await?,
        }
    }
    Ok(())
}
