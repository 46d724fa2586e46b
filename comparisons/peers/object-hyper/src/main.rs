//! Objects over HTTP on hyper and tokio, one current-thread runtime.

#![forbid(unsafe_code)]

mod body;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::num::NonZero;
use std::process::ExitCode;
use std::rc::Rc;

use body::ObjectBody;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption, objects};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Objects, serve)
}

/// The objects in memory, and the length of chunks if there is one.
struct Objects {
    by_name: HashMap<String, Bytes>,
    chunk_bytes: Option<NonZero<usize>>,
}

fn serve(args: Args) -> io::Result<()> {
    let by_name = objects::read(&args.objects)?.into_iter();
    let by_name = by_name.map(|(name, object)| (name, Bytes::from(object))).collect();
    let objects = Rc::new(Objects { by_name, chunk_bytes: args.chunk_bytes });
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_service("object", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(spawn_local(answer(stream, Rc::clone(&objects)))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only.
async fn answer(stream: TcpStream, objects: Rc<Objects>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        ready(Ok::<_, Infallible>(objects.response(&request)))
    });
    // Pipelined answers leave together, as they do in its authors' benchmarks.
    let mut http = http1::Builder::new();
    http.pipeline_flush(true).serve_connection(TokioIo::new(stream), service).await
}

impl Objects {
    fn response(&self, request: &Request<Incoming>) -> Response<ObjectBody> {
        let name = request.uri().path().strip_prefix(objects::PATH);
        let object = name.and_then(|name| self.by_name.get(name));
        match object.filter(|_| request.method() == Method::GET) {
            Some(object) => Response::new(ObjectBody::new(object.clone(), self.chunk_bytes)),
            None => {
                let mut response = Response::new(ObjectBody::new(Bytes::new(), None));
                *response.status_mut() = StatusCode::NOT_FOUND;
                response
            }
        }
    }
}
