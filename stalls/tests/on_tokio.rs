//! Real stalls on tokio get the right verdict while they last, and a healthy server gets none.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{End, has_function, wait_for, wait_for_end};
use owned_io_stalls::{Class, Confidence, Config, Detector, Heart, Incident};

async fn beat(heart: Heart) {
    loop {
        heart.beat();
        tokio::time::sleep(heart.interval()).await;
    }
}

/// Runs `stall` on a current-thread runtime with a heart, on a thread of its own.
fn stall_on_one_thread(
    detector: &Detector,
    stall: impl FnOnce() + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let detector = detector.clone();
    std::thread::spawn(move || {
        let heart = detector.watch_current_thread("worker 0");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let beating = tokio::spawn(beat(heart));
            tokio::time::sleep(Duration::from_millis(100)).await;
            tokio::spawn(async { stall() }).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            beating.abort();
        });
    })
}

#[inline(never)]
fn reads_a_pipe(mut pipe: impl Read) {
    let _ = pipe.read(&mut [0]);
}

#[test]
fn a_blocking_read() {
    let detector = Detector::start(Config::default()).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let worker = stall_on_one_thread(&detector, move || reads_a_pipe(reader));
    let incident = wait_for(&detector, "read", |it| it.verdict.has(Class::BlockedLoop));
    assert!(has_function(&incident, "reads_a_pipe"), "{incident:#?}");
    let thread = &incident.evidence.threads[0];
    assert_eq!(
        thread.syscall.as_ref().and_then(|call| call.name.as_deref()),
        Some("read"),
        "{thread:#?}"
    );
    assert!(!thread.stacks[0].by_signal, "a blocked thread is not interrupted");
    assert!(incident.to_string().contains("reads_a_pipe"), "{incident}");

    writer.write_all(b"x").unwrap();
    worker.join().unwrap();
    let closed = wait_for_end(&detector, Class::BlockedLoop);
    assert!(closed.lasted_ms >= incident.lasted_ms, "{closed}");
}

#[inline(never)]
fn sleeps(end: &End) {
    while !end.is_set() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_sleep_on_the_loop() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let ended = end.clone();
    let worker = stall_on_one_thread(&detector, move || sleeps(&ended));
    let incident =
        wait_for(&detector, "sleep", |it| it.verdict.has(Class::BlockedLoop) && it.reports > 2);
    assert!(has_function(&incident, "sleeps"), "{incident:#?}");
    end.set();
    worker.join().unwrap();
}

#[inline(never)]
fn computes(end: &End) {
    let mut sum = 0_u64;
    while !end.is_set() {
        sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
    }
}

#[test]
fn a_long_computation() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let ended = end.clone();
    let worker = stall_on_one_thread(&detector, move || computes(&ended));
    let incident = wait_for(&detector, "computation", |it| it.verdict.has(Class::BlockedLoop));
    assert!(has_function(&incident, "computes"), "{incident:#?}");
    assert!(!incident.verdict.has(Class::SelfWakingTask), "{incident}");
    assert!(incident.evidence.threads[0].stacks[0].by_signal);
    end.set();
    worker.join().unwrap();
}

#[inline(never)]
fn computes_deep_within(calls: u32, end: &End) -> u32 {
    match calls {
        0 => computes(end),
        _ => return std::hint::black_box(computes_deep_within(calls - 1, end) + 1),
    }
    0
}

/// The runtime is far below on the stack, and tells that the thread is in one task.
#[test]
fn a_computation_within_80_calls() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let ended = end.clone();
    let worker = stall_on_one_thread(&detector, move || {
        computes_deep_within(80, &ended);
    });
    let is_sure = |it: &Incident| {
        let mut findings = it.verdict.findings.iter();
        findings.any(|it| it.class == Class::BlockedLoop && it.confidence > Confidence::Possible)
    };
    wait_for(&detector, "deep", is_sure);
    end.set();
    worker.join().unwrap();
}

/// Without a signal the stack of a running thread is unknown, and everything else is not.
#[test]
fn a_long_computation_without_a_signal() {
    let mut config = Config::default();
    config.signal = None;
    let detector = Detector::start(config).unwrap();
    let end = End::default();
    let ended = end.clone();
    let worker = stall_on_one_thread(&detector, move || computes(&ended));
    let incident = wait_for(&detector, "no-signal", |it| it.verdict.has(Class::BlockedLoop));
    assert!(
        incident.evidence.unseen.iter().any(|reason| reason.contains("no signal")),
        "{incident:#?}"
    );
    end.set();
    worker.join().unwrap();
}

fn pool(detector: &Detector) -> tokio::runtime::Runtime {
    let pool = detector.watch_pool("tokio");
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
    runtime.spawn(beat(pool.heart()));
    runtime
}

#[test]
fn one_blocked_thread_of_two() {
    let detector = Detector::start(Config::default()).unwrap();
    let runtime = pool(&detector);
    std::thread::sleep(Duration::from_millis(300));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let stalled = runtime.spawn(async move { reads_a_pipe(reader) });
    let incident = wait_for(&detector, "one-of-two", |it| it.verdict.has(Class::BlockedLoop));
    assert!(has_function(&incident, "reads_a_pipe"), "{incident:#?}");
    writer.write_all(b"x").unwrap();
    runtime.block_on(stalled).unwrap();
    wait_for_end(&detector, Class::BlockedLoop);
}

