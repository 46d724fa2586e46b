//! The functions of a runtime that are the same on every kernel backend.

/// Expands to the items that are the same on every kernel backend, for the `impl`s of a backend:
/// `Clock::{now, wall_clock}`, `Executor::spawn_blocking`, `Tcp::bind`, and all of [`Random`].
///
/// ```
/// use std::time::Duration;
/// use owned_io::{Clock, Random};
///
/// struct Ready;
///
/// impl Clock for Ready {
///     owned_io_os::runtime_functions!(Clock);
///     async fn sleep(_: Duration) {}
/// }
/// impl Random for Ready {
///     owned_io_os::runtime_functions!(Random);
/// }
/// ```
///
/// [`Clock`]: owned_io::Clock
/// [`Random`]: owned_io::Random
/// [`Executor`]: owned_io::Executor
/// [`Tcp`]: owned_io::Tcp
#[macro_export]
macro_rules! runtime_functions {
    (Clock) => {
        fn now() -> ::std::time::Instant {
            ::std::time::Instant::now()
        }

        fn wall_clock() -> ::std::time::SystemTime {
            ::std::time::SystemTime::now()
        }
    };
    (Random) => {
        fn fill_random(bytes: &mut [u8]) {
            $crate::fill_random(bytes);
        }
    };
    (Executor) => {
        fn spawn_blocking<T: Send + 'static>(
            f: impl FnOnce() -> T + Send + 'static,
        ) -> impl ::std::future::Future<Output = ::std::result::Result<T, ::owned_io::Panicked>> + 'static
        {
            $crate::spawn_blocking(f)
        }
    };
    (Tcp) => {
        fn bind(options: ::owned_io::ListenOptions) -> ::std::io::Result<::owned_io::BoundAddr> {
            $crate::listen::bind(options)
        }
    };
}
