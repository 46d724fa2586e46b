//! TCP echo written on glommio.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::sleep;
use glommio::{LocalExecutorBuilder, Placement, spawn_local};
use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption, Ring};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Ring, serve)
}

fn serve(args: Args) -> io::Result<()> {
    // `main` has already set the core. glommio's own placement would change more than that.
    let mut builder = LocalExecutorBuilder::new(Placement::Unbound);
    if args.ring == Ring::Tuned {
        // glommio has no setting for the flags of its rings. The memory is for files.
        builder = builder.io_memory(0);
    }
    let executor = builder.make().map_err(io::Error::from).map_err(peers_common::no_runtime)?;
    executor.run(async {
        // glommio has no safe way to adopt a listening socket. This one has a backlog of 1,024 too.
        let listener = TcpListener::bind(args.addr)
            .map_err(|error| peers_common::no_listener(args.addr, error.into()))?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok(stream) => drop(spawn_local(echo(stream)).detach()),
                Err(error) => {
                    peers_common::print_accept_error(&error.into());
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buf = vec![0; BUF_BYTES];
    loop {
        let n = stream.read(&mut buf).await?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(&buf[..n]).await?;
    }
}
