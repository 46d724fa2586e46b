//! WebSocket echo on monoio-tungstenite.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use io_uring::IoUring;
use monoio::io::sink::SinkExt;
use monoio::io::stream::Stream;
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};
use monoio_tungstenite::Result;
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption, Ring};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Ring, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    let mut builder = RuntimeBuilder::<IoUringDriver>::new();
    if args.ring == Ring::Tuned {
        let mut uring = IoUring::builder();
        uring.setup_single_issuer().setup_coop_taskrun();
        builder = builder.uring_builder(uring).with_entries(4096);
    }
    let runtime = builder.enable_timer().build();
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(monoio::spawn(echo(stream))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    monoio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only. Each message is sent separately, as in the library's benchmark.
async fn echo(stream: TcpStream) -> Result<()> {
    let mut websocket = monoio_tungstenite::accept(stream).await?;
    while let Some(message) = websocket.next().await.transpose()? {
        if message.is_text() || message.is_binary() {
            websocket.send_and_flush(message).await?;
        }
    }
    Ok(())
}
