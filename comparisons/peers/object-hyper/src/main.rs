//! Objects over HTTP on hyper and tokio, one current-thread runtime.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;
use std::rc::Rc;

use hyper_util::rt::TokioIo;
use object_hyper::{Objects, answer};
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Objects, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let objects = Objects::read(&args)?;
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_service("object", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    drop(spawn_local(answer(TokioIo::new(stream), Rc::clone(&objects))));
                }
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}
