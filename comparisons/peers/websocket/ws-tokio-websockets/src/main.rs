//! WebSocket echo on tokio-websockets, one current-thread runtime.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use futures_util::{SinkExt, StreamExt};
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::coop::unconstrained;
use tokio_websockets::{Config, Error, Limits, ServerBuilder};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::None, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                // Without tokio's budget, as in the library's example.
                Ok((stream, _)) => drop(tokio::spawn(unconstrained(echo(stream)))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only. Each message is one frame of any length, as in the library's example.
async fn echo(stream: TcpStream) -> Result<(), Error> {
    let server = ServerBuilder::new()
        .config(Config::default().frame_size(usize::MAX))
        .limits(Limits::unlimited());
    let (_request, mut websocket) = server.accept(stream).await?;
    while let Some(message) = websocket.next().await.transpose()? {
        if message.is_text() || message.is_binary() {
            websocket.send(message).await?;
        }
    }
    Ok(())
}
