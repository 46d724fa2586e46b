//! [`forward_runtime!`](crate::forward_runtime): a wrapper of a runtime forwards the items that it does not
//! change.

/// Implements items of [`Clock`], [`Random`], [`Executor`] or [`Tcp`] by calls to another runtime.
///
/// Use it in the `impl` of a wrapper. It forwards all items of a trait, or the listed ones.
///
/// ```
/// use owned_io::{Clock, Executor, Random, Runtime, Tcp, forward_runtime};
///
/// /// A runtime whose random bytes are all the same.
/// struct Predictable<R>(R);
///
/// impl<R: Runtime> Random for Predictable<R> {
///     fn fill_random(bytes: &mut [u8]) {
///         bytes.fill(4);
///     }
/// }
/// impl<R: Runtime> Clock for Predictable<R> { forward_runtime!(Clock => R); }
/// impl<R: Runtime> Tcp for Predictable<R> { forward_runtime!(Tcp => R); }
/// impl<R: Runtime> Executor for Predictable<R> {
///     const NAME: &'static str = "predictable";
///     forward_runtime!(
///         Executor::{Config, tuned, block_on, spawn_detached, spawn_blocking, run_workers} => R
///     );
/// }
/// # use owned_io_sim::Sim;
/// # let mut bytes = [0; 2];
/// # Predictable::<Sim>::block_on(Default::default(), async { Predictable::<Sim>::fill_random(&mut bytes) })?;
/// # assert_eq!(bytes, [4; 2]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// It is a macro, because Rust has no other way. A blanket implementation for all wrappers would overlap
/// with the implementations of the runtimes (coherence). Provided functions of a trait could call the
/// wrapped runtime only if every runtime were a wrapper.
///
/// [`Executor::spawn`] and [`Executor::spawn_eager`] are not forwarded: their provided bodies call the wrapper's
/// `spawn_detached`. A forwarded
/// [`run_workers`](crate::Executor::run_workers) uses the `block_on` of the wrapped runtime. If the wrapper changes
/// `block_on`, leave `run_workers` out: then each worker calls the wrapper's `block_on`.
///
/// [`Clock`]: crate::Clock
/// [`Random`]: crate::Random
/// [`Executor`]: crate::Executor
/// [`Executor::spawn`]: crate::Executor::spawn
/// [`Executor::spawn_eager`]: crate::Executor::spawn_eager
/// [`Tcp`]: crate::Tcp
#[macro_export]
macro_rules! forward_runtime {
    (Clock => $inner:ty) => {
        $crate::forward_runtime!(Clock::{now, wall_clock, sleep} => $inner);
    };
    (Random => $inner:ty) => {
        $crate::forward_runtime!(Random::{fill_random} => $inner);
    };
    (Executor => $inner:ty) => {
        $crate::forward_runtime!(Executor::{
            NAME, Config, tuned, block_on, spawn_detached, spawn_blocking, run_workers
        } => $inner);
    };
    (Tcp => $inner:ty) => {
        $crate::forward_runtime!(Tcp::{TcpStream, TcpListener, bind, listen, connect} => $inner);
    };
    ($trait:ident::{ $($item:ident),* $(,)? } => $inner:ty) => {
        $crate::__forward_runtime!($trait $inner; $($item)*);
    };
}

