//! An accept loop that waits until a client is there and then accepts until none is left, for runtimes with tokio's
//! epoll.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use peers_common::ACCEPT_PAUSE;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// So many clients are accepted in a row. Then the others have their turn.
const ACCEPTS_MAX: usize = 64;

/// Accepts for as long as the runtime runs.
///
/// # Errors
/// The listener cannot be watched.
pub(crate) async fn accept_all(listener: TcpListener, serve: impl Fn(TcpStream)) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    #[expect(deprecated, reason = "its replacement is unsafe; a `TcpListener` owns its descriptor")]
    let listener = AsyncFd::with_interest(listener, Interest::READABLE)?;
    loop {
        let mut ready = listener.readable().await?;
        let mut is_empty = false;
        for _ in 0..ACCEPTS_MAX {
            match ready.try_io(|listener| listener.get_ref().accept()) {
                Ok(Ok((stream, _))) => serve(stream),
                Ok(Err(error)) => {
                    peers_common::print_accept_error(&error);
                    sleep(ACCEPT_PAUSE).await;
                    break;
                }
                Err(_would_block) => {
                    is_empty = true;
                    break;
                }
            }
        }
        if !is_empty {
            // A yield would keep the thread from parking, and so entries from the kernel on tokio-uring.
            sleep(Duration::ZERO).await;
        }
    }
}
