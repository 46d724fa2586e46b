//! TCP echo written on smol, one thread.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption};
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};
use smol::{Async, LocalExecutor, Timer};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::None, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = TcpListener::from(Async::new(peers_common::listen(args.addr)?)?);
    let executor = LocalExecutor::new();
    smol::block_on(executor.run(async {
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => executor.spawn(echo(stream)).detach(),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    Timer::after(ACCEPT_PAUSE).await;
                }
            }
        }
    }))
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
