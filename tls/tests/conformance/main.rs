//! The conformance suite on runtimes whose connections are TLS connections.
//!
//! It leaves out the cases that run in their own process with peers of the standard library, because those do not
//! involve TLS.

#[path = "../common/mod.rs"]
mod common;
mod late;
mod over;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::thread;

use over::{TlsOver, pair};
use owned_io::conformance::worker::threads_of_three_workers;
#[cfg(target_os = "linux")]
use owned_io::conformance::{
    runtime::block_on_returns_before_a_task_gives_up, task::echoes_during_an_always_ready_task,
};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, IoVec, OwnedRead, OwnedReadExt, OwnedWrite,
    OwnedWriteExt, Pool, PoolConfig, Runtime, TcpStream, copy,
};

const WHY_CUT: &str = "a connection that is dropped, or shut down by a handle, sends no close_notify, and \
                       without it the peer sees UnexpectedEof";
const WHY_AHEAD: &str = "a peer may have received whole records of a write that then failed";
const WHY_CACHED: &str =
    "the halves of the transport have no addresses, so the wrapper keeps a copy";

macro_rules! tls_conformance {
    ($module:ident: $runtime:ty, $dropped_read:ident $(, $case:literal => ($reason:expr, $instead:expr $(,)?))* $(,)?) => {
        mod $module {
            use super::*;

            type Over = TlsOver<$runtime>;

            owned_io::conformance! {
                portable,
                runtime: Over,
                config: <$runtime as Executor>::Config::default(),
                dropped_read: $dropped_read,
                deviations: {
                    "pooled::read_is_empty_at_the_end" =>
                        (WHY_CUT, a_dropped_stream_ends_in_unexpected_eof::<$runtime>),
                    "io::copy_moves_everything_and_counts" =>
                        (WHY_CUT, a_copied_stream_ends_in_unexpected_eof::<$runtime>),
                    "cancel::shutdown_handle_ends_the_write_side" =>
                        (WHY_CUT, a_handle_ends_a_stream_in_unexpected_eof::<$runtime>),
                    "cancel::write_all_vectored_reports_progress" =>
                        (WHY_AHEAD, the_peer_may_have_received_more::<$runtime>),
                    "net::peer_addr_reports_a_closed_connection" =>
                        (WHY_CACHED, the_peer_address_is_still_known::<$runtime>),
                    $($case => ($reason, $instead),)*
                },
            }
        }
    };
}

tls_conformance! { sim: owned_io_sim::Sim, LosesNothing,
    "task::blocking_closures_let_others_run" =>
        (WHY_RUNTIME, blocking_closures_run_on_the_same_thread),
    "worker::each_worker_has_a_thread_of_its_own" =>
        (WHY_RUNTIME, workers_share_the_thread),
    "io::writes_that_never_wait_let_others_run" =>
        (WHY_NO_ROOM, fewer_writes_let_other_tasks_run),
}
#[cfg(target_os = "linux")]
tls_conformance! { tokio: owned_io_tokio::Tokio, LosesNothing }
#[cfg(target_os = "linux")]
tls_conformance! { compio: owned_io_compio::Compio, Cancelled }
#[cfg(target_os = "linux")]
tls_conformance! { glommio: owned_io_glommio::Glommio, LosesNothing }
#[cfg(target_os = "linux")]
tls_conformance! { monoio: owned_io_monoio::Monoio, Cancelled,
    "task::an_always_ready_task_lets_others_run" =>
        (WHY_RUNTIME, others_wait_until_it_ends::<owned_io_monoio::Monoio>),
    "runtime::block_on_returns_while_a_task_is_always_ready" =>
        (WHY_RUNTIME, block_on_waits_until_it_ends),
}
#[cfg(target_os = "linux")]
tls_conformance! { tokio_uring: owned_io_tokio_uring::TokioUring, LosesNextBytes,
    "task::an_always_ready_task_lets_others_run" =>
        (WHY_RUNTIME, others_wait_until_it_ends::<owned_io_tokio_uring::TokioUring>),
    "cancel::dropped_read_does_what_is_declared" =>
        (WHY_NOTICED, lost_bytes_are_an_error::<owned_io_tokio_uring::TokioUring>),
}

const WHY_NO_ROOM: &str =
    "a record of one byte takes 23 bytes, and the transport does not hold 10,000 records";
const WHY_RUNTIME: &str = "a deviation of the runtime: see its suite";
const WHY_NOTICED: &str =
    "the dropped read of the transport loses a record, and the next record fails to decrypt";

#[cfg(target_os = "linux")]
fn others_wait_until_it_ends<R: Runtime>(config: &R::Config) {
    let echoes = echoes_during_an_always_ready_task::<TlsOver<R>>();
    let (during, after) = R::block_on(config.clone(), echoes).unwrap();
    assert!(during <= 1 && after > 10, "{during} echoes during it, {after} after it");
}

#[cfg(target_os = "linux")]
fn block_on_waits_until_it_ends(config: &owned_io_monoio::Config) {
    assert!(!block_on_returns_before_a_task_gives_up::<TlsOver<owned_io_monoio::Monoio>>(config));
}

fn workers_share_the_thread(config: &owned_io_sim::Config) {
    let threads = threads_of_three_workers::<TlsOver<owned_io_sim::Sim>>(config);
    assert_eq!(threads, [thread::current().id(); 3]);
}

