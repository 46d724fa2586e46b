//! TCP echo written on tokio's multi-thread runtime, its usual configuration.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

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

/// An error ends this connection only.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = vec![0; BUF_BYTES];
    loop {
        let n = stream.read(&mut buf).await?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(&buf[..n]).await?;
    }
}
