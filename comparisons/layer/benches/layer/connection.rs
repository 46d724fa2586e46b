//! A connection within this thread: one end asks, the other echoes.

use std::io;
use std::mem::take;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use owned_io::{ListenOptions, OwnedRead, OwnedWriteExt, TcpListener};

use crate::by_hand::{Bufs, ByHand};

/// Of payload.
pub(crate) const SIZES: [usize; 2] = [200, 16 * 1024];
/// In each pass.
pub(crate) const ROUND_TRIPS: u32 = 100;
/// What the end that echoes reads into.
pub(crate) const BUF_BYTES: usize = 16 * 1024;

/// How the end that echoes is written.
#[derive(Clone, Copy)]
pub(crate) enum Echo {
    ByHand,
    Traits,
}

/// The end that asks, which is always by hand.
pub(crate) struct Client<R: ByHand> {
    stream: R::Stream,
    bufs: Bufs,
    number: u32,
}

impl<R: ByHand> Client<R> {
    /// Messages have `len` bytes, the first of which are their number.
    pub(crate) async fn connect(echo: Echo, len: usize) -> io::Result<Self> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let tcp = match echo {
            Echo::ByHand => {
                let listener = StdListener::bind(addr)?;
                let tcp = StdStream::connect(listener.local_addr()?)?;
                let (server, _) = listener.accept()?;
                server.set_nodelay(true)?;
                R::spawn_echo(R::adopt(server)?);
                tcp
            }
            Echo::Traits => {
                let bound = R::bind(ListenOptions::new(addr))?;
                let mut listener = R::listen(&bound)?;
                let tcp = StdStream::connect(bound.local_addr())?; // waits in the accept queue
                let (server, _) = listener.accept().await?;
                drop(R::spawn(through_traits(server)));
                tcp
            }
        };
        tcp.set_nodelay(true)?;
        let message = (0..len).map(|at| (at * 31) as u8).collect();
        Ok(Self { stream: R::adopt(tcp)?, bufs: [message, vec![0; len]], number: 0 })
    }

    /// A pass: one message after the other, each of which has to come back.
    pub(crate) async fn round_trips(&mut self) {
        for _ in 0..ROUND_TRIPS {
            self.number += 1;
            self.bufs[0][..4].copy_from_slice(&self.number.to_le_bytes());
            let exchanged = R::exchange(&mut self.stream, take(&mut self.bufs)).await;
            self.bufs = exchanged.expect("the echo goes on until we end");
            let [message, answer] = &self.bufs;
            assert!(answer == message, "what comes back is something else");
        }
    }
}

/// The loop that [`ByHand::spawn_echo`] has, on the traits.
async fn through_traits(mut stream: impl OwnedRead + OwnedWriteExt) -> io::Result<()> {
    let mut buf = Vec::with_capacity(BUF_BYTES);
    loop {
        let (n, filled) = stream.read(buf).await.into_result()?;
        if n == 0 {
            return Ok(());
        }
        ((), buf) = stream.write_all(filled).await.into_result()?;
    }
}
