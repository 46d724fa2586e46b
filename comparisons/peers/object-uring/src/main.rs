//! Objects over HTTP on io_uring itself: multishot accept, multishot receive into provided buffers, and sends of
//! answers that were prepared before. It reads no header of a request: the limit.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "the kernel and this process share the ring of buffers")]
mod buffers;
mod connection;
#[expect(unsafe_code, reason = "the kernel takes the addresses of answers")]
mod message;
#[expect(unsafe_code, reason = "the kernel takes raw addresses and descriptors")]
mod ring;
mod server;

use std::io;
use std::process::ExitCode;

use peers_common::objects::Answers;
use peers_common::{Args, ExtraOption};

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::ZeroCopyObjects, serve)
}

fn serve(args: Args) -> io::Result<()> {
    let answers = Answers::prepare(&args.objects, args.chunk_bytes)?;
    let listener = peers_common::listen(args.addr)?;
    let addr = listener.local_addr()?;
    let mut server =
        server::Server::new(listener, answers, args.zero_copy).map_err(peers_common::no_runtime)?;
    peers_common::print_service("object", addr);
    server.run()
}
