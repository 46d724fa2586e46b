//! Cases about workers.

use std::io::{Error, ErrorKind};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::support::{SOON, connect, echo, echoed, expect_error, loopback, soon};
use crate::{Runtime, TcpListener, Worker, WorkersConfig, channel, select};

pub(super) fn workers<R: Runtime>(config: &R::Config, count: usize) -> WorkersConfig<R> {
    let mut workers = WorkersConfig::new(NonZeroUsize::new(count).expect("some workers"));
    workers.runtime = config.clone();
    workers.drain = Duration::from_millis(300);
    workers
}

/// "Runs `config.count` workers until all are done": each once, with its number.
pub fn each_worker_runs_once<R: Runtime>(config: &R::Config) {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let service = {
        let ran = Arc::clone(&ran);
        move |worker: Worker| {
            let ran = Arc::clone(&ran);
            async move {
                assert_eq!(worker.count.get(), 3);
                R::sleep(Duration::from_millis(1)).await;
                ran.lock().unwrap().push(worker.id);
                Ok(())
            }
        }
    };
    R::run_workers(workers::<R>(config, 3), service).unwrap();
    let mut ran = ran.lock().unwrap().clone();
    ran.sort_unstable();
    assert_eq!(ran, [0, 1, 2], "the workers that ran");
}

/// Each worker listens on the same address, and every client is served by one of them.
pub fn workers_share_an_address<R: Runtime>(config: &R::Config) {
    const CLIENTS: usize = 32;
    let bound = R::bind(loopback()).unwrap();
    let listening = Arc::new(AtomicUsize::new(0));
    R::run_workers(workers::<R>(config, 2), move |worker| {
        let (bound, listening) = (bound.clone(), Arc::clone(&listening));
        async move {
            let mut listener = R::listen(&bound)?;
            listening.fetch_add(1, Ordering::SeqCst);
            let serving = R::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await?;
                    drop(R::spawn(echo(stream)));
                }
                #[expect(unreachable_code, reason = "names the type")]
                Ok::<(), Error>(())
            });
            if worker.id == 0 {
                while listening.load(Ordering::SeqCst) < 2 {
                    R::sleep(Duration::from_millis(1)).await;
                }
                let clients = soon::<R, _>("all clients", async {
                    for _ in 0..CLIENTS {
                        let mut client = connect::<R>(bound.local_addr()).await;
                        assert_eq!(echoed(&mut client, b"hello").await, b"hello");
                    }
                });
                clients.await;
                worker.stop.stop();
            }
            let mut serving = std::pin::pin!(serving);
            let selected = select(serving.as_mut(), worker.stop.stopped()).await;
            if let Some(failed) = selected.first {
                panic!("expected the listener to accept until the stop signal; seen: {failed:?}");
            }
            Ok(())
        }
    })
    .unwrap();
}

/// "The signal to stop": all workers see it.
pub fn workers_see_the_stop_signal<R: Runtime>(config: &R::Config) {
    R::run_workers(workers::<R>(config, 3), |worker| async move {
        if worker.id == 1 {
            R::sleep(Duration::from_millis(5)).await;
            worker.stop.stop();
        }
        worker.stop.stopped().await;
        worker.stop.stopped().await; // the signal stays set
        assert!(worker.stop.is_stopped(), "expected the signal to stay set; seen: it is not");
        Ok(())
    })
    .unwrap();
}

/// "Any thread can send it, once, and every thread sees it."
pub fn workers_see_a_stop_signal_from_another_thread<R: Runtime>(config: &R::Config) {
    let workers = workers::<R>(config, 2);
    let stop = workers.stop.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        stop.stop();
    });
    R::run_workers(workers, |worker| async move {
        worker.stop.stopped().await;
        Ok(())
    })
    .unwrap();
    thread.join().unwrap();
}

