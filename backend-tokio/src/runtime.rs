//! [`Tokio`]: the runtime.

use std::future::Future;
use std::io;
use std::time::Duration;

use owned_io::backend::run_main;
use owned_io::{BoundAddr, Clock, ConnectOptions, Executor, Files, HandOver, Random, Tcp};
use owned_io_os as os;
use tokio::runtime::{Builder, LocalOptions};

use crate::file::TokioFile;
use crate::socket::{TokioListener, TokioStream};

/// tokio's current-thread runtime.
#[derive(Clone, Copy, Debug)]
pub struct Tokio;

/// How to set the runtime up. There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {}

impl Clock for Tokio {
    os::runtime_functions!(Clock);

    async fn sleep(duration: Duration) {
        // tokio's sleep of zero is ready at once.
        if duration.is_zero() {
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(duration).await;
        }
    }
}

impl Random for Tokio {
    os::runtime_functions!(Random);
}

impl Executor for Tokio {
    const NAME: &'static str = "tokio";
    type Config = Config;

    fn tuned() -> Config {
        Config::default()
    }

    fn block_on<F: Future>(_config: Config, future: F) -> io::Result<F::Output> {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_io().enable_time().build_local(LocalOptions::default())?;
        let output = runtime.block_on(run_main::<Self, _>(future));
        drop(runtime);
        Ok(output.unwrap_or_else(|panicked| panicked.resume()))
    }

    fn spawn_detached(future: impl Future<Output = ()> + 'static) {
        drop(tokio::task::spawn_local(future));
    }

    os::runtime_functions!(Executor);
}

impl Tcp for Tokio {
    type TcpStream = TokioStream;
    type TcpListener = TokioListener;

    fn listen(bound: &BoundAddr) -> io::Result<Self::TcpListener> {
        os::Listener::new(bound)
    }

    async fn connect(options: ConnectOptions) -> io::Result<Self::TcpStream> {
        os::connect::connect(options).await
    }

    os::runtime_functions!(Tcp);
}

impl HandOver for Tokio {
    os::runtime_functions!(HandOver);
}

impl Files for Tokio {
    type File = TokioFile;

    os::runtime_functions!(Files);
}
