//! The client that a fuzzing server of the Autobahn test suite tests: it asks how many cases there
//! are, echoes in each of them whatever it is sent, and asks for the reports.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("owned-io-autobahn: it needs Linux, as the runtimes do");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod program {
    use std::env;
    use std::error::Error;
    use std::net::SocketAddr;
    use std::process::ExitCode;

    use owned_io::{ConnectOptions, Pool, PoolConfig, Runtime};
    use owned_io_compio::Compio;
    use owned_io_glommio::Glommio;
    use owned_io_monoio::Monoio;
    use owned_io_tokio::Tokio;
    use owned_io_tokio_uring::TokioUring;
    use owned_io_websocket::Config;
    use owned_io_websocket::handshake::Offer;
    use owned_io_websocket::stream::{self, Buffers, Message, WebSocket, connect};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    const USAGE: &str = "usage: owned-io-autobahn RUNTIME ADDR AGENT";

    /// The longest message of the suite is of 16 MiB, and it is queued with its header.
    const QUEUE_BYTES_MAX: usize = 32 * 1024 * 1024;

    pub(super) fn main() -> ExitCode {
        let Err(error) = run() else { return ExitCode::SUCCESS };
        eprintln!("owned-io-autobahn: {}", in_full(&*error));
        ExitCode::FAILURE
    }

    /// An error and its causes.
    fn in_full(error: &dyn Error) -> String {
        let cause = error.source().map(|cause| format!(": {}", in_full(cause)));
        format!("{error}{}", cause.unwrap_or_default())
    }

    fn run() -> Result<()> {
        let arguments: Vec<_> = env::args().skip(1).collect();
        let [runtime, addr, agent] = &arguments[..] else { return Err(USAGE.into()) };
        let addr = addr.parse()?;
        match runtime.as_str() {
            Tokio::NAME => run_on::<Tokio>(addr, agent),
            TokioUring::NAME => run_on::<TokioUring>(addr, agent),
            Compio::NAME => run_on::<Compio>(addr, agent),
            Monoio::NAME => run_on::<Monoio>(addr, agent),
            Glommio::NAME => run_on::<Glommio>(addr, agent),
            _ => Err(format!("there is no runtime {runtime}").into()),
        }
    }

    fn run_on<R: Runtime>(server: SocketAddr, agent: &str) -> Result<()> {
        R::block_on(R::Config::default(), be_tested::<R>(server, agent))?
    }

    async fn be_tested<R: Runtime>(server: SocketAddr, agent: &str) -> Result<()> {
        let buffers = Buffers::new(Pool::new(PoolConfig::default()), QUEUE_BYTES_MAX);
        for case in 1..=count_cases::<R>(server, &buffers).await? {
            let path = format!("/runCase?case={case}&agent={agent}");
            let socket = open::<R>(server, &path, &buffers).await?;
            // Many cases are there to make the connection fail: whether it did so as it should is
            // the server's to judge.
            if let Err(error) = echo(socket).await {
                println!("connection {case}: {}", in_full(&error));
            }
        }
        let path = format!("/updateReports?agent={agent}");
        let mut socket = open::<R>(server, &path, &buffers).await?;
        let _ = socket.incoming.receive().await; // it may end itself as soon as they are written
        Ok(())
    }

    async fn count_cases<R: Runtime>(server: SocketAddr, buffers: &Buffers) -> Result<u32> {
        let mut socket = open::<R>(server, "/getCaseCount", buffers).await?;
        let Some(Message::Text(count)) = socket.incoming.receive().await? else {
            return Err("the server does not say how many cases there are".into());
        };
        let count = count.parse()?;
        while socket.incoming.receive().await?.is_some() {}
        Ok(count)
    }

    async fn open<R: Runtime>(
        server: SocketAddr,
        path: &str,
        buffers: &Buffers,
    ) -> Result<WebSocket<R::TcpStream>> {
        let stream = R::connect(ConnectOptions::new(server)).await?;
        let mut config = Config::default();
        config.queue_bytes_max = QUEUE_BYTES_MAX;
        let host = &server.to_string();
        let offer = Offer { host, path, ..Offer::default() };
        let (socket, _protocol) = connect::<R, _>(stream, buffers, config, &offer).await?;
        Ok(socket)
    }

    async fn echo(
        socket: WebSocket<impl owned_io::ByteStream>,
    ) -> std::result::Result<(), stream::Error> {
        let WebSocket { mut incoming, mut outgoing } = socket;
        while let Some(message) = incoming.receive().await? {
            outgoing.write(message)?;
            while let Some(message) = incoming.try_receive() {
                outgoing.write(message)?;
            }
            outgoing.flush().await?;
        }
        Ok(())
    }
}
