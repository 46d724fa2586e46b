//! A program of somebody else: an HTTP server of hyper on tokio with several threads. Two of its requests are mistakes.

mod common;

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use common::{has_function, wait_for, wait_for_end};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use owned_io_stalls::{Class, Config, Detector};
use tokio::net::{TcpListener, TcpStream};

/// What requests share.
struct State {
    lock: Mutex<()>,
    pipe: Mutex<std::io::PipeReader>,
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<State>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    match request.uri().path() {
        "/read" => reads_a_pipe(&state),
        "/lock" => drop(waits_for_the_lock(&state)),
        _ => {}
    }
    Ok(Response::new(Full::new(Bytes::from_static(b"fine"))))
}

/// A mistake: a blocking read.
#[inline(never)]
fn reads_a_pipe(state: &State) {
    let _ = state.pipe.lock().unwrap().read(&mut [0]);
}

/// A mistake: another thread has the lock for long.
#[inline(never)]
fn waits_for_the_lock(state: &State) -> MutexGuard<'_, ()> {
    state.lock.lock().unwrap()
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&state)));
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
        });
    }
}

/// The body of the answer is read to the end of the connection.
async fn get(addr: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(addr).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[test]
fn a_blocking_read_and_a_lock() {
    let detector = Detector::start(Config::default()).unwrap();
    let pool = detector.watch_pool("http");
    let [start, stop, park, unpark] = [(); 4].map(|()| pool.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(move || start.thread_started())
        .on_thread_stop(move || stop.thread_stopped())
        .on_thread_park(move || park.thread_parked())
        .on_thread_unpark(move || unpark.thread_unparked())
        .build()
        .unwrap();
    let heart = pool.heart();
    runtime.spawn(async move {
        loop {
            heart.beat();
            tokio::time::sleep(heart.interval()).await;
        }
    });
    let (pipe, mut writer) = std::io::pipe().unwrap();
    let state = Arc::new(State { lock: Mutex::new(()), pipe: Mutex::new(pipe) });
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    runtime.spawn(serve(listener, Arc::clone(&state)));
    assert!(runtime.block_on(get(addr, "/")).unwrap().ends_with("fine"));
    std::thread::sleep(Duration::from_millis(300));

    // The client is a thread of its own: a worker that stalls may be the one that would run it.
    let ask = |path: &'static str| {
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(get(addr, path)).unwrap()
        })
    };
    let asked = ask("/read");
    let incident = wait_for(&detector, "hyper-read", |it| {
        it.verdict.class() == Class::BlockedLoop && has_function(it, "reads_a_pipe")
    });
    assert!(incident.to_string().contains("reads_a_pipe"), "{incident}");
    assert!(incident.to_string().contains("in read"), "{incident}");
    writer.write_all(b"x").unwrap();
    assert!(asked.join().unwrap().ends_with("fine"));
    wait_for_end(&detector, Class::BlockedLoop);

    let held = state.lock.lock().unwrap();
    let asked = ask("/lock");
    let incident = wait_for(&detector, "hyper-lock", |it| {
        it.verdict.class() == Class::BlockedLoop && has_function(it, "waits_for_the_lock")
    });
    assert!(incident.to_string().contains("in futex"), "{incident}");
    drop(held);
    assert!(asked.join().unwrap().ends_with("fine"));
    wait_for_end(&detector, Class::BlockedLoop);
}
