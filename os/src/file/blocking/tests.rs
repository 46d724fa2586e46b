use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::*;

/// A buffer that is not `Send`, and whose drop can be observed.
struct Probe {
    _alive: Rc<()>,
    bytes: Vec<u8>,
}

// SAFETY: 1. to 4. As for the vector.
unsafe impl IoBuf for Probe {
    fn buf_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn buf_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A clock without a runtime, whose sleep of zero is one pending poll.
#[derive(Debug)]
struct TestClock;

impl Clock for TestClock {
    fn now() -> Instant {
        Instant::now()
    }

    fn wall_clock() -> SystemTime {
        SystemTime::now()
    }

    async fn sleep(_: Duration) {
        let mut is_over = false;
        std::future::poll_fn(|_| {
            coop::handle_yield();
            if mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// "A read first takes what is in the page cache, by a call that does not wait for the disk: at most
/// `TRANSFER_BYTES_MAX` bytes, and within the budget of the poll."
#[test]
fn what_is_in_the_page_cache_is_read_at_once() {
    const LEN: usize = 300_000;
    // Beside the test, on a disk: not every kernel reads so from a tmpfs.
    let name = format!("cached-{}", std::process::id());
    let path = std::env::current_exe().unwrap().with_file_name(name);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let blocking = Blocking::<TestClock>::register(Arc::new(file.into())).unwrap();
    let (mut at, mut yields) = (0, 0);
    coop::refill();
    while at < LEN {
        let mut read = pin!(blocking.read_at(Vec::with_capacity(LEN), at as u64));
        let mut polls = 0;
        let BufResult(result, buf) = loop {
            polls += 1;
            assert!(polls < 3, "a read that waits for a thread");
            match read.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(read) => break read,
                Poll::Pending => {}
            }
        };
        yields += polls - 1;
        let n = result.unwrap();
        assert!(0 < n && n <= TRANSFER_BYTES_MAX, "{n} bytes");
        assert_eq!(buf, bytes[at..at + n]);
        at += n;
    }
    // 300,000 bytes take 75 µs of a budget of 50 µs.
    assert!(yields >= 1, "{yields} yields");
    assert!(!blocking.always_waits.get());
    let mut buf = vec![1; 8];
    assert_eq!(
        blocking.read_cached(&mut buf, LEN as u64),
        None,
        "whether the file ends is not sure"
    );
    assert_eq!(blocking.read_cached(&mut Vec::<u8>::new(), 0), Some(0));
}

/// A pipe has no positions. The blocking thread says so.
#[test]
fn a_read_that_fails_at_once_changes_nothing() {
    let (read, _write) = io::pipe().unwrap();
    let blocking = Blocking::<TestClock>::register(Arc::new(read.into())).unwrap();
    let mut buf = Vec::with_capacity(8);
    assert_eq!(blocking.read_cached(&mut buf, 0), None);
    assert!(buf.is_empty());
}

/// "The buffer of a dropped operation is kept until the call has ended. The first operation that begins on the thread
/// after that frees it."
#[test]
fn the_buffer_of_a_dropped_operation_is_freed_later() {
    let (read, write) = io::pipe().unwrap();
    let blocking = Blocking::<TestClock>::register(Arc::new(write.into())).unwrap();
    let alive = Rc::new(());
    // A call that blocks until the pipe has room for its bytes, as a slow disk would.
    let fill = vec![7_u8; 1 << 20];
    let bytes = fill.clone();
    let call = blocking.call(Probe { _alive: Rc::clone(&alive), bytes }, move |fd| {
        Ok(rustix::io::write(fd, &fill)?)
    });
    {
        let mut call = pin!(call);
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        thread::sleep(Duration::from_millis(50)); // let it begin
    }
    free_ended();
    assert_eq!(Rc::strong_count(&alive), 2, "kept while the call may run");
    drop(read); // ends the call with EPIPE
    let until = Instant::now() + Duration::from_secs(5);
    while Rc::strong_count(&alive) == 2 && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
        free_ended();
    }
    assert_eq!(Rc::strong_count(&alive), 1, "freed once it has ended");
}