fn blocking_closures_run_on_the_same_thread(config: &owned_io_sim::Config) {
    run::<owned_io_sim::Sim>(config, async {
        let closure = TlsOver::<owned_io_sim::Sim>::spawn_blocking(|| thread::current().id());
        assert_eq!(closure.await.unwrap(), thread::current().id());
    });
}

fn fewer_writes_let_other_tasks_run(config: &owned_io_sim::Config) {
    use owned_io_sim::Sim;
    run::<Sim>(config, async {
        let (mut a, _b) = pair::<Sim>().await;
        let polls = std::rc::Rc::new(std::cell::Cell::new(0));
        let counter = std::rc::Rc::clone(&polls);
        drop(Sim::spawn(async move {
            loop {
                Sim::sleep(std::time::Duration::ZERO).await;
                counter.set(counter.get() + 1);
            }
        }));
        for _ in 0..2_000 {
            a.write_all("x").await.into_result().unwrap();
        }
        assert!(polls.get() >= 10, "{} polls", polls.get());
    });
}

fn run<R: Runtime>(config: &R::Config, case: impl Future<Output = ()>) {
    R::block_on(config.clone(), case).unwrap();
}

fn a_dropped_stream_ends_in_unexpected_eof<R: Runtime>(config: &R::Config) {
    run::<R>(config, async {
        let (a, mut b) = pair::<R>().await;
        drop(a);
        let pool = Pool::new(PoolConfig::default());
        for _ in 0..2 {
            assert_eq!(b.read_pooled(&pool).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    });
}

fn a_copied_stream_ends_in_unexpected_eof<R: Runtime>(config: &R::Config) {
    run::<R>(config, async {
        let (client, server) = pair::<R>().await;
        let echo = R::spawn(async move {
            let (mut read, mut write) = server.into_split();
            let copied = copy(&mut read, &mut write, &Pool::new(PoolConfig::default())).await;
            write.write_all(" still open").await.into_result().unwrap();
            copied.unwrap()
        });
        let (mut read, mut write) = client.into_split();
        write.write_all("copied").await.into_result().unwrap();
        write.shutdown().await.unwrap();
        let BufResult(result, received) = read.read_exact(Vec::with_capacity(18), 18).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(received, b"copied still open");
        assert_eq!(echo.await.unwrap(), 6);
    });
}

fn a_handle_ends_a_stream_in_unexpected_eof<R: Runtime>(config: &R::Config) {
    run::<R>(config, async {
        let (mut a, mut b) = pair::<R>().await;
        a.write_all("before").await.into_result().unwrap();
        a.shutdown_handle().shutdown(Shutdown::Write);
        let read = b.read_exact(Vec::with_capacity(7), 7).await;
        let BufResult(result, received) = read;
        assert_eq!(
            (result.unwrap_err().kind(), &received[..]),
            (ErrorKind::UnexpectedEof, &b"before"[..])
        );
        assert_eq!(a.write("after").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);
        b.write_all("the other way").await.into_result().unwrap();
        let read = a.read_exact(Vec::with_capacity(13), 13).await;
        assert_eq!(read.into_result().unwrap().1, b"the other way");
    });
}

fn the_peer_may_have_received_more<R: Runtime>(config: &R::Config) {
    const BYTES: usize = 16 << 20;
    run::<R>(config, async {
        let (mut a, mut b) = pair::<R>().await;
        let handle = a.shutdown_handle();
        let sent: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut bufs = IoVec::new();
        bufs.extend(sent.chunks(7_001).map(<[u8]>::to_vec));
        let writer = R::spawn(async move { a.write_all_vectored(bufs).await });
        R::sleep(std::time::Duration::from_millis(30)).await;
        handle.shutdown(Shutdown::Both);
        let BufResult(result, bufs) = writer.await.unwrap();
        assert_eq!(result.unwrap_err().kind(), ErrorKind::BrokenPipe);
        let BufResult(result, received) = b.read_exact(Vec::with_capacity(BYTES), BYTES).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let reported = BYTES - bufs.bytes_left();
        assert!(
            reported <= received.len() && received.len() < reported + owned_io_tls::WRITE_BYTES_MAX
        );
        assert!(received == sent[..received.len()]);
    });
}

fn the_peer_address_is_still_known<R: Runtime>(config: &R::Config) {
    run::<R>(config, async {
        let (a, b) = pair::<R>().await;
        let address = a.local_addr().unwrap();
        drop(a);
        R::sleep(std::time::Duration::from_millis(30)).await;
        assert_eq!(b.peer_addr().unwrap(), address);
    });
}

#[cfg(target_os = "linux")]
fn lost_bytes_are_an_error<R: Runtime>(config: &R::Config) {
    run::<R>(config, async {
        let (mut a, mut b) = pair::<R>().await;
        {
            let mut read = std::pin::pin!(b.read(Vec::with_capacity(16)));
            let nap = R::sleep(std::time::Duration::from_millis(30));
            assert!(owned_io::select(read.as_mut(), nap).await.first.is_none());
        }
        a.write_all("first").await.into_result().unwrap();
        R::sleep(std::time::Duration::from_millis(30)).await;
        a.write_all("second").await.into_result().unwrap();
        let error = b.read(Vec::with_capacity(16)).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    });
}
