//! Backends that each break one sentence of the contract. They test the suite: each must fail the case for its
//! sentence.
//!
//! ```ignore
//! owned_io::canaries! { runtime: my_backend::MyRuntime, config: my_backend::Config::default() }
//! ```

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::prove::prove;
use super::support;
use super::support::A_WHILE;
use crate::backend::{Duplex, Endpoint, TcpEndpoint};
use crate::{
    BoundAddr, BufResult, ByteStream, Clock, ConnectOptions, Executor, HandOver, IoBuf, IoBufExt,
    IoBufMut, IoBufMutExt, IoVec, JoinHandle, OwnedRead, OwnedWrite, OwnedWriteExt, Panicked, Pool,
    PoolBuf, Random, Runtime, ShutdownHandle, Slice, Tcp, TcpListener, TcpStream, coop,
    forward_runtime, task,
};

/// The sentence that a canary breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// No defect. [`Sound`] uses it, to show that a case fails because of the defect, not the wrapper.
    None,
    /// A read does not shorten the length of a longer buffer.
    KeepsTheLength,
    /// A read sets the length, but keeps the old bytes.
    KeepsStaleBytes,
    /// An error empties the buffer.
    ClearsOnError,
    /// A read waits at the end of the stream.
    HidesTheEnd,
    /// A read without capacity waits for bytes.
    WaitsWithoutCapacity,
    /// A read that does not have to wait never yields.
    NeverYields,
    /// A read yields after a number of reads, whatever work is done between them.
    CountsReads,
    /// A write starts with a full budget, whatever work was done before.
    WritesWithoutBudget,
    /// An accept starts with a full budget, whatever work was done before.
    AcceptsWithoutBudget,
    /// A write takes its whole buffer, whatever its length is.
    WritesAll,
    /// A write truncates its length to 32 bits.
    TruncatesTheLength,
    /// A pooled read reports an exhausted pool before data is ready.
    ReportsExhaustionEarly,
    /// A pooled read takes an error for the end of the stream.
    EndsOnError,
    /// A pooled read takes its buffer before data is ready.
    HoldsPooledBuffer,
    /// A write that does not wait says that it has taken everything.
    TriesAndTakesAll,
    /// A write that does not wait takes bytes when it says that it would block.
    TriesTwice,
    /// A write that does not wait counts as no work.
    TriesWithoutWork,
    /// A write that does not wait says that it has taken everything when the peer is gone.
    TriesInVain,
    /// A write of a non-empty buffer returns zero.
    WritesZero,
    /// A vectored write sends the pieces in reverse order.
    ReordersPieces,
    /// A vectored write does not advance.
    ForgetsToAdvance,
    /// A write after the shutdown succeeds, and its bytes are discarded.
    WritesAfterShutdown,
    /// A shutdown of a closed connection is no error.
    IgnoresClosedConnection,
    /// Dropping a stream leaves it open.
    LeaksStreams,
    /// Dropping the read half closes the connection.
    ClosesWithOneHalf,
    /// The shutdown handle does nothing.
    IgnoresShutdown,
    /// The shutdown handle says that a drop is clean, whatever is unread.
    SaysDropIsClean,
    /// A dropped accept loses a client.
    LosesClients,
    /// A listener accepts a hundred clients in one batch, whatever errors there are.
    AcceptsLongBatches,
    /// A read waits for a turn of the runtime, although bytes have arrived.
    WaitsToRead,
    /// A task is polled by the call that starts it.
    PollsAtOnce,
    /// An eager task waits for its turn.
    PollsInTurn,
    /// All eager tasks are polled at once, however many there are.
    PollsUnbounded,
    /// A read wakes the waker of its first poll.
    KeepsTheFirstWaker,
    /// A task is dropped after its first poll.
    ForgetsTasks,
    /// Running tasks are dropped after the runtime has ended.
    EndsTasksLate,
    /// At its end, the runtime runs until no task is ready.
    DrainsUnbounded,
    /// A blocking closure starts when its future is first polled.
    BlocksWhenPolled,
    /// Sleeps end early.
    SleepsHalfTheTime,
    /// Sleeps are rounded up to a tick of ten milliseconds.
    SleepsByLongTicks,
    /// A sleep of zero is ready at once.
    ReadySleepOfZero,
    /// A connect ignores its time limit.
    ConnectsForever,
    /// All random bytes are the same.
    RepeatsRandom,
    /// The error of a failed connect does not name the address.
    NamesNoAddress,
}

