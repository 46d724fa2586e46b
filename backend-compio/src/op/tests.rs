//! Operations that are left in the kernel when a runtime ends.

use std::future::poll_fn;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::thread;

use owned_io::Executor;
use owned_io_os::completion::Completion;

use super::*;
use crate::socket::CompioSocket;
use crate::{Compio, Config};

/// A buffer whose memory the test can read while an operation owns it. It counts its drops, and panics in `drop` if
/// `panics` is set.
struct Probe {
    memory: Rc<[Cell<u8>]>,
    len: usize,
    drops: Rc<Cell<u32>>,
    panics: bool,
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.drops.set(self.drops.get() + 1);
        assert!(!self.panics, "on purpose");
    }
}

// SAFETY: 1. Pointer and length are those of initialised bytes. 2. They are in the Rc's heap block,
// which lives as long as this value. 3. The length changes through `&mut` only. 4. The test only reads.
unsafe impl IoBuf for Probe {
    fn buf_ptr(&self) -> *const u8 {
        self.memory.as_ptr().cast()
    }
    fn buf_len(&self) -> usize {
        self.len
    }
}

// SAFETY: 1. The same pointer, to cells, which may be written. 2. As for `IoBuf`. 3. By `len`.
unsafe impl IoBufMut for Probe {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr().cast_mut().cast()
    }
    fn buf_capacity(&self) -> usize {
        self.memory.len()
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        self.len = len;
    }
}

/// A read that is pending in the kernel, its peer, and the probe's memory and drops.
async fn pending_read(
    panics: bool,
) -> (impl Future<Output = io::Result<usize>>, UnixStream, Rc<[Cell<u8>]>, Rc<Cell<u32>>) {
    let (ours, peer) = UnixStream::pair().unwrap();
    let socket = CompioSocket::register(ours.into()).unwrap();
    let memory: Rc<[Cell<u8>]> = vec![Cell::new(0); 16].into();
    let drops = Rc::new(Cell::new(0));
    let probe = Probe { memory: Rc::clone(&memory), len: 0, drops: Rc::clone(&drops), panics };
    let mut reading = Box::pin(async move { socket.recv(probe).await.0 });
    let is_pending = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx).is_pending())).await;
    assert!(is_pending);
    yield_to_ring().await; // it is in the kernel
    (reading, peer, memory, drops)
}

#[test]
fn nothing_is_written_to_a_buffer_whose_read_outlives_the_runtime() {
    for config in [Config::default(), Compio::tuned()] {
        let pending = Compio::block_on(config, pending_read(false));
        let (reading, mut peer, memory, drops) = pending.unwrap();
        peer.write_all(b"late").unwrap();
        thread::sleep(Duration::from_millis(50));
        let written = memory.iter().filter(|byte| byte.get() != 0).count();
        assert_eq!((written, drops.get(), IN_FLIGHT.get()), (0, 0, 0));
        drop(reading);
        assert_eq!(drops.get(), 1);
        assert_eq!(Compio::block_on(config, async { 7 }).unwrap(), 7);
    }
}

#[test]
fn a_buffer_that_panics_when_the_driver_drops_it_leaves_nothing_in_the_kernel() {
    let kept = Rc::new(Cell::new(None));
    let ran = catch_unwind(AssertUnwindSafe(|| {
        Compio::block_on(Config::default(), async {
            let (bomb, _peer, _memory, _drops) = pending_read(true).await;
            kept.set(Some(pending_read(false).await));
            drop(bomb); // when it is cancelled, the driver drops the buffer
            loop {
                yield_to_ring().await;
            }
        })
    }));
    assert!(ran.is_err(), "the panic is not swallowed");
    let (reading, mut peer, memory, drops) = kept.take().unwrap();
    peer.write_all(b"late").unwrap();
    thread::sleep(Duration::from_millis(50));
    let written = memory.iter().filter(|byte| byte.get() != 0).count();
    assert_eq!((written, drops.get(), IN_FLIGHT.get()), (0, 0, 0));
    drop(reading);
}
