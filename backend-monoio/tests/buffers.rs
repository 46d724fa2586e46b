//! When the buffer of a dropped operation is dropped.

#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::env;
use std::future::poll_fn;
use std::pin::pin;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use owned_io::{Clock, Executor, Files, OpenMode, OwnedWriteAt};
use owned_io_monoio::{Config, Monoio};

thread_local! {
    /// Whether a future is polled on this thread. monoio uses the ring between two polls.
    static IS_POLLED: Cell<bool> = const { Cell::new(false) };
}

/// The memory of a buffer. It records where it is dropped.
struct Memory {
    bytes: Vec<u8>,
    drops: Arc<AtomicU32>,
    was_polled: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.was_polled.store(IS_POLLED.get(), Ordering::Relaxed);
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// A buffer may use the ring when it is dropped. While monoio itself uses the ring, that would be undefined behaviour.
#[test]
fn the_buffer_of_a_dropped_operation_is_dropped_by_a_task() {
    let path = env::temp_dir().join(format!("owned-io-monoio-buffers-{}", process::id()));
    let (drops, was_polled) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
    let bytes = vec![7; 1 << 20];
    let memory = Memory { bytes, drops: Arc::clone(&drops), was_polled: Arc::clone(&was_polled) };
    let test = async {
        let file = Monoio::open(&path, OpenMode::Create).await.unwrap();
        let mut write = Box::pin(file.write_at(Bytes::from_owner(memory), 0));
        assert!(poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx).is_pending())).await);
        drop(write);
        assert_eq!(drops.load(Ordering::Relaxed), 0, "the kernel has it");
        for _ in 0..1_000 {
            Monoio::sleep(Duration::from_millis(1)).await;
            if drops.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        assert!(was_polled.load(Ordering::Relaxed), "it was dropped while no task was polled");
        Monoio::remove_file(&path).await.unwrap();
    };
    Monoio::block_on(Config::default(), async {
        let mut test = pin!(test);
        poll_fn(|cx| {
            IS_POLLED.set(true);
            let polled = test.as_mut().poll(cx);
            IS_POLLED.set(false);
            polled
        })
        .await;
    })
    .unwrap();
}