/// Panics unless a case fails with the defect of `D` (`defective`) and passes without it (`sound`).
pub fn check_canary<R: Runtime, D: HasDefect>(
    config: &R::Config,
    defective: fn(&R::Config),
    sound: fn(&R::Config),
) {
    assert!(prove(config, defective).is_err(), "{:?} was not noticed", D::DEFECT);
    assert_eq!(prove(config, sound), Ok(()), "fails without {:?} too", D::DEFECT);
}

/// Runs the future of a case.
pub fn run<R: Runtime, F: Future<Output = ()>>(config: &R::Config, case: F) {
    support::run::<R, F>(config, case);
}

/// Creates a `#[test]` for each canary over a correct runtime. The test passes if the case of its defect fails.
#[macro_export]
macro_rules! canaries {
    (runtime: $runtime:ty, config: $config:expr $(,)?) => {
        $crate::__canaries! {
            { $runtime, $config }
            keeps_the_length: KeepsTheLength => io::read_sets_the_exact_length,
            keeps_stale_bytes: KeepsStaleBytes => io::read_leaves_no_stale_bytes,
            clears_on_error: ClearsOnError => io::read_error_leaves_the_length,
            hides_the_end: HidesTheEnd => io::end_of_stream_is_zero_and_repeats,
            waits_without_capacity: WaitsWithoutCapacity => io::read_without_capacity_returns_at_once,
            never_yields: NeverYields => io::reads_that_never_wait_let_others_run,
            never_yields_to_pooled_reads:
                NeverYields => pooled::reads_that_never_wait_let_others_run,
            counts_reads: CountsReads => coop::reads_yield_once_the_budget_is_used_up,
            counts_reads_while_io_waits:
                CountsReads => coop::reads_let_io_run_once_the_budget_is_used_up,
            counts_pooled_reads: CountsReads => coop::pooled_reads_yield_once_the_budget_is_used_up,
            writes_without_budget:
                WritesWithoutBudget => coop::writes_yield_once_the_budget_is_used_up,
            vectored_writes_without_budget:
                WritesWithoutBudget => coop::vectored_writes_yield_once_the_budget_is_used_up,
            waits_to_read: WaitsToRead => coop::reads_after_a_full_one_return_at_once,
            tries_without_work: TriesWithoutWork => coop::tried_writes_count_as_work,
            accepts_without_budget:
                AcceptsWithoutBudget => coop::accepts_yield_once_the_budget_is_used_up,
            writes_all: WritesAll => io::one_operation_transfers_a_bounded_number_of_bytes,
            truncates_the_length: TruncatesTheLength => io::write_takes_a_buffer_of_more_than_four_gibibytes,
            reports_exhaustion_early: ReportsExhaustionEarly => pooled::read_waits_while_the_pool_is_exhausted,
            ends_on_error: EndsOnError => pooled::read_reports_a_reset,
            holds_pooled_buffer: HoldsPooledBuffer => pooled::pending_reads_hold_few_buffers,
            tries_and_takes_all: TriesAndTakesAll => io::try_write_counts_what_it_has_taken,
            tries_twice: TriesTwice => io::try_write_ends_when_the_peer_does_not_read,
            tries_in_vain: TriesInVain => io::try_write_to_a_closed_peer_fails,
            writes_zero: WritesZero => io::write_takes_at_least_one_byte,
            reorders_pieces: ReordersPieces => vectored::write_keeps_the_order_and_advances,
            forgets_to_advance: ForgetsToAdvance => vectored::write_keeps_the_order_and_advances,
            writes_after_shutdown: WritesAfterShutdown => io::write_after_shutdown_is_a_broken_pipe,
            ignores_closed_connection: IgnoresClosedConnection => io::shutdown_reports_a_closed_connection,
            leaks_streams: LeaksStreams => net::a_dropped_stream_closes,
            closes_with_one_half: ClosesWithOneHalf => net::dropping_both_halves_closes,
            says_drop_is_clean: SaysDropIsClean => net::a_drop_is_clean_if_it_is_said_to_be,
            ignores_shutdown: IgnoresShutdown => cancel::shutdown_handle_ends_a_pending_read,
            ignores_shutdown_of_reads:
                IgnoresShutdown => cancel::shutdown_handle_ends_later_reads_too,
            ignores_abort: IgnoresShutdown => cancel::abort_resets_and_ends_a_pending_write,
            ignores_abort_of_a_read: IgnoresShutdown => cancel::abort_ends_a_pending_read,
            loses_clients: LosesClients => net::dropped_accept_loses_no_client,
            accepts_long_batches: AcceptsLongBatches => net::accept_lets_others_run,
            polls_at_once: PollsAtOnce => task::spawn_returns_before_the_task_runs,
            polls_in_turn: PollsInTurn => task::spawn_eager_polls_the_task_at_once,
            keeps_the_first_waker:
                KeepsTheFirstWaker => task::an_eager_task_is_woken_by_what_it_waited_for_at_first,
            polls_unbounded: PollsUnbounded => coop::eager_polls_have_a_bound,
            accepts_past_errors: AcceptsLongBatches => net::accept_yields_after_an_error,
            forgets_tasks: ForgetsTasks => task::a_task_goes_on_when_its_handle_is_dropped,
            blocks_when_polled: BlocksWhenPolled => task::blocking_closures_start_at_once,
            sleeps_half_the_time: SleepsHalfTheTime => time::sleep_is_never_early,
            sleeps_by_long_ticks:
                SleepsByLongTicks => time::sleep_is_rounded_up_by_at_most_two_milliseconds,
            ready_sleep_of_zero: ReadySleepOfZero => time::sleep_of_zero_lets_others_run,
            connects_forever: ConnectsForever => net::connect_times_out,
            repeats_random: RepeatsRandom => time::random_bytes_differ,
            names_no_address: NamesNoAddress => net::connect_refused_names_the_address,
        }
        $crate::__canaries! {
            functions { $runtime, $config }
            ends_tasks_late: EndsTasksLate => runtime::block_on_ends_its_tasks_within_the_runtime,
            waits_to_read_first: WaitsToRead => os::the_first_read_of_a_connection_is_tried_at_once,
            drains_unbounded:
                DrainsUnbounded => runtime::block_on_returns_while_a_task_is_always_ready,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __canaries {
    ({ $runtime:ty, $config:expr } $($test:ident: $defect:ident => $module:ident::$case:ident,)*) => {$(
        $crate::__canaries!(@ $runtime, $config, $test, $defect, $module, config,
            canary::run::<Defective, _>(config, $module::$case::<Defective>()),
            canary::run::<Sound, _>(config, $module::$case::<Sound>()));
    )*};
    (functions { $runtime:ty, $config:expr }
        $($test:ident: $defect:ident => $module:ident::$case:ident,)*
    ) => {$(
        $crate::__canaries!(@ $runtime, $config, $test, $defect, $module, config,
            $module::$case::<Defective>(config), $module::$case::<Sound>(config));
    )*};
    (@ $runtime:ty, $config:expr, $test:ident, $defect:ident, $module:ident, $given:ident,
        $defective:expr, $sound:expr
    ) => {
        #[test]
        fn $test() {
            use $crate::conformance::{$module, canary};
            struct This;
            impl canary::HasDefect for This {
                const DEFECT: canary::Defect = canary::Defect::$defect;
            }
            type Defective = canary::Canary<$runtime, This>;
            type Sound = canary::Canary<$runtime, canary::Sound>;
            canary::check_canary::<$runtime, This>(
                &$config,
                |$given| $defective,
                |$given| $sound,
            );
        }
    };
}

/// A type that selects a [`Defect`].
pub trait HasDefect: 'static {
    /// The defect.
    const DEFECT: Defect;
}

/// Selects no defect.
#[derive(Debug)]
pub struct Sound;

impl HasDefect for Sound {
    const DEFECT: Defect = Defect::None;
}

/// `R` with the defect of `D`.
#[derive(Debug)]
pub struct Canary<R, D>(PhantomData<(R, D)>);

type Inner<R> = <R as Tcp>::TcpStream;

/// The read half of a canary's stream.
pub struct CanaryRead<R: Runtime, D: HasDefect> {
    inner: <Inner<R> as ByteStream>::ReadHalf,
    handle: ShutdownHandle,
    /// Bytes that were read in advance. Reads return them without waiting.
    ahead: Vec<u8>,
    /// The number of reads.
    reads: u32,
    defect: PhantomData<D>,
}

/// The write half of a canary's stream.
pub struct CanaryWrite<R: Runtime, D> {
    inner: Rc<Cell<Option<<Inner<R> as ByteStream>::WriteHalf>>>,
    handle: ShutdownHandle,
    local: SocketAddr,
    peer: SocketAddr,
    is_shut: bool,
    defect: PhantomData<D>,
}

/// The listener of a canary.
pub struct CanaryListener<R: Runtime, D> {
    inner: R::TcpListener,
    /// Clients that were accepted in advance. Accepts return them without waiting.
    ahead: VecDeque<io::Result<(R::TcpStream, SocketAddr)>>,
    defect: PhantomData<D>,
}

type Task = Rc<RefCell<std::pin::Pin<Box<dyn Future<Output = ()>>>>>;

type CanaryStream<R, D> = Duplex<CanaryRead<R, D>, CanaryWrite<R, D>>;

thread_local! {
    /// Dropped at the end of the case's thread, after its runtime has ended.
    static LEAKED: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
    /// Tasks that a canary keeps until its runtime has ended. `POLLS` counts their polls.
    static TASKS: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
    static POLLS: Cell<u32> = const { Cell::new(0) };
}

/// `peer` may be gone already.
fn stream<R: Runtime, D: HasDefect>(
    inner_stream: Inner<R>,
    peer: SocketAddr,
) -> io::Result<CanaryStream<R, D>> {
    let (handle, local) = (inner_stream.shutdown_handle(), inner_stream.local_addr()?);
    let (read, write) = inner_stream.into_split();
    let inner = Rc::new(Cell::new(Some(write)));
    if D::DEFECT == Defect::LeaksStreams {
        LEAKED.with_borrow_mut(|leaked| leaked.push(Box::new(Rc::clone(&inner))));
    }
    Ok(Duplex::new(
        CanaryRead {
            inner: read,
            handle: handle.clone(),
            ahead: Vec::new(),
            reads: 0,
            defect: PhantomData,
        },
        CanaryWrite { inner, handle, local, peer, is_shut: false, defect: PhantomData },
    ))
}

impl<R: Runtime, D: HasDefect> OwnedRead for CanaryRead<R, D> {
    async fn read<B: IoBufMut>(&mut self, mut buf: B) -> BufResult<usize, B> {
        if D::DEFECT == Defect::WaitsWithoutCapacity && buf.buf_capacity() == 0 {
            return pending().await;
        }
        if D::DEFECT == Defect::WaitsToRead {
            R::sleep(Duration::ZERO).await;
        }
        if matches!(D::DEFECT, Defect::NeverYields | Defect::CountsReads) && buf.buf_capacity() > 0
        {
            self.reads += 1;
            if D::DEFECT == Defect::CountsReads && self.reads.is_multiple_of(128) {
                R::sleep(Duration::ZERO).await;
            }
            if self.ahead.is_empty() {
                let read = self.inner.read(Vec::with_capacity(64 * 1024));
                match read.await.into_result() {
                    Ok((_, ahead)) => self.ahead = ahead,
                    Err(error) => return BufResult(Err(error), buf),
                }
            }
            let n = buf.buf_fill(&self.ahead);
            self.ahead.drain(..n);
            return BufResult(Ok(n), buf);
        }
        let before = buf.buf_bytes().to_vec();
        let result;
        BufResult(result, buf) = match D::DEFECT {
            Defect::KeepsTheFirstWaker => with_its_first_waker(self.inner.read(buf)).await,
            _ => self.inner.read(buf).await,
        };
        match (D::DEFECT, &result) {
            (Defect::KeepsTheLength, &Ok(n)) => {
                let mut bytes = buf.buf_bytes().to_vec();
                bytes.extend(before.get(n..).unwrap_or_default());
                buf.buf_fill(&bytes);
            }
            (Defect::KeepsStaleBytes, &Ok(n)) => {
                let mut bytes = before;
                bytes.resize(n, 0);
                buf.buf_fill(&bytes);
            }
            (Defect::ClearsOnError, Err(_)) => buf.buf_clear(),
            (Defect::HidesTheEnd, Ok(0)) if buf.buf_capacity() > 0 => return pending().await,
            _ => {}
        }
        BufResult(result, buf)
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        if matches!(D::DEFECT, Defect::NeverYields | Defect::CountsReads) {
            let (_, buf) = self.read(pool.take()?).await.into_result()?;
            return Ok(buf);
        }
        if D::DEFECT == Defect::HoldsPooledBuffer {
            let (_, buf) = self.inner.read(pool.take()?).await.into_result()?;
            return Ok(buf);
        }
        if D::DEFECT == Defect::ReportsExhaustionEarly {
            drop(pool.take()?);
        }
        match self.inner.read_pooled(pool).await {
            Err(_) if D::DEFECT == Defect::EndsOnError => Ok(pool.take()?),
            read => read,
        }
    }
}

/// Polls `future` with the waker of the first poll, whatever the waker of a later one is.
async fn with_its_first_waker<F: Future>(future: F) -> F::Output {
    let (mut future, mut first) = (pin!(future), None);
    poll_fn(|cx| {
        let waker = first.get_or_insert_with(|| cx.waker().clone());
        future.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await
}

impl<R: Runtime, D: HasDefect> Drop for CanaryRead<R, D> {
    fn drop(&mut self) {
        if D::DEFECT == Defect::ClosesWithOneHalf {
            self.handle.shutdown(Shutdown::Both);
        }
    }
}

impl<R: Runtime, D: HasDefect> OwnedWrite for CanaryWrite<R, D> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        if D::DEFECT == Defect::WritesZero && buf.buf_len() > 0 {
            return BufResult(Ok(0), buf);
        }
        if D::DEFECT == Defect::WritesAfterShutdown && self.is_shut {
            return BufResult(Ok(buf.buf_len()), buf);
        }
        let mut inner = self.inner.take().expect("put back after each use");
        let result = if D::DEFECT == Defect::TruncatesTheLength {
            let len = buf.buf_len() as u32 as usize;
            let BufResult(result, cut) = inner.write(buf.buf_slice(..len)).await;
            BufResult(result, Slice::into_inner(cut))
        } else if D::DEFECT == Defect::WritesAll {
            let len = buf.buf_len();
            inner.write_all(buf).await.map(|()| len)
        } else {
            if D::DEFECT == Defect::WritesWithoutBudget {
                coop::refill();
            }
            inner.write(buf).await
        };
        self.inner.set(Some(inner));
        result
    }

    async fn write_vectored<B: IoBuf>(&mut self, mut bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        let mut inner = self.inner.take().expect("put back after each use");
        let result = match D::DEFECT {
            Defect::ReordersPieces | Defect::ForgetsToAdvance => {
                let pieces = bufs.as_io_slices_within(coop::write_bytes_max()).iter();
                let mut pieces: Vec<Vec<u8>> = pieces.map(|piece| piece.to_vec()).collect();
                if D::DEFECT == Defect::ReordersPieces {
                    pieces.reverse();
                }
                let all = pieces.concat();
                let n = all.len();
                let BufResult(result, _) = inner.write_all(all).await;
                if D::DEFECT == Defect::ReordersPieces && result.is_ok() {
                    bufs.advance(n);
                }
                BufResult(result.map(|()| n), bufs)
            }
            _ => {
                if D::DEFECT == Defect::WritesWithoutBudget {
                    coop::refill();
                }
                inner.write_vectored(bufs).await
            }
        };
        self.inner.set(Some(inner));
        result
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.inner.take().expect("put back after each use");
        let spent = coop::spent_nanos();
        let mut result = inner.try_write(bytes);
        match D::DEFECT {
            Defect::TriesAndTakesAll => result = result.map(|_| bytes.len()),
            Defect::TriesWithoutWork => {
                coop::refill();
                coop::consume(spent);
            }
            Defect::TriesInVain => {
                let is_gone = |error: &io::Error| error.kind() != io::ErrorKind::WouldBlock;
                result =
                    result.or_else(|error| is_gone(&error).then_some(bytes.len()).ok_or(error));
            }
            Defect::TriesTwice if result.is_ok() => {
                result = inner.try_write(bytes).map_err(|_| io::ErrorKind::WouldBlock.into());
            }
            _ => {}
        }
        self.inner.set(Some(inner));
        result
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.is_shut = true;
        let mut inner = self.inner.take().expect("put back after each use");
        let result = inner.shutdown().await;
        self.inner.set(Some(inner));
        if D::DEFECT == Defect::IgnoresClosedConnection { Ok(()) } else { result }
    }
}

impl<R: Runtime, D: HasDefect> Endpoint for CanaryWrite<R, D> {
    fn shutdown_handle(&self) -> ShutdownHandle {
        struct NoTarget;
        impl crate::backend::ShutdownTarget for NoTarget {
            fn shutdown(&self, _how: Shutdown) {}
            fn drops_cleanly(&self) -> bool {
                true
            }
            fn abort(&self) {}
        }
        if D::DEFECT == Defect::IgnoresShutdown {
            let no_target: std::rc::Weak<NoTarget> = std::rc::Weak::new();
            return ShutdownHandle::new(no_target);
        }
        if D::DEFECT == Defect::SaysDropIsClean {
            let target = Rc::new(NoTarget);
            let weak: std::rc::Weak<NoTarget> = Rc::downgrade(&target);
            LEAKED.with_borrow_mut(|leaked| leaked.push(Box::new(target)));
            return ShutdownHandle::new(weak);
        }
        self.handle.clone()
    }
}

impl<R: Runtime, D: HasDefect> TcpEndpoint for CanaryWrite<R, D> {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl<R: Runtime, D: HasDefect> TcpListener for CanaryListener<R, D> {
    type Stream = CanaryStream<R, D>;

    async fn accept(&mut self) -> io::Result<(Self::Stream, SocketAddr)> {
        if D::DEFECT == Defect::AcceptsLongBatches && self.ahead.is_empty() {
            // Other tasks run while it waits here, but not while it returns these clients.
            while self.ahead.len() < 100
                && let Some(client) = support::within::<R, _>(A_WHILE, self.inner.accept()).await
            {
                self.ahead.push_back(client);
            }
        }
        if D::DEFECT == Defect::AcceptsWithoutBudget {
            coop::refill();
        }
        let (inner_stream, peer) = match self.ahead.pop_front() {
            Some(client) => client?,
            None => self.inner.accept().await?,
        };
        if D::DEFECT == Defect::LosesClients {
            R::sleep(Duration::ZERO).await; // with the client in hand
        }
        Ok((stream::<R, D>(inner_stream, peer)?, peer))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

impl<R: Runtime, D: HasDefect> Clock for Canary<R, D> {
    forward_runtime!(Clock::{now, wall_clock} => R);

    async fn sleep(duration: Duration) {
        match D::DEFECT {
            Defect::SleepsHalfTheTime => R::sleep(duration / 2).await,
            Defect::SleepsByLongTicks => {
                R::sleep(Duration::from_millis(duration.as_micros().div_ceil(10_000) as u64 * 10))
                    .await;
            }
            Defect::ReadySleepOfZero if duration.is_zero() => {}
            _ => R::sleep(duration).await,
        }
    }
}

impl<R: Runtime, D: HasDefect> Random for Canary<R, D> {
    fn fill_random(bytes: &mut [u8]) {
        if D::DEFECT == Defect::RepeatsRandom {
            return bytes.fill(4); // the same on every call
        }
        R::fill_random(bytes);
    }
}

impl<R: Runtime, D: HasDefect> Executor for Canary<R, D> {
    forward_runtime!(Executor::{NAME, Config, tuned} => R);

    fn block_on<F: Future>(config: Self::Config, future: F) -> io::Result<F::Output> {
        let future = async {
            let output = future.await;
            match D::DEFECT {
                // Like a `block_on` without `run_main`: the drop of the runtime drops its tasks.
                Defect::EndsTasksLate => task::forget_tasks(),
                Defect::DrainsUnbounded => {
                    let mut polls = u32::MAX;
                    while std::mem::replace(&mut polls, POLLS.get()) != POLLS.get() {
                        R::sleep(Duration::ZERO).await;
                        R::sleep(Duration::ZERO).await;
                    }
                }
                _ => {}
            }
            output
        };
        let output = R::block_on(config, future);
        drop(TASKS.take());
        output
    }

    fn spawn_eager<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: 'static> + 'static,
    {
        match D::DEFECT {
            Defect::PollsInTurn => Self::spawn(future),
            Defect::PollsUnbounded => {
                let spent = coop::spent_nanos();
                coop::refill();
                let task = task::spawn_eager::<Self, F>(future);
                coop::refill();
                coop::consume(spent);
                task
            }
            _ => task::spawn_eager::<Self, F>(future),
        }
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        if D::DEFECT == Defect::ForgetsTasks {
            return R::spawn_detached(async {
                let mut future = Box::pin(future);
                let _ = poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await;
            });
        }
        if D::DEFECT == Defect::PollsAtOnce {
            let mut future = Box::pin(future);
            if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                R::spawn_detached(future);
            }
            return;
        }
        if matches!(D::DEFECT, Defect::EndsTasksLate | Defect::DrainsUnbounded) {
            let future: Task = Rc::new(RefCell::new(Box::pin(future)));
            TASKS.with_borrow_mut(|tasks| tasks.push(Rc::clone(&future)));
            return R::spawn_detached(poll_fn(move |cx| {
                POLLS.set(POLLS.get().wrapping_add(1));
                future.borrow_mut().as_mut().poll(cx)
            }));
        }
        R::spawn_detached(future);
    }

    fn spawn_blocking<T: Send + 'static>(
        f: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, Panicked>> + 'static {
        let (mut lazy, mut started) = (Some(f), None);
        if D::DEFECT != Defect::BlocksWhenPolled {
            started = lazy.take().map(R::spawn_blocking);
        }
        async move {
            match lazy {
                Some(f) => R::spawn_blocking(f).await,
                None => started.expect("it was started").await,
            }
        }
    }
}

impl<R: Runtime, D: HasDefect> Tcp for Canary<R, D> {
    type TcpStream = CanaryStream<R, D>;
    type TcpListener = CanaryListener<R, D>;

    forward_runtime!(Tcp::{bind} => R);

    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener> {
        let inner = R::listen(bound)?;
        Ok(CanaryListener { inner, ahead: VecDeque::new(), defect: PhantomData })
    }

    async fn connect(mut options: ConnectOptions) -> io::Result<Self::TcpStream> {
        if D::DEFECT == Defect::ConnectsForever {
            options.timeout = Duration::from_secs(7);
        }
        let mut inner_stream = R::connect(options).await;
        if D::DEFECT == Defect::NamesNoAddress {
            inner_stream = inner_stream.map_err(|error| io::Error::from(error.kind()));
        }
        let inner_stream = inner_stream?;
        let peer = inner_stream.peer_addr()?;
        stream::<R, D>(inner_stream, peer)
    }
}

/// A connection that a canary has accepted for any worker.
pub struct CanaryDetached<R: HandOver, D: HasDefect> {
    inner: Option<R::Detached>,
    peer: SocketAddr,
    defect: PhantomData<fn() -> D>,
}

impl<R: Runtime + HandOver, D: HasDefect> HandOver for Canary<R, D> {
    type Detached = CanaryDetached<R, D>;

    async fn accept_detached(
        listener: &mut Self::TcpListener,
    ) -> io::Result<(Self::Detached, SocketAddr)> {
        let (inner, peer) = R::accept_detached(&mut listener.inner).await?;
        if D::DEFECT == Defect::LosesClients {
            R::sleep(Duration::ZERO).await; // with the client in hand
        }
        Ok((CanaryDetached { inner: Some(inner), peer, defect: PhantomData }, peer))
    }

    fn adopt(mut detached: Self::Detached) -> io::Result<Self::TcpStream> {
        let inner = detached.inner.take().expect("it is adopted once");
        stream::<R, D>(R::adopt(inner)?, detached.peer)
    }
}

impl<R: HandOver, D: HasDefect> Drop for CanaryDetached<R, D> {
    fn drop(&mut self) {
        if D::DEFECT == Defect::LeaksStreams {
            std::mem::forget(self.inner.take());
        }
    }
}
