//! A connection within one thread, between a client and an echo server.

use std::io;
use std::mem::take;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream};

use owned_io::{ListenOptions, OwnedRead, OwnedWriteExt, TcpListener};

use crate::by_hand::{Bufs, ByHand};

/// The sizes of a message.
pub(crate) const SIZES: [usize; 2] = [200, 16 * 1024];
/// The round trips of a pass.
pub(crate) const ROUND_TRIPS: u32 = 100;
/// The size of the server's receive buffer.
pub(crate) const BUF_BYTES: usize = 16 * 1024;

/// The implementation of the echo server.
#[derive(Clone, Copy)]
pub(crate) enum Echo {
    ByHand,
    Traits,
}

/// The client, which is always written by hand.
pub(crate) struct Client<R: ByHand> {
    stream: R::Stream,
    bufs: Bufs,
    number: u32,
}

impl<R: ByHand> Client<R> {
    /// Connects a client to a new server. Messages have `len` bytes and begin with their number.
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

    /// A pass: sends one message after the other, and checks the echo of each.
    pub(crate) async fn round_trips(&mut self) {
        for _ in 0..ROUND_TRIPS {
            self.number += 1;
            self.bufs[0][..4].copy_from_slice(&self.number.to_le_bytes());
            let exchanged = R::exchange(&mut self.stream, take(&mut self.bufs)).await;
            self.bufs = exchanged.expect("the server echoes until the client ends");
            let [message, answer] = &self.bufs;
            assert!(answer == message, "the echo differs from the message");
        }
    }
}

/// The loop of [`ByHand::spawn_echo`], written on the traits.
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
