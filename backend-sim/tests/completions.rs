//! Operations as a completion-based kernel performs them: buffers are watched, dropped operations may complete, and
//! completions come in any order.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;

use common::{connected_hosts, millis};
use owned_io::{
    Clock, Executor, IoBuf, IoBufMut, IoBufMutExt, IoVec, OwnedRead, OwnedReadExt, OwnedWrite,
    OwnedWriteExt, Panicked, Pool, PoolConfig, select,
};
use owned_io_sim::{Config, Sim, pipe, run, seeds, simulate};

const SEEDS: u64 = 50;

/// A buffer that breaks the fourth rule of `IoBuf`: others may write to its bytes.
struct Shared(Rc<RefCell<Vec<u8>>>);

// SAFETY: none, on purpose: others can reach the vector. These tests do so only between polls, so there are never
// two accesses at once.
unsafe impl IoBuf for Shared {
    fn buf_ptr(&self) -> *const u8 {
        self.0.borrow().as_ptr()
    }
    fn buf_len(&self) -> usize {
        self.0.borrow().len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Shared {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.0.borrow_mut().as_mut_ptr()
    }
    fn buf_capacity(&self) -> usize {
        self.0.borrow().capacity()
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        // SAFETY: the caller keeps the same promises.
        unsafe { self.0.borrow_mut().set_len(len) }
    }
}

/// A buffer that breaks the second rule: its bytes move with it.
struct Inline {
    bytes: [u8; 64],
    len: usize,
}

impl Inline {
    const fn new(len: usize) -> Self {
        Self { bytes: [7; 64], len }
    }
}

// SAFETY: none, on purpose: the bytes move. The simulator never uses an old address.
unsafe impl IoBuf for Inline {
    fn buf_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
    fn buf_len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Inline {
    fn buf_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
    fn buf_capacity(&self) -> usize {
        self.bytes.len()
    }
    unsafe fn set_buf_len(&mut self, len: usize) {
        self.len = len;
    }
}

#[test]
fn a_buffer_whose_bytes_move_is_found() {
    let message = panic_of(async || {
        let (mut a, mut b) = pipe();
        a.write_all("x").await.into_result().unwrap();
        let _ = b.read(Inline::new(0)).await;
    });
    assert!(message.contains("while a read had it"), "{message}");
    let message = panic_of(async || {
        let (mut a, _b) = pipe();
        let _ = a.write(Inline::new(64)).await;
    });
    assert!(message.contains("while a write had it"), "{message}");
}

#[test]
fn a_buffer_that_is_written_to_while_a_read_has_it_is_found() {
    let message = panic_of(async || {
        let (mut a, mut b) = pipe();
        let bytes = Rc::new(RefCell::new(Vec::with_capacity(100)));
        let mut read = pin!(b.read(Shared(Rc::clone(&bytes))));
        assert!(select(read.as_mut(), Sim::sleep(millis(1))).await.first.is_none());
        bytes.borrow_mut()[17] = 1;
        a.write_all("x").await.into_result().unwrap();
        let _ = read.await;
    });
    assert!(message.contains("while a read had it"), "{message}");
}

#[test]
fn a_buffer_that_changes_while_a_write_has_it_is_found() {
    for is_vectored in [false, true] {
        let message = panic_of(async || {
            let (mut a, mut b) = pipe();
            a.write_all(vec![0; 64 * 1024]).await.into_result().unwrap(); // fills the buffers
            let bytes = Rc::new(RefCell::new(vec![1; 100]));
            let shared = Shared(Rc::clone(&bytes));
            let mut write = pin!(async {
                if is_vectored {
                    let mut bufs = IoVec::new();
                    bufs.push(Shared(Rc::new(RefCell::new(vec![1; 1_000]))));
                    bufs.push(shared);
                    let _ = a.write_vectored(bufs).await;
                } else {
                    let _ = a.write(shared).await;
                }
            });
            assert!(select(write.as_mut(), Sim::sleep(millis(1))).await.first.is_none());
            bytes.borrow_mut()[17] = 2;
            b.read_exact(Vec::with_capacity(1024), 1024).await.into_result().unwrap();
            write.await;
        });
        assert!(message.contains("while a write had it"), "{message}");
    }
}

/// The buffer has the bytes of the read and nothing else. A read that fails leaves it unchanged.
#[test]
fn the_poison_is_never_seen() {
    run(seeds(50), async |_| {
        let (mut a, mut b) = pipe();
        a.write_all("12345").await.into_result()?;
        let mut buf = Vec::with_capacity(64);
        buf.extend_from_slice(b"before");
        while buf.len() < 11 {
            let read = b.read(buf.spare()).await.map_buf(owned_io::Spare::into_inner);
            (_, buf) = read.into_result()?;
        }
        assert_eq!(buf, b"before12345");
        b.write_all("unread").await.into_result()?;
        drop(a);
        let BufError(buf) = failed(b.read(buf).await);
        assert_eq!(buf, b"before12345");
        Ok(())
    });
}

struct BufError(Vec<u8>);

fn failed(result: owned_io::BufResult<usize, Vec<u8>>) -> BufError {
    assert!(result.0.is_err());
    BufError(result.1)
}

/// In a `run`, a read that is dropped while pending takes the next bytes with it under some seeds. Otherwise it never
/// does, as `tests/conformance.rs` declares with `dropped_read: LosesNothing`.
#[test]
fn a_dropped_read_may_take_bytes() {
    let read_after_drop = |config, is_pooled, is_far| {
        let seen = Cell::new(Vec::new());
        simulate(config, async |world| {
            let (mut a, mut b) = if is_far {
                let (_, _, a, b) = connected_hosts(world).await?;
                (a, b)
            } else {
                pipe()
            };
            if is_pooled {
                let pool = Pool::new(PoolConfig::default());
                let read = pin!(b.read_pooled(&pool));
                assert!(select(read, Sim::sleep(millis(1))).await.first.is_none());
            } else {
                let read = pin!(b.read(Vec::with_capacity(8)));
                assert!(select(read, Sim::sleep(millis(1))).await.first.is_none());
            }
            a.write_all("first, then more").await.into_result()?;
            a.shutdown().await?;
            let mut received = Vec::new();
            while let (1.., bytes) = b.read(Vec::with_capacity(64)).await.into_result()? {
                received.extend_from_slice(&bytes);
            }
            assert!("first, then more".as_bytes().ends_with(&received));
            seen.set(received);
            Ok(())
        });
        seen.take()
    };
    for (is_pooled, is_far) in [(false, false), (false, true), (true, false)] {
        let (mut whole, mut parts) = (0, 0);
        for seed in 0..SEEDS {
            let mut config = Config::with_seed(seed);
            assert_eq!(read_after_drop(config, is_pooled, is_far), b"first, then more");
            config.dropped_operations_may_complete = true;
            match read_after_drop(config, is_pooled, is_far).len() {
                16 => whole += 1,
                _ => parts += 1,
            }
        }
        assert!(whole > SEEDS / 5 && parts > SEEDS / 5, "{whole} whole, {parts} in part");
    }
}

/// In a `run`, a write that is dropped while it waits for room may be sent, in full or in part.
#[test]
fn a_dropped_write_may_be_sent() {
    let received_after_drop = |config| {
        let received = Cell::new(0);
        simulate(config, async |_| {
            let (mut a, mut b) = pipe();
            a.write_all(vec![0; 64 * 1024]).await.into_result()?;
            {
                let write = pin!(a.write(vec![1; 100]));
                assert!(select(write, Sim::sleep(millis(1))).await.first.is_none());
            }
            drop(a);
            let mut all = Vec::new();
            while let (1.., bytes) = b.read(Vec::with_capacity(4096)).await.into_result()? {
                all.extend_from_slice(&bytes);
            }
            assert!(all[64 * 1024..].iter().all(|byte| *byte == 1));
            received.set(all.len() - 64 * 1024);
            Ok(())
        });
        received.get()
    };
    let mut counts = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut config = Config::with_seed(seed);
        assert_eq!(received_after_drop(config), 0);
        config.dropped_operations_may_complete = true;
        counts.insert(received_after_drop(config));
    }
    assert!(counts.contains(&0) && counts.contains(&100) && counts.len() > 2, "{counts:?}");
}

/// Every kind of transfer moves all bytes under some seeds, and any part of them under others.
#[test]
fn transfers_are_short() {
    let mut moved: [BTreeSet<usize>; 4] = Default::default();
    for seed in 0..SEEDS {
        let amounts = Cell::new([0; 4]);
        simulate(Config::with_seed(seed), async |_| {
            let (mut a, mut b) = pipe();
            let written = a.write(vec![1; 100]).await.0?;
            let mut bufs = IoVec::new();
            bufs.push(vec![1; 50]);
            bufs.push(vec![1; 50]);
            let vectored = a.write_vectored(bufs).await.0?;
            a.write_all(vec![1; 200 - written - vectored]).await.into_result()?;
            let read = b.read(Vec::with_capacity(100)).await.0?;
            b.read_exact(Vec::with_capacity(100 - read), 100 - read).await.into_result()?;
            let pooled = b.read_pooled(&Pool::new(PoolConfig::default())).await?.len();
            amounts.set([written, vectored, read, pooled]);
            Ok(())
        });
        for (moved, amount) in moved.iter_mut().zip(amounts.get()) {
            moved.insert(amount);
        }
    }
    for moved in moved {
        assert!(moved.len() > 10 && moved.first() > Some(&0), "{moved:?}");
        assert_eq!(moved.last(), Some(&100));
    }
}

/// Operations that are ready at the same time complete in any order.
#[test]
fn completions_come_in_any_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..100 {
        let order = Rc::new(RefCell::new(Vec::new()));
        simulate(Config::with_seed(seed), async |_| {
            let (mut writers, mut reading) = (Vec::new(), Vec::new());
            for number in 0..3 {
                let (a, mut b) = pipe();
                writers.push(a);
                let order = Rc::clone(&order);
                reading.push(Sim::spawn(async move {
                    let _ = b.read(Vec::with_capacity(1)).await;
                    order.borrow_mut().push(number);
                }));
            }
            Sim::sleep(millis(1)).await;
            for writer in &mut writers {
                writer.write_all("x").await.into_result()?;
            }
            for reading in reading {
                reading.await.expect("no panic");
            }
            Ok(())
        });
        orders.insert(order.take());
    }
    assert_eq!(orders.len(), 6, "all orders of three");
}

fn panic_of(case: impl AsyncFn()) -> String {
    let running = || Sim::block_on(Config::default(), case());
    let payload = catch_unwind(AssertUnwindSafe(running)).expect_err("it is found");
    Panicked::new(payload).message().to_owned()
}
