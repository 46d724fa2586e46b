//! TCP echo written on tokio-uring.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption, Ring};
use tokio_uring::Runtime;
use tokio_uring::net::{TcpListener, TcpStream};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Ring, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    let mut builder = tokio_uring::builder();
    if args.ring == Ring::Tuned {
        let mut uring = tokio_uring::uring_builder();
        uring.setup_coop_taskrun().setup_single_issuer();
        builder.entries(4096).uring_builder(&uring);
    }
    let runtime = Runtime::new(&builder).map_err(peers_common::no_runtime)?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener);
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio_uring::spawn(echo(stream))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only.
async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut buf = Vec::with_capacity(BUF_BYTES);
    loop {
        buf.clear(); // a read fills the capacity and never shortens the buffer
        let (read, filled) = stream.read(buf).await;
        if read? == 0 {
            return Ok(());
        }
        let (written, emptied) = stream.write_all(filled).await;
        written?;
        buf = emptied;
    }
}
