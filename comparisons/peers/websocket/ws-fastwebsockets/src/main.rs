//! WebSocket echo on fastwebsockets and tokio, one current-thread runtime.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use fastwebsockets::upgrade::{UpgradeFut, upgrade};
use fastwebsockets::{FragmentCollector, OpCode, WebSocketError};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::coop::unconstrained;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::None, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_listening(listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(answer(stream))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only.
async fn answer(stream: TcpStream) -> hyper::Result<()> {
    let stream = TokioIo::new(stream);
    http1::Builder::new().serve_connection(stream, service_fn(switch)).with_upgrades().await
}

async fn switch(mut request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, WebSocketError> {
    let (response, upgraded) = upgrade(&mut request)?;
    // Without tokio's budget, as in the library's example.
    tokio::spawn(unconstrained(echo(upgraded)));
    Ok(response)
}

async fn echo(upgraded: UpgradeFut) -> Result<(), WebSocketError> {
    let mut websocket = FragmentCollector::new(upgraded.await?);
    loop {
        let frame = websocket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => websocket.write_frame(frame).await?,
            _ => {}
        }
    }
}
