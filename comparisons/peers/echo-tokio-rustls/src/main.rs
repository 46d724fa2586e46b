//! TCP echo over TLS written on tokio and tokio-rustls, one current-thread runtime.

#![forbid(unsafe_code)]

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use peers_common::{ACCEPT_PAUSE, Args, BUF_BYTES, ExtraOption};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;
use tokio_rustls::TlsAcceptor;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Tls, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let [chain, key] = args.tls.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
    let acceptor = TlsAcceptor::from(Arc::new(config(chain, key).map_err(io::Error::other)?));
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(spawn_local(echo(stream, acceptor.clone()))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// The same TLS configuration as owned-io-server's.
fn config(
    chain: &Path,
    key: &Path,
) -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
    let chain = CertificateDer::pem_file_iter(chain)?.collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.ticketer = ring::Ticketer::new()?;
    Ok(config)
}

/// An error ends this connection only.
async fn echo(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut buf = vec![0; BUF_BYTES];
    loop {
        let n = stream.read(&mut buf).await?;
        if n == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buf[..n]).await?;
        stream.flush().await?;
    }
}
