use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

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

/// "The buffer of a dropped operation is kept until the call has ended. The first operation that begins on the thread
/// after that frees it."
#[test]
fn the_buffer_of_a_dropped_operation_is_freed_later() {
    let (read, write) = io::pipe().unwrap();
    let blocking = Blocking { fd: Arc::new(write.into()) };
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
