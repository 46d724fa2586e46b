//! Both ends of a connection on the runtime's own streams. The server is that of `comparisons/peers/echo-*`.

use std::io;
use std::net::TcpStream;

use owned_io::Runtime;
use owned_io_compio::Compio;
use owned_io_monoio::Monoio;
use owned_io_tokio::Tokio;
use owned_io_tokio_uring::TokioUring;

use crate::connection::BUF_BYTES;

/// The message, and a buffer of the same length for the answer.
pub(crate) type Bufs = [Vec<u8>; 2];

/// A runtime and the same echo written on its own API.
pub(crate) trait ByHand: Runtime {
    type Stream: 'static;

    fn adopt(tcp: TcpStream) -> io::Result<Self::Stream>;

    /// Spawns a task that echoes until the peer ends its side.
    fn spawn_echo(stream: Self::Stream);

    /// Sends the message, reads the answer, and returns both buffers.
    async fn exchange(stream: &mut Self::Stream, bufs: Bufs) -> io::Result<Bufs>;
}

impl ByHand for Tokio {
    type Stream = tokio::net::TcpStream;

    fn adopt(tcp: TcpStream) -> io::Result<Self::Stream> {
        tcp.set_nonblocking(true)?;
        Self::Stream::from_std(tcp)
    }

    fn spawn_echo(mut stream: Self::Stream) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        drop(tokio::task::spawn_local(async move {
            let mut buf = vec![0; BUF_BYTES];
            loop {
                let n = stream.read(&mut buf).await?;
                if n == 0 {
                    return io::Result::Ok(());
                }
                stream.write_all(&buf[..n]).await?;
            }
        }));
    }

    async fn exchange(stream: &mut Self::Stream, [message, mut answer]: Bufs) -> io::Result<Bufs> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        stream.write_all(&message).await?;
        stream.read_exact(&mut answer).await?;
        Ok([message, answer])
    }
}

impl ByHand for TokioUring {
    type Stream = tokio_uring::net::TcpStream;

    fn adopt(tcp: TcpStream) -> io::Result<Self::Stream> {
        Ok(Self::Stream::from_std(tcp))
    }

    fn spawn_echo(stream: Self::Stream) {
        drop(tokio_uring::spawn(async move {
            let mut buf = Vec::with_capacity(BUF_BYTES);
            loop {
                buf.clear(); // a read fills the capacity and never shortens the buffer
                let (read, filled) = stream.read(buf).await;
                if read? == 0 {
                    return io::Result::Ok(());
                }
                let (written, emptied) = stream.write_all(filled).await;
                written?;
                buf = emptied;
            }
        }));
    }

    async fn exchange(stream: &mut Self::Stream, [message, mut answer]: Bufs) -> io::Result<Bufs> {
        use tokio_uring::buf::BoundedBuf;
        let (written, message) = stream.write_all(message).await;
        written?;
        let mut at = 0;
        while at < message.len() {
            let (read, slice) = stream.read(answer.slice(at..)).await;
            answer = slice.into_inner();
            match read? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        Ok([message, answer])
    }
}

impl ByHand for Compio {
    type Stream = compio_net::TcpStream;

    fn adopt(tcp: TcpStream) -> io::Result<Self::Stream> {
        Self::Stream::from_std(tcp)
    }

    fn spawn_echo(mut stream: Self::Stream) {
        use compio_buf::BufResult;
        use compio_io::{AsyncRead, AsyncWriteExt};
        let echo = compio_runtime::spawn(async move {
            let mut buf = Vec::with_capacity(BUF_BYTES);
            loop {
                buf.clear(); // a read fills the capacity and never shortens the buffer
                let BufResult(read, filled) = stream.read(buf).await;
                if read? == 0 {
                    return io::Result::Ok(());
                }
                let BufResult(written, emptied) = stream.write_all(filled).await;
                written?;
                buf = emptied;
            }
        });
        echo.detach();
    }

    async fn exchange(stream: &mut Self::Stream, [message, answer]: Bufs) -> io::Result<Bufs> {
        use compio_buf::BufResult;
        use compio_io::{AsyncReadExt, AsyncWriteExt};
        let BufResult(written, message) = stream.write_all(message).await;
        written?;
        let BufResult(read, answer) = stream.read_exact(answer).await;
        read?;
        Ok([message, answer])
    }
}

impl ByHand for Monoio {
    type Stream = monoio::net::TcpStream;

    fn adopt(tcp: TcpStream) -> io::Result<Self::Stream> {
        Self::Stream::from_std(tcp)
    }

    fn spawn_echo(mut stream: Self::Stream) {
        use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
        drop(monoio::spawn(async move {
            let mut buf = Vec::with_capacity(BUF_BYTES);
            loop {
                let (read, filled) = stream.read(buf).await;
                if read? == 0 {
                    return io::Result::Ok(());
                }
                let (written, emptied) = stream.write_all(filled).await;
                written?;
                buf = emptied;
            }
        }));
    }

    async fn exchange(stream: &mut Self::Stream, [message, answer]: Bufs) -> io::Result<Bufs> {
        use monoio::io::{AsyncReadRentExt, AsyncWriteRentExt};
        let (written, message) = stream.write_all(message).await;
        written?;
        let (read, answer) = stream.read_exact(answer).await;
        read?;
        Ok([message, answer])
    }
}
