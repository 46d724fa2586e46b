//! Echo written on io_uring itself: multishot accept, multishot receive into provided buffers, and for TCP sends from
//! the buffers that it received into. It is an upper bound for a runtime. With `--websocket` it is one for a server of
//! WebSocket: the protocol is that of owned-io-websocket, and everything else is written by hand.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the kernel and this process share the ring of buffers")]
mod buffers;
#[expect(unsafe_code, reason = "the kernel takes raw addresses and descriptors")]
mod ring;
mod server;
mod websocket;

use std::io;
use std::process::ExitCode;

use peers_common::{Args, ExtraOption};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::WebSocket, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let listener = peers_common::listen(args.addr)?;
    let addr = listener.local_addr()?;
    if args.websocket {
        let mut server = websocket::Server::new(listener).map_err(peers_common::no_runtime)?;
        peers_common::print_listening(addr);
        return server.run();
    }
    let mut server = server::Server::new(listener).map_err(peers_common::no_runtime)?;
    peers_common::print_listening(addr);
    server.run()
}
