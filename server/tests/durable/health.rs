//! What a whole server says of itself when its disk fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use owned_io::{Clock, ConnectOptions, OwnedReadExt, OwnedWriteExt, StopSignal, Tcp};
use owned_io_server::config::{Flags, Service};
use owned_io_server::iggy::Status;
use owned_io_server::server;
use owned_io_sim::{Fault, Sim, SimStream, World};

use super::client::{
    DIR, STREAM, create_stream_frame, create_topic_frame, login_frame, poll_frame, send_frame,
};

const HTTP: &str = "10.0.0.1:80";
const ADMIN: &str = "10.0.0.1:81";
const TCP: &str = "10.0.0.1:82";

/// How many connections ask for health, on each listener.
const TIMES: usize = 3;

async fn dial(addr: &str) -> SimStream {
    Sim::connect(ConnectOptions::new(addr.parse().unwrap())).await.unwrap()
}

/// The status and the body of the answer on a connection, which stays open.
async fn get(stream: &mut SimStream, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    stream.write_all(request.into_bytes()).await.into_result().unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(stream.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap().1);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let (_, len) = head.split_once("\r\ncontent-length: ").unwrap();
    let len = len.lines().next().unwrap().parse().unwrap();
    let body = stream.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap().1;
    (head["http/1.1 ".len()..][..3].parse().unwrap(), String::from_utf8(body).unwrap())
}

/// Panics unless both listeners say so. Returns the connections to the HTTP listener: [both
/// workers](expect_both_workers) serve them. Admins are not balanced, so one worker may serve all of theirs.
async fn expect_health(is_healthy: bool) -> Vec<SimStream> {
    let mut held = Vec::new();
    for addr in [HTTP, ADMIN].into_iter().cycle().take(2 * TIMES) {
        let mut stream = dial(addr).await;
        let (status, body) = get(&mut stream, "/health").await;
        assert_eq!(status, if is_healthy { 200 } else { 503 }, "{body}");
        assert!(is_healthy || body.contains("until the server is started again"), "{body}");
        if addr == HTTP {
            held.push(stream);
        }
    }
    held
}

/// Panics unless each worker serves two connections: three are of [`expect_health`], and one is the client's. So each
/// has answered at least once over HTTP.
fn expect_both_workers(metrics: &str) {
    for worker in 0..2 {
        let count = format!("\nowned_io_worker_connections{{worker=\"{worker}\"}} 2\n");
        assert!(metrics.contains(&count), "{metrics}");
    }
}

/// Sends a request. Returns the status.
async fn ask(stream: &mut SimStream, request: Vec<u8>) -> u32 {
    stream.write_all(request).await.into_result().unwrap();
    let ((), head) = stream.read_exact(Vec::with_capacity(8), 8).await.into_result().unwrap();
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
    let len = word(4) as usize;
    stream.read_exact(Vec::with_capacity(len), len).await.into_result().unwrap();
    word(0)
}

/// A partition alone does not make it unhealthy.
#[test]
fn a_server_whose_catalogue_has_failed_is_unhealthy() {
    let failed = with_server(async |world: World| {
        let mut client = dial(TCP).await;
        assert_eq!(ask(&mut client, login_frame()).await, 0);
        for request in
            [create_stream_frame(STREAM), create_topic_frame("t"), create_topic_frame("u")]
        {
            assert_eq!(ask(&mut client, request).await, 0);
        }
        drop(expect_health(true).await);

        let lasts = Duration::from_secs(1);
        let syncs_fail = || world.apply(Fault::SyncErrors { host: world.main_host(), lasts });
        syncs_fail();
        let refused = Status::CannotAppendMessage.code().get();
        assert_eq!(ask(&mut client, send_frame("t", b"lost")).await, refused);
        Sim::sleep(2 * lasts).await;
        drop(expect_health(true).await);

        syncs_fail();
        let refused = Status::Error.code().get();
        assert_eq!(ask(&mut client, create_stream_frame("lost")).await, refused);
        Sim::sleep(2 * lasts).await;
        let held = expect_health(false).await;
        // Once: an answer is kept for a while of the real clock.
        let (_, metrics) = get(&mut dial(ADMIN).await, "/metrics").await;
        expect_both_workers(&metrics);
        drop(held);
        assert!(metrics.contains("\nowned_io_log_catalogue_failed 1\n"), "{metrics}");
        // As before.
        assert_eq!(ask(&mut client, create_stream_frame("also")).await, refused);
        assert_eq!(ask(&mut client, send_frame("u", b"kept")).await, 0);
        assert_eq!(ask(&mut client, poll_frame("u", 1)).await, 0);
    });
    assert!(failed.contains("--data: the log could not be synced"), "{failed}");
}

/// Runs a server of two workers, and `case` with clients of it. Then the server is stopped. Returns its error.
fn with_server(case: impl AsyncFn(World) + Clone + Send + Sync + 'static) -> String {
    let password = PasswordFile::new();
    let listeners = ["server", "--workers", "2", "--http", HTTP, "--admin", ADMIN, "--tcp", TCP];
    let balance = ["--balance", "least-connections"];
    let files = ["--data", DIR, "--iggy-password-file", password.0.to_str().unwrap()];
    let flags = Flags::parse_from([&listeners[..], &balance, &files].concat());
    let config = flags.into_config().unwrap();
    let (stop, is_done) = (StopSignal::new(), Arc::new(AtomicBool::new(false)));
    let (drain, done) = (stop.clone(), Arc::clone(&is_done));
    let outcome = server::run::<Sim>(&config, drain, move |listener| {
        if listener.service != Service::Admin {
            return;
        }
        let (case, end, done) = (case.clone(), StopOnDrop(stop.clone()), Arc::clone(&done));
        let world = World::current();
        drop(world.host("clients").spawn(async move {
            let _end = end; // also if the case panics
            case(world).await;
            done.store(true, Ordering::Release);
        }));
    });
    assert!(is_done.load(Ordering::Acquire), "the case has panicked");
    outcome.map(drop).unwrap_err().to_string()
}

struct StopOnDrop(StopSignal);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct PasswordFile(PathBuf);

impl PasswordFile {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("owned-io-health-{}", std::process::id()));
        std::fs::write(&path, "secret\n").unwrap();
        Self(path)
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
