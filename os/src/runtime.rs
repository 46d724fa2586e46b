//! The functions of a runtime that are the same on every kernel backend.

/// Expands to the items that are the same on every kernel backend, for the `impl`s of a backend:
/// `Clock::{now, wall_clock}`, `Executor::spawn_blocking`, `Tcp::bind`, all of [`Random`], all of [`HandOver`] over a
/// [`Listener`](crate::Listener), and all of [`Files`] except the type of its files, which is a
/// [`File`](crate::file::File).
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
/// [`HandOver`]: owned_io::HandOver
/// [`Files`]: owned_io::Files
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
    (HandOver) => {
        type Detached = ::std::os::fd::OwnedFd;

        async fn accept_detached(
            listener: &mut Self::TcpListener,
        ) -> ::std::io::Result<(Self::Detached, ::std::net::SocketAddr)> {
            listener.accept_detached().await
        }

        fn adopt(detached: Self::Detached) -> ::std::io::Result<Self::TcpStream> {
            $crate::adopt(detached)
        }
    };
    (Files) => {
        async fn open(
            path: &::std::path::Path,
            mode: ::owned_io::OpenMode,
        ) -> ::std::io::Result<Self::File> {
            $crate::file::open(path, mode).await
        }

        async fn list_dir(
            path: &::std::path::Path,
        ) -> ::std::io::Result<::std::vec::Vec<::owned_io::DirEntry>> {
            $crate::file::list_dir(path).await
        }

        async fn create_dir_all(path: &::std::path::Path) -> ::std::io::Result<()> {
            $crate::file::create_dir_all(path).await
        }

        async fn rename(
            from: &::std::path::Path,
            to: &::std::path::Path,
        ) -> ::std::io::Result<()> {
            $crate::file::rename(from, to).await
        }

        async fn remove_file(path: &::std::path::Path) -> ::std::io::Result<()> {
            $crate::file::remove_file(path).await
        }

        async fn remove_dir(path: &::std::path::Path) -> ::std::io::Result<()> {
            $crate::file::remove_dir(path).await
        }

        async fn sync_dir(path: &::std::path::Path) -> ::std::io::Result<()> {
            $crate::file::sync_dir(path).await
        }
    };
}
