//! Objects over HTTP on connections of owned-io, on the runtime that `--runtime` names, by hyper or by `owned-io-http`, as
//! `--http` says. Both do the same for a request: no more than to look up its path.

#![forbid(unsafe_code)]

mod http;

use std::io;
use std::process::ExitCode;
use std::rc::Rc;

use object_hyper::{Objects, answer};
use owned_io::{Buffers, ListenOptions, MemoryBudget, Pool, PoolConfig, Runtime, TcpListener};
use owned_io_compat::HyperIo;
use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption, Http, Ring};

/// What all connections together may have unsent, in bytes: 64 KiB for each, which is the most of one. So no measured
/// write waits for memory. Half of it is in shares, as in the server.
const UNSENT_BYTES_MAX: usize = CONNECTIONS_MAX * (64 << 10);

/// How many connections have a share: more than a plan opens.
const CONNECTIONS_MAX: usize = 4096;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::RuntimeObjects, |args| {
        match args.runtime.as_str() {
            "tokio" => serve::<owned_io_tokio::Tokio>(args),
            "tokio-uring" => serve::<owned_io_tokio_uring::TokioUring>(args),
            "compio" => serve::<owned_io_compio::Compio>(args),
            "monoio" => serve::<owned_io_monoio::Monoio>(args),
            "glommio" => serve::<owned_io_glommio::Glommio>(args),
            other => {
                let why = format!("there is no runtime {other:?}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    })
}

fn serve<R: Runtime>(args: Args) -> io::Result<()> {
    let objects = Objects::read(&args)?;
    let config = match args.ring {
        Ring::Default => R::Config::default(),
        Ring::Tuned => R::tuned(),
    };
    R::block_on(config, async {
        let bound = R::bind(ListenOptions::new(args.addr))?;
        let mut listener = R::listen(&bound)?;
        peers_common::print_service("object", bound.local_addr());
        let mut config = PoolConfig::default();
        config.buf_bytes = BUF_BYTES;
        let budget = MemoryBudget::new(UNSENT_BYTES_MAX);
        let budget = budget.with_shares(CONNECTIONS_MAX, UNSENT_BYTES_MAX / 2);
        let buffers = Buffers::new(Pool::new(config), budget);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let objects = Rc::clone(&objects);
                    match args.http {
                        Http::Hyper => {
                            let io = HyperIo::new::<R>(stream, &buffers);
                            drop(R::spawn(answer(io, objects)));
                        }
                        Http::OwnedIo => {
                            drop(R::spawn(http::answer::<R>(stream, buffers.clone(), objects)));
                        }
                    }
                }
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    R::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })?
}
