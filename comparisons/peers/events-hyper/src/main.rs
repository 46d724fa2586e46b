//! Events over HTTP into Kafka on hyper, rdkafka and tokio, one current-thread runtime.

#![forbid(unsafe_code)]

mod kafka;

use std::convert::Infallible;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kafka::{Failure, Topic};
use peers_common::{ACCEPT_PAUSE, Args, ExtraOption};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::spawn_local;

/// The longest event, in bytes: Kafka's brokers take little more by default.
const EVENT_BYTES_MAX: usize = 1_000_000;

type Answer = Response<Full<Bytes>>;

fn main() -> ExitCode {
    peers_common::main(env!("CARGO_PKG_NAME"), ExtraOption::Kafka, serve)
}

/// A topic, and the path that its events are posted to.
struct Intake {
    topic: Topic,
    path: String,
}

fn serve(args: Args) -> io::Result<()> {
    let topic = Topic::open(&args.brokers, &args.topic).map_err(io::Error::other)?;
    let path = format!("/events/{}", args.topic.replacen('.', "/", 1));
    let intake = Rc::new(Intake { topic, path });
    let listener = peers_common::listen(args.addr)?;
    listener.set_nonblocking(true)?;
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default());
    runtime.map_err(peers_common::no_runtime)?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        peers_common::print_service("events", listener.local_addr()?);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(spawn_local(answer(stream, Rc::clone(&intake)))),
                Err(error) => {
                    peers_common::print_accept_error(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// An error ends this connection only.
async fn answer(stream: TcpStream, intake: Rc<Intake>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let intake = Rc::clone(&intake);
        async move { Ok::<_, Infallible>(intake.response(request).await) }
    });
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
}

impl Intake {
    async fn response(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if path == "/health" && request.method() == Method::GET {
            return plain(StatusCode::OK, "ok\n");
        }
        if path != self.path || request.method() != Method::POST {
            return plain(StatusCode::NOT_FOUND, "there is POST for the topic alone\n");
        }
        let Ok(body) = Limited::new(request.into_body(), EVENT_BYTES_MAX).collect().await else {
            return plain(StatusCode::PAYLOAD_TOO_LARGE, "the event is too long, or cut\n");
        };
        match self.topic.append(&body.to_bytes()).await {
            Ok((partition, offset)) => {
                let text =
                    format!("{{\"events\":1,\"partition\":{partition},\"offset\":{offset}}}\n");
                with(plain(StatusCode::OK, text), CONTENT_TYPE, "application/json")
            }
            Err(Failure::Full) => {
                let answer = plain(StatusCode::SERVICE_UNAVAILABLE, "too many events wait\n");
                with(answer, RETRY_AFTER, "1")
            }
            Err(Failure::Unknown) => {
                let why = "the event could not be stored, but may be there\n";
                plain(StatusCode::INTERNAL_SERVER_ERROR, why)
            }
        }
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    answer
}

fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}
