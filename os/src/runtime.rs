//! The functions of a runtime that are the system's, whatever runtime it is.

/// `now`, `wall_clock`, `fill_random`, `bind` and `spawn_blocking`, for the `impl` of
/// [`Runtime`](owned_io::Runtime) of a backend on the kernel.
#[macro_export]
macro_rules! runtime_functions {
    () => {
        fn now() -> ::std::time::Instant {
            ::std::time::Instant::now()
        }

        fn wall_clock() -> ::std::time::SystemTime {
            ::std::time::SystemTime::now()
        }

        fn fill_random(bytes: &mut [u8]) {
            $crate::fill_random(bytes);
        }

        fn bind(options: ::owned_io::ListenOptions) -> ::std::io::Result<::owned_io::BoundAddr> {
            $crate::listen::bind(options)
        }

        fn spawn_blocking<T: Send + 'static>(
            f: impl FnOnce() -> T + Send + 'static,
        ) -> impl ::std::future::Future<Output = ::std::result::Result<T, ::owned_io::Panicked>> + 'static
        {
            $crate::spawn_blocking(f)
        }
    };
}
