//! WebSocket echo on sockudo-ws and compio.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use compio::driver::ProactorBuilder;
use compio::net::{TcpListener, TcpStream};
use compio::runtime::RuntimeBuilder;
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption, Ring};
use sockudo_ws::compio::accept_async;
use sockudo_ws::{Config, Message, Result};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Ring, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    let mut proactor = ProactorBuilder::new();
    if args.ring == Ring::Tuned {
        // Without the task-run flag compio does not notice deferred completions.
        proactor.capacity(4096).single_issuer(true).defer_taskrun(true).taskrun_flag(true);
    }
    let mut builder = RuntimeBuilder::new();
    let runtime = builder.with_proactor(proactor).build().map_err(peers_common::no_runtime)?;
    if !runtime.driver_type().is_iouring() {
        // The library enables compio's epoll, to which compio falls back by itself.
        return Err(io::Error::other("compio does not run on io_uring here"));
    }
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => compio::runtime::spawn(echo(stream)).detach(),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    compio::runtime::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only. On compio the library has no `feed`, so each message is sent separately.
async fn echo(stream: TcpStream) -> Result<()> {
    let (mut websocket, _request) = accept_async(stream, Config::default()).await?;
    while let Some(message) = websocket.next().await.transpose()? {
        if matches!(message, Message::Text(_) | Message::Binary(_)) {
            websocket.send(message).await?;
        }
    }
    Ok(())
}
