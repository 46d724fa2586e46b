//! WebSocket echo on tokio-tungstenite and tokio's multi-thread runtime, their usual configuration.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use futures_util::{StreamExt, TryStreamExt, future};
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio_tungstenite::tungstenite::Result;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Workers, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(args.workers.get()).enable_all().build();
    let runtime = runtime.map_err(peers_common::no_runtime)?;
    // A task runs on a worker. `block_on` alone would accept on this thread, which is not a worker.
    let accepting = runtime.spawn(accept(listener));
    runtime.block_on(accepting)?
}

async fn accept(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    peers_common::print_listening(listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(echo(stream))),
            Err(error) => {
                peers_common::print_accept_error(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// As in the library's example, `forward` flushes when there is nothing more to read. Messages that arrive together
/// are therefore answered by one write.
async fn echo(stream: TcpStream) -> Result<()> {
    let (write, read) = tokio_tungstenite::accept_async(stream).await?.split();
    let messages =
        read.try_filter(|message| future::ready(message.is_text() || message.is_binary()));
    messages.forward(write).await
}