/// Expands one item and calls itself for the rest.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_runtime {
    ($trait:ident $inner:ty;) => {};
    (Clock $inner:ty; now $($rest:ident)*) => {
        fn now() -> ::std::time::Instant {
            <$inner as $crate::Clock>::now()
        }
        $crate::__forward_runtime!(Clock $inner; $($rest)*);
    };
    (Clock $inner:ty; wall_clock $($rest:ident)*) => {
        fn wall_clock() -> ::std::time::SystemTime {
            <$inner as $crate::Clock>::wall_clock()
        }
        $crate::__forward_runtime!(Clock $inner; $($rest)*);
    };
    (Clock $inner:ty; sleep $($rest:ident)*) => {
        fn sleep(
            duration: ::std::time::Duration,
        ) -> impl ::std::future::Future<Output = ()> + 'static {
            <$inner as $crate::Clock>::sleep(duration)
        }
        $crate::__forward_runtime!(Clock $inner; $($rest)*);
    };
    (Random $inner:ty; fill_random $($rest:ident)*) => {
        fn fill_random(bytes: &mut [u8]) {
            <$inner as $crate::Random>::fill_random(bytes);
        }
        $crate::__forward_runtime!(Random $inner; $($rest)*);
    };
    (Executor $inner:ty; NAME $($rest:ident)*) => {
        const NAME: &'static str = <$inner as $crate::Executor>::NAME;
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Executor $inner:ty; Config $($rest:ident)*) => {
        type Config = <$inner as $crate::Executor>::Config;
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Executor $inner:ty; tuned $($rest:ident)*) => {
        fn tuned() -> Self::Config {
            <$inner as $crate::Executor>::tuned()
        }
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Executor $inner:ty; block_on $($rest:ident)*) => {
        fn block_on<F: ::std::future::Future>(
            config: Self::Config,
            future: F,
        ) -> ::std::io::Result<F::Output> {
            <$inner as $crate::Executor>::block_on(config, future)
        }
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Executor $inner:ty; spawn_detached $($rest:ident)*) => {
        fn spawn_detached(future: impl ::std::future::Future<Output = ()> + 'static) {
            <$inner as $crate::Executor>::spawn_detached(future);
        }
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Executor $inner:ty; spawn_blocking $($rest:ident)*) => {
        fn spawn_blocking<T: ::std::marker::Send + 'static>(
            f: impl ::std::ops::FnOnce() -> T + ::std::marker::Send + 'static,
        ) -> impl ::std::future::Future<Output = ::std::result::Result<T, $crate::Panicked>> + 'static
        {
            <$inner as $crate::Executor>::spawn_blocking(f)
        }
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Executor $inner:ty; run_workers $($rest:ident)*) => {
        fn run_workers<F, Fut>(
            config: $crate::WorkersConfig<Self>,
            service: F,
        ) -> ::std::io::Result<()>
        where
            F: ::std::ops::Fn($crate::Worker) -> Fut
                + ::std::clone::Clone + ::std::marker::Send + 'static,
            Fut: ::std::future::Future<Output = ::std::io::Result<()>> + 'static,
        {
            <$inner as $crate::Executor>::run_workers(config.for_runtime(), service)
        }
        $crate::__forward_runtime!(Executor $inner; $($rest)*);
    };
    (Tcp $inner:ty; TcpStream $($rest:ident)*) => {
        type TcpStream = <$inner as $crate::Tcp>::TcpStream;
        $crate::__forward_runtime!(Tcp $inner; $($rest)*);
    };
    (Tcp $inner:ty; TcpListener $($rest:ident)*) => {
        type TcpListener = <$inner as $crate::Tcp>::TcpListener;
        $crate::__forward_runtime!(Tcp $inner; $($rest)*);
    };
    (Tcp $inner:ty; bind $($rest:ident)*) => {
        fn bind(options: $crate::ListenOptions) -> ::std::io::Result<$crate::BoundAddr> {
            <$inner as $crate::Tcp>::bind(options)
        }
        $crate::__forward_runtime!(Tcp $inner; $($rest)*);
    };
    (Tcp $inner:ty; listen $($rest:ident)*) => {
        fn listen(bound: &$crate::BoundAddr) -> ::std::io::Result<Self::TcpListener> {
            <$inner as $crate::Tcp>::listen(bound)
        }
        $crate::__forward_runtime!(Tcp $inner; $($rest)*);
    };
    (Tcp $inner:ty; connect $($rest:ident)*) => {
        async fn connect(options: $crate::ConnectOptions) -> ::std::io::Result<Self::TcpStream> {
            <$inner as $crate::Tcp>::connect(options).await
        }
        $crate::__forward_runtime!(Tcp $inner; $($rest)*);
    };
}
