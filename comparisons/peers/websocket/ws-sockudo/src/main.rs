//! WebSocket echo on sockudo-ws and tokio, one current-thread runtime.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use futures_util::{SinkExt, StreamExt};
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use sockudo_ws::server::WebSocketServer;
use sockudo_ws::{Config, Http1, Message, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::None, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(spawn_local(echo(stream))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only. It uses `feed` instead of `send`, as the library advises: `feed` flushes before
/// a read that waits.
async fn echo(stream: TcpStream) -> Result<()> {
    let server = WebSocketServer::<Http1>::new(Config::default());
    let (mut websocket, _request) = server.accept_raw(stream).await?;
    while let Some(message) = websocket.next().await.transpose()? {
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            websocket.feed(message).await?;
        }
    }
    Ok(())
}
