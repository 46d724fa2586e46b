//! TCP echo written on compio.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use compio_buf::BufResult;
use compio_driver::ProactorBuilder;
use compio_io::{AsyncRead, AsyncWriteExt};
use compio_net::{TcpListener, TcpStream};
use compio_runtime::RuntimeBuilder;
use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption, Ring};

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
        // Any package of the build may have enabled compio's feature `polling`, which adds epoll.
        return Err(io::Error::other("compio does not run on io_uring in this build"));
    }
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => compio_runtime::spawn(echo(stream)).detach(),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    compio_runtime::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = Vec::with_capacity(BUF_BYTES);
    loop {
        buf.clear(); // reading fills the capacity, and only ever grows the length
        let BufResult(read, filled) = stream.read(buf).await;
        if read? == 0 {
            return Ok(());
        }
        let BufResult(written, emptied) = stream.write_all(filled).await;
        written?;
        buf = emptied;
    }
}
