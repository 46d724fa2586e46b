//! What the adapters write stays within the memory budget of the worker.

mod interface;

use std::io::ErrorKind;
use std::time::Duration;

use interface::{
    ACCEPTED_BYTES_MAX, Adapter, PIPE_BYTES_MAX, buffers, buffers_of, for_each_adapter, is_waiting,
};
use owned_io::{Clock, Executor, MemoryBudget, MemoryWait, OwnedRead};
use owned_io_sim::{Sim, SimStream, pipe};

for_each_adapter! {
    a_write_waits_for_memory
    a_write_that_waits_too_long_fails_and_can_be_repeated
    a_wait_ends_when_its_caller_flushes
    a_connection_that_is_evicted_is_reset
    a_write_is_no_larger_than_the_budget
    a_write_takes_no_larger_buffer_than_it_needs
    a_short_write_does_not_wait_for_a_large_buffer
}

const SECOND: Duration = Duration::from_secs(1);

async fn discard_all(mut stream: SimStream, mut left: usize) {
    while left > 0 {
        let (n, _) = stream.read(Vec::with_capacity(left)).await.into_result().unwrap();
        assert_ne!(n, 0, "{left} bytes are missing");
        left -= n;
    }
}

fn a_write_waits_for_memory<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, _far) = pipe();
        let budget = MemoryBudget::new(1000);
        let mut io = A::adapt(near, &buffers_of(budget.clone()));
        let mut held = budget.account().reservation();
        held.resize(900).unwrap();
        drop(Sim::spawn(async move {
            Sim::sleep(SECOND).await;
            drop(held);
        }));
        let began = Sim::now();
        assert_eq!(io.write(&[7; 200]).await.unwrap(), 200);
        let waited = Sim::now() - began;
        assert!((SECOND..SECOND + SECOND / 10).contains(&waited), "{waited:?}");
        io.flush().await.unwrap();
        assert_eq!(budget.common_bytes_held(), 0);
    });
}

fn a_write_that_waits_too_long_fails_and_can_be_repeated<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, _far) = pipe();
        let budget = MemoryBudget::new(1000);
        let mut io = A::adapt(near, &buffers_of(budget.clone()));
        let mut held = budget.account().reservation();
        held.resize(900).unwrap();
        for _ in 0..2 {
            let began = Sim::now();
            let error = io.write(&[7; 200]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
            let waited = Sim::now() - began;
            let longest = MemoryWait::TIME_MAX;
            assert!((longest..longest + SECOND).contains(&waited), "{waited:?}");
        }
        drop(held);
        assert_eq!(io.write(&[7; 200]).await.unwrap(), 200);
        io.flush().await.unwrap();
    });
}

/// An account that waits keeps the others to their fair part.
fn a_wait_ends_when_its_caller_flushes<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, _far) = pipe();
        let budget = MemoryBudget::new(1000);
        let mut io = A::adapt(near, &buffers_of(budget.clone()));
        let mut held = budget.account().reservation();
        held.resize(900).unwrap();
        assert!(is_waiting(io.write(&[7; 200])).await, "there is no memory for it");
        assert!(held.resize(901).is_err(), "the write has given up its wait");
        io.flush().await.unwrap();
        held.resize(901).unwrap();
    });
}

fn a_connection_that_is_evicted_is_reset<A: Adapter>() {
    owned_io_sim::block_on(async {
        let budget = MemoryBudget::new(ACCEPTED_BYTES_MAX);
        let buffers = buffers_of(budget.clone());
        let (near, mut unread) = pipe();
        let mut holder = A::adapt(near, &buffers);
        let all = vec![7; PIPE_BYTES_MAX + ACCEPTED_BYTES_MAX];
        holder.write_all(&all).await.unwrap();
        assert_eq!(budget.common_bytes_held(), ACCEPTED_BYTES_MAX);
        let ending = Sim::spawn(async move { holder.flush().await });

        let (near, far) = pipe();
        let mut other = A::adapt(near, &buffers);
        let reading = Sim::spawn(discard_all(far, all.len()));
        let began = Sim::now();
        other.write_all(&all).await.unwrap();
        assert!(Sim::now() - began < 5 * SECOND);
        other.flush().await.unwrap();
        reading.await.unwrap();
        let error = ending.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let error = loop {
            match unread.read(Vec::with_capacity(100_000)).await.into_result() {
                Ok((n, _)) => assert_ne!(n, 0, "a reset is no end of the stream"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

fn a_write_is_no_larger_than_the_budget<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, far) = pipe();
        let budget = MemoryBudget::new(1000);
        let mut io = A::adapt(near, &buffers_of(budget.clone()));
        let reading = Sim::spawn(discard_all(far, 100_000));
        let bytes = [7; 100_000];
        let mut left = &bytes[..];
        while !left.is_empty() {
            let n = io.write(left).await.unwrap();
            assert!(n <= 1000 && budget.common_bytes_held() <= 1000, "{n}");
            left = &left[n..];
        }
        io.flush().await.unwrap();
        reading.await.unwrap();
    });
}

/// The unused buffer that comes first may be large. All of it would have to be reserved.
fn a_write_takes_no_larger_buffer_than_it_needs<A: Adapter>() {
    owned_io_sim::block_on(async {
        let (near, _far) = pipe();
        let buffers = buffers();
        let mut io = A::adapt(near, &buffers);
        io.write_all(&vec![7; PIPE_BYTES_MAX]).await.unwrap();
        io.flush().await.unwrap();
        while buffers.take().capacity() > 0 {}
        buffers.give(Vec::with_capacity(100));
        buffers.give(Vec::with_capacity(ACCEPTED_BYTES_MAX + 1));
        assert_eq!(io.write(b"hello").await.unwrap(), 5);
        assert_eq!(buffers.budget().common_bytes_held(), 100);
    });
}

/// The unused buffer is as large as a write can be, and only the bytes of this one have room: in the share.
fn a_short_write_does_not_wait_for_a_large_buffer<A: Adapter>() {
    const SHARE: usize = 100;
    owned_io_sim::block_on(async {
        let (near, _far) = pipe();
        let budget = MemoryBudget::new(ACCEPTED_BYTES_MAX + 2 * SHARE).with_shares(2, 2 * SHARE);
        let buffers = buffers_of(budget.clone());
        let mut held = budget.account().reservation();
        held.resize(ACCEPTED_BYTES_MAX + SHARE).unwrap();
        assert_eq!(budget.common_bytes_held(), budget.common_bytes_max());
        let mut io = A::adapt(near, &buffers);
        // A new buffer would be a power of two, and 128 bytes have no room either.
        for len in [5, 80] {
            while buffers.take().capacity() > 0 {}
            buffers.give(Vec::with_capacity(ACCEPTED_BYTES_MAX));
            let began = Sim::now();
            assert_eq!(io.write(&vec![7; len]).await.unwrap(), len);
            io.flush().await.unwrap();
            assert_eq!(Sim::now(), began, "it has waited");
            assert!(!held.account().is_evicted(), "another has lost its memory to it");
        }
    });
}
