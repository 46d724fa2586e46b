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

/// How often health is asked for: the simulator chooses the worker.
const TIMES: usize = 8;

async fn dial(addr: &str) -> SimStream {
    Sim::connect(ConnectOptions::new(addr.parse().unwrap())).await.unwrap()
}

/// The status and the body of an answer.
async fn get(addr: &str, path: &str) -> (u16, String) {
    let mut stream = dial(addr).await;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.into_bytes()).await.into_result().unwrap();
    let mut answer = Vec::new();
    // Each round reads a byte, or ends.
    while let Ok(((), byte)) = stream.read_exact(Vec::with_capacity(1), 1).await.into_result() {
        answer.extend(byte);
    }
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head["HTTP/1.1 ".len()..][..3].parse().unwrap(), body.to_owned())
}

/// Panics unless both workers, on both listeners, say so.
async fn expect_health(is_healthy: bool) {
    for addr in [HTTP, ADMIN].into_iter().cycle().take(TIMES) {
        let (status, body) = get(addr, "/health").await;
        assert_eq!(status, if is_healthy { 200 } else { 503 }, "{body}");
        assert!(is_healthy || body.contains("until the server is started again"), "{body}");
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
        expect_health(true).await;

        let lasts = Duration::from_secs(1);
        let syncs_fail = || world.apply(Fault::SyncErrors { host: world.main_host(), lasts });
        syncs_fail();
        let refused = Status::CannotAppendMessage.code().get();
        assert_eq!(ask(&mut client, send_frame("t", b"lost")).await, refused);
        Sim::sleep(2 * lasts).await;
        expect_health(true).await;

        syncs_fail();
        let refused = Status::Error.code().get();
        assert_eq!(ask(&mut client, create_stream_frame("lost")).await, refused);
        Sim::sleep(2 * lasts).await;
        expect_health(false).await;
        // Once: an answer is kept for a while of the real clock.
        let (_, metrics) = get(ADMIN, "/metrics").await;
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
    let files = ["--data", DIR, "--iggy-password-file", password.0.to_str().unwrap()];
    let flags = Flags::parse_from([&listeners[..], &files].concat());
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