/// "After the stop signal, the workers have `drain` to finish. A service that is not done by then is dropped":
/// the error is `TimedOut` and names the worker.
pub fn workers_that_do_not_drain_are_cut_off<R: Runtime>(config: &R::Config) {
    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let workers = workers::<R>(config, 2);
    let (stop, dropped) = (workers.stop.clone(), Arc::new(AtomicUsize::new(0)));
    stop.stop();
    let (started, counter) = (Instant::now(), Arc::clone(&dropped));
    let outcome = R::run_workers(workers, move |worker| {
        let dropped = Dropped(Arc::clone(&counter));
        async move {
            if worker.id == 1 {
                let _dropped = dropped;
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    });
    let error = expect_error(outcome, ErrorKind::TimedOut).to_string();
    assert!(error.starts_with("worker 1: "), "expected an error of worker 1; seen: {error}");
    let took = started.elapsed();
    assert!(took < SOON, "expected the service to be cut off within {SOON:?}; seen: {took:?}");
    assert_eq!(dropped.load(Ordering::SeqCst), 2, "the services that were dropped");
}

/// "A worker that fails stops the others": the error is its own, with its number.
pub fn a_failing_worker_stops_the_others<R: Runtime>(config: &R::Config) {
    let outcome = R::run_workers(workers::<R>(config, 3), |worker| async move {
        if worker.id == 2 {
            R::sleep(Duration::from_millis(5)).await;
            return Err(Error::new(ErrorKind::AddrInUse, "on purpose"));
        }
        worker.stop.stopped().await;
        Ok(())
    });
    let error = expect_error(outcome, ErrorKind::AddrInUse);
    assert_eq!(error.to_string(), "worker 2: on purpose");
}

/// "The error of the first worker that failed", not of the one with the lowest number, which fails later.
pub fn the_first_worker_that_failed_is_named<R: Runtime>(config: &R::Config) {
    let outcome = R::run_workers(workers::<R>(config, 3), |worker| async move {
        if worker.id == 2 {
            R::sleep(Duration::from_millis(5)).await;
            return Err(Error::new(ErrorKind::AddrInUse, "on purpose"));
        }
        std::future::pending().await // does not drain in time
    });
    let error = expect_error(outcome, ErrorKind::AddrInUse);
    assert_eq!(error.to_string(), "worker 2: on purpose");
}

/// "Each has its own thread and runtime."
pub fn each_worker_has_a_thread_of_its_own<R: Runtime>(config: &R::Config) {
    let mut threads = threads_of_three_workers::<R>(config);
    threads.push(std::thread::current().id());
    for (n, thread) in threads.iter().enumerate() {
        assert!(
            !threads[..n].contains(thread),
            "expected three workers and their caller on four threads; seen: {threads:?}"
        );
    }
}

/// The threads that three workers run on. Deviations use this function.
pub fn threads_of_three_workers<R: Runtime>(config: &R::Config) -> Vec<ThreadId> {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let service = {
        let threads = Arc::clone(&threads);
        move |_worker: Worker| {
            let threads = Arc::clone(&threads);
            async move {
                threads.lock().unwrap().push(std::thread::current().id());
                Ok(())
            }
        }
    };
    R::run_workers(workers::<R>(config, 3), service).unwrap();
    let threads = threads.lock().unwrap().clone();
    assert_eq!(threads.len(), 3, "the workers that ran");
    threads
}

/// A service that panics before it returns its future stops the others.
pub fn a_service_that_panics_at_once_stops_the_others<R: Runtime>(config: &R::Config) {
    let mut workers = workers::<R>(config, 2);
    workers.drain = Duration::MAX; // no time limit
    let outcome = R::run_workers(workers, |worker| {
        assert!(worker.id != 1, "on purpose");
        async move {
            worker.stop.stopped().await;
            Ok(())
        }
    });
    assert_eq!(outcome.unwrap_err().to_string(), "worker 1: panicked: on purpose");
}

/// "A worker that panics stops the others": the error has the message and the number of the worker.
pub fn a_panicking_worker_stops_the_others<R: Runtime>(config: &R::Config) {
    let outcome = R::run_workers(workers::<R>(config, 2), |worker| async move {
        assert!(worker.id != 0, "on purpose");
        worker.stop.stopped().await;
        Ok(())
    });
    assert_eq!(outcome.unwrap_err().to_string(), "worker 0: panicked: on purpose");
}

/// "The ends may be moved to any thread, and used by tasks of any runtime there": two workers send to a third, which is
/// slower than they are. All values arrive, and those of one sender in its order. Then the channel ends.
pub fn workers_pass_values_through_a_channel<R: Runtime>(config: &R::Config) {
    const VALUES: u32 = if cfg!(miri) { 100 } else { 2_000 };
    let (sender, receiver) = channel(NonZeroUsize::MIN);
    let ends = Arc::new(Mutex::new((vec![sender.clone(), sender], Some(receiver))));
    R::run_workers(workers::<R>(config, 3), move |worker| {
        let ends = Arc::clone(&ends);
        async move {
            if worker.id > 0 {
                let sender = ends.lock().unwrap().0.pop().expect("one for each worker");
                for value in 0..VALUES {
                    sender.send::<R>((worker.id, value)).await.expect("the receiver lives");
                }
                return Ok(());
            }
            let mut receiver = ends.lock().unwrap().1.take().expect("one worker is the first");
            let mut next = [0; 3];
            let all = soon::<R, _>("all values, and the end", async {
                while let Some((from, value)) = receiver.receive::<R>().await {
                    assert_eq!(value, next[from], "the next value of worker {from}");
                    next[from] += 1;
                    if value % 100 == 0 {
                        R::sleep(Duration::from_millis(1)).await; // the senders wait
                    }
                }
            });
            all.await;
            assert_eq!(next, [0, VALUES, VALUES], "the values of each worker");
            Ok(())
        }
    })
    .unwrap();
}
