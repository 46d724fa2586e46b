//! TCP echo written on the traits of owned-io, on the runtime that `--runtime` names.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use owned_io::{ByteStream, ListenOptions, Pool, PoolConfig, Runtime, TcpListener, copy};
use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption, Ring};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Runtime, |args| {
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
    let config = match args.ring {
        Ring::Default => R::Config::default(),
        Ring::Tuned => R::tuned(),
    };
    R::block_on(config, async {
        let bound = R::bind(ListenOptions::new(args.addr))?;
        let mut listener = R::listen(&bound)?;
        peers_common::print_listening(bound.local_addr());
        let mut config = PoolConfig::default();
        config.buf_bytes = BUF_BYTES;
        let pool = Pool::new(config);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(R::spawn(echo(stream, pool.clone()))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    R::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })?
}

/// An error ends this connection only.
async fn echo(stream: impl ByteStream, pool: Pool) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    copy(&mut read, &mut write, &pool).await.map(drop)
}
