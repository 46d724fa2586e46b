//! hyper's server over connections of the simulator, whose reads and writes are short.

use std::convert::Infallible;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use owned_io::{Buffers, Executor, MemoryBudget, OwnedRead, OwnedWriteExt, Pool, PoolConfig};
use owned_io_compat::HyperIo;
use owned_io_sim::{Sim, pipe};

async fn answer(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let len = if request.uri().path() == "/long" { 300_000 } else { 5 };
    Ok(Response::new("x".repeat(len)))
}

#[test]
fn hyper_answers_requests_that_arrive_together() {
    for seed in owned_io_sim::seeds(20) {
        println!("seed {seed}"); // shown when the test fails
        Sim::block_on(owned_io_sim::Config::with_seed(seed), async {
            let (near, mut far) = pipe();
            let serving = Sim::spawn(async move {
                let budget = MemoryBudget::new(1 << 20);
                let buffers = Buffers::new(Pool::new(PoolConfig::default()), budget);
                let io = HyperIo::new::<Sim>(near, &buffers);
                http1::Builder::new()
                    .pipeline_flush(true)
                    .serve_connection(io, service_fn(answer))
                    .await
            });
            let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /long HTTP/1.1\r\nHost: a\r\n\r\n\
                GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            far.write_all(requests).await.into_result().unwrap();
            let mut answers = Vec::new();
            loop {
                let (n, bytes) = far.read(Vec::with_capacity(4096)).await.into_result().unwrap();
                if n == 0 {
                    break;
                }
                answers.extend_from_slice(&bytes);
            }
            drop(far);
            serving.await.unwrap().unwrap();
            let answers = String::from_utf8(answers).unwrap();
            assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 3);
            assert!(answers.contains(&"x".repeat(300_000)));
        })
        .unwrap();
    }
}