#[test]
fn all_threads_blocked() {
    let detector = Detector::start(Config::default()).unwrap();
    let runtime = pool(&detector);
    std::thread::sleep(Duration::from_millis(300));
    let pipes: Vec<_> = (0..2).map(|_| std::io::pipe().unwrap()).collect();
    let mut writers = Vec::new();
    for (reader, writer) in pipes {
        runtime.spawn(async move { reads_a_pipe(reader) });
        writers.push(writer);
    }
    let incident =
        wait_for(&detector, "all", |it| it.worker == "tokio" && it.verdict.has(Class::BlockedLoop));
    assert!(has_function(&incident, "reads_a_pipe"), "{incident:#?}");
    drop(writers);
}

/// Blocking work on a thread for it, and `block_in_place`, are no stalls.
#[test]
fn blocking_where_it_is_allowed() {
    let detector = Detector::start(Config::default()).unwrap();
    let runtime = pool(&detector);
    std::thread::sleep(Duration::from_millis(300)); // each worker has parked once
    let blocking = runtime.spawn_blocking(|| std::thread::sleep(Duration::from_secs(1)));
    let in_place = runtime.spawn(async {
        tokio::task::block_in_place(|| std::thread::sleep(Duration::from_secs(1)));
    });
    runtime.block_on(async { (blocking.await.unwrap(), in_place.await.unwrap()) });
    // The thread that was in `block_in_place` has given its place as a worker away, and waits for blocking work.
    std::thread::sleep(Duration::from_secs(1));
    assert_only_cpu(&detector);
}

/// A heart that the detector wakes, and no timer of the runtime.
#[test]
fn a_heart_that_waits_for_ticks() {
    let detector = Detector::start(Config::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap(); // it has no timers
    runtime.block_on(async {
        let heart = detector.watch_current_thread("ticked");
        let beating = async {
            loop {
                heart.beat();
                heart.tick().await;
            }
        };
        let mut beating = std::pin::pin!(beating);
        let until = Instant::now() + common::LIMIT;
        std::future::poll_fn(|cx| {
            assert!(beating.as_mut().poll(cx).is_pending());
            let beats = detector.snapshot().workers[0].lateness.beats;
            assert!(Instant::now() < until, "{beats} beats");
            if beats > 20 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        assert_only_cpu(&detector);
        let (reader, writer) = std::io::pipe().unwrap();
        let watched = detector.clone();
        let watching = std::thread::spawn(move || {
            let incident =
                wait_for(&watched, "ticked", |it| it.verdict.class() == Class::BlockedLoop);
            assert!(has_function(&incident, "reads_a_pipe"), "{incident:#?}");
            drop(writer);
        });
        reads_a_pipe(reader);
        watching.join().unwrap();
    });
}

#[test]
fn a_healthy_server_under_load() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let detector = Detector::start(Config::default()).unwrap();
    let runtime = pool(&detector);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let addr = listener.local_addr().unwrap();
    runtime.spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let mut buf = [0; 256];
                while let Ok(count @ 1..) = stream.read(&mut buf).await {
                    if stream.write_all(&buf[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let clients: Vec<_> = (0..64)
        .map(|_| {
            runtime.spawn(async move {
                let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
                let until = tokio::time::Instant::now() + Duration::from_secs(4);
                let mut buf = [7; 200];
                while tokio::time::Instant::now() < until {
                    stream.write_all(&buf).await.unwrap();
                    stream.read_exact(&mut buf).await.unwrap();
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for client in clients {
            client.await.unwrap();
        }
    });
    assert_only_cpu(&detector);
    let lateness = detector.snapshot().workers[0].lateness.clone();
    assert!(lateness.beats > 10, "{lateness:?}");
}

/// The machine may be busy with other work: then the scheduler's own figures say so.
fn assert_only_cpu(detector: &Detector) {
    let incidents = detector.incidents();
    let others: Vec<_> =
        incidents.iter().filter(|it| it.verdict.class() != Class::WaitingForCpu).collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The loop gets through its ready tasks in 120 ms, over and over, and counts their polls.
#[test]
fn thousands_of_ready_tasks() {
    let detector = Detector::start(Config::default()).unwrap();
    let end = End::default();
    let (watching, ended) = (detector.clone(), end.clone());
    let worker = std::thread::spawn(move || {
        let heart = watching.watch_current_thread("worker 0");
        let polls = Arc::new(AtomicU64::new(0));
        heart.set_poll_counter(Arc::clone(&polls));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::spawn(beat(heart));
            let tasks: Vec<_> = (0..4_000)
                .map(|_| {
                    let (polls, ended) = (Arc::clone(&polls), ended.clone());
                    tokio::spawn(async move {
                        while !ended.is_set() {
                            polls.fetch_add(1, Relaxed);
                            works(Duration::from_micros(30));
                            tokio::task::yield_now().await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    let incident = wait_for(&detector, "tasks", |it| it.verdict.has(Class::Overload));
    end.set();
    worker.join().unwrap();
    assert!(incident.evidence.threads[0].polls.is_some_and(|polls| polls > 100), "{incident:#?}");
    assert!(incident.to_string().contains("polled tasks"), "{incident}");
    // On a busy machine the watchdog may come too late to count the polls of a stall.
    let is_counted =
        |it: &Incident| it.evidence.threads.iter().any(|thread| thread.polls.is_some());
    let blames = |it: &Incident| {
        let mut findings = it.verdict.findings.iter();
        findings.any(|it| matches!(it.class, Class::BlockedLoop | Class::ConnectionOwnsWorker))
    };
    let is_wrong = |it: &Arc<Incident>| is_counted(it) && blames(it);
    assert!(!detector.incidents().iter().any(is_wrong), "{:#?}", detector.incidents());
}

#[inline(never)]
fn works(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {}
}
