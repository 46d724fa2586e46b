//! A runtime that the detector does not know: an executor written by hand. Its stalls are found, and of a thread that
//! runs is told what is known and no more.

mod common;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use common::{End, has_function, wait_for, wait_for_end};
use owned_io_stalls::{Class, Confidence, Config, Detector, Heart, Incident};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks that are ready, by their numbers, and the thread that polls them.
struct Queue {
    ready: Mutex<VecDeque<usize>>,
    thread: Thread,
}

struct TaskWaker {
    task: usize,
    queue: Arc<Queue>,
}

impl Wake for TaskWaker {
    /// A task that wakes another, or itself, on the executor's own thread puts it first.
    fn wake(self: Arc<Self>) {
        let mut ready = self.queue.ready.lock().unwrap();
        if std::thread::current().id() == self.queue.thread.id() {
            return ready.push_front(self.task);
        }
        ready.push_back(self.task);
        self.queue.thread.unpark();
    }
}

/// Runs `tasks` until the first of them is over.
fn run(mut tasks: Vec<Task>) {
    let ready = Mutex::new((0..tasks.len()).collect());
    let queue = Arc::new(Queue { ready, thread: std::thread::current() });
    let waker = |task| Arc::new(TaskWaker { task, queue: Arc::clone(&queue) }).into();
    let wakers: Vec<_> = (0..tasks.len()).map(waker).collect();
    loop {
        let next = queue.ready.lock().unwrap().pop_front();
        let Some(number) = next else {
            std::thread::park();
            continue;
        };
        let polled = tasks[number].as_mut().poll(&mut Context::from_waker(&wakers[number]));
        if number == 0 && polled.is_ready() {
            return;
        }
    }
}

async fn beat(heart: Heart) {
    loop {
        heart.beat();
        heart.tick().await;
    }
}

/// Runs `stall` on such an executor, after some beats of its heart "loop".
fn with_a_stall<F: Future<Output = ()>>(
    detector: &Detector,
    stall: impl FnOnce() -> F + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let detector = detector.clone();
    std::thread::spawn(move || {
        let timer = detector.watch_current_thread("timer");
        let beating = beat(detector.watch_current_thread("loop"));
        let stalling = async move {
            for _ in 0..3 {
                timer.beat();
                timer.tick().await;
            }
            drop(timer);
            stall().await;
        };
        run(vec![Box::pin(stalling), Box::pin(beating)]);
    })
}

fn detector(symbol_bytes_max: usize) -> Detector {
    let mut config = Config::default();
    config.symbol_bytes_max = symbol_bytes_max;
    Detector::start(config).unwrap()
}

#[inline(never)]
fn sleeps(end: &End) {
    while !end.is_set() {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[inline(never)]
fn computes(end: &End) {
    while !end.is_set() {
        std::hint::spin_loop();
    }
}

#[test]
fn a_blocking_call() {
    let (detector, end) = (detector(64 << 20), End::default());
    let ended = end.clone();
    let worker = with_a_stall(&detector, move || async move { sleeps(&ended) });
    let incident = wait_for(&detector, "unknown-sleep", |it| {
        it.worker == "loop" && it.verdict.has(Class::BlockedLoop)
    });
    end.set();
    assert_eq!(incident.verdict.confidence(), Confidence::Certain, "{incident}");
    assert!(incident.to_string().contains("clock_nanosleep"), "{incident}");
    assert!(has_function(&incident, "sleeps"), "{incident:#?}");
    worker.join().unwrap();
    wait_for_end(&detector, Class::BlockedLoop);
}

/// Waits for an incident of a thread that runs, and checks that nothing is sure but a wait for a CPU.
fn expect_honesty(detector: &Detector, name: &str, reason: &str) {
    let is_meant = |it: &Incident| it.worker == "loop" && it.verdict.has(Class::BlockedLoop);
    let incident = wait_for(detector, name, is_meant);
    for finding in &incident.verdict.findings {
        let is_sure = finding.confidence > Confidence::Possible;
        assert!(!is_sure || finding.class == Class::WaitingForCpu, "{incident}");
    }
    assert!(incident.to_string().contains(reason), "{incident}");
}

#[test]
fn a_computation() {
    for (symbol_bytes_max, reason) in
        [(64 << 20, "no scheduler of a known runtime"), (0, "Its stacks have no names")]
    {
        let (detector, end) = (detector(symbol_bytes_max), End::default());
        let ended = end.clone();
        let worker = with_a_stall(&detector, move || async move { computes(&ended) });
        expect_honesty(&detector, "unknown-computation", reason);
        end.set();
        worker.join().unwrap();
        wait_for_end(&detector, Class::BlockedLoop);
    }
}

#[test]
fn a_task_that_wakes_itself() {
    let (detector, end) = (detector(64 << 20), End::default());
    let ended = end.clone();
    let worker = with_a_stall(&detector, move || {
        poll_fn(move |cx| {
            cx.waker().wake_by_ref();
            if ended.is_set() { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    expect_honesty(&detector, "unknown-self-waking", "a task may wake itself");
    end.set();
    worker.join().unwrap();
}

#[test]
fn a_healthy_loop() {
    let (detector, end) = (detector(64 << 20), End::default());
    let ended = end.clone();
    let watched = detector.clone();
    let worker = with_a_stall(&detector, move || async move {
        let timer = watched.watch_current_thread("second timer");
        while !ended.is_set() {
            timer.beat();
            timer.tick().await;
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    end.set();
    worker.join().unwrap();
    let incidents = detector.incidents();
    // The machine may be busy with other work: then the scheduler's own figures say so.
    let mut findings = incidents.iter().flat_map(|it| &it.verdict.findings);
    let is_sure =
        findings.any(|it| it.confidence > Confidence::Possible && it.class != Class::WaitingForCpu);
    assert!(!is_sure, "{incidents:#?}");
}
