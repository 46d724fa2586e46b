//! The client that a fuzzing server of the Autobahn test suite tests. It asks how many cases there are, echoes every
//! message in each of them, and asks for the reports.

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

    use owned_io::{ConnectOptions, Executor, MemoryBudget, Pool, PoolConfig, Runtime};
    use owned_io_compio::Compio;
    use owned_io_glommio::Glommio;
    use owned_io_monoio::Monoio;
    use owned_io_tokio::Tokio;
    use owned_io_tokio_uring::TokioUring;
    use owned_io_tungstenite::{self as bridge, BufferGrowth};
    use owned_io_websocket::deflate::Deflate;
    use owned_io_websocket::handshake::Offer;
    use owned_io_websocket::stream::{self, Buffers, Message};
    use owned_io_websocket::{AnyIncoming, AnyOutgoing, Config};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    const USAGE: &str = "usage: owned-io-autobahn RUNTIME ENGINE ADDR AGENT off|shared|takeover";

    /// The most bytes of a message of the suite.
    const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

    /// A message is queued with its header.
    const QUEUE_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

    /// The received message, its masked copy in the queue, and what either buffer has to spare.
    const MEMORY_BYTES_MAX: usize = 4 * MESSAGE_BYTES_MAX;

    pub(super) fn main() -> ExitCode {
        let Err(error) = run() else { return ExitCode::SUCCESS };
        eprintln!("owned-io-autobahn: {error}");
        ExitCode::FAILURE
    }

    fn run() -> Result<()> {
        let arguments: Vec<_> = env::args().skip(1).collect();
        let [runtime, engine, addr, agent, deflate] = &arguments[..] else {
            return Err(USAGE.into());
        };
        let (growth, deflate) = (growth(engine)?, compression(deflate)?);
        let tested = Tested { server: addr.parse()?, agent, growth, deflate };
        match runtime.as_str() {
            Tokio::NAME => run_on::<Tokio>(&tested),
            TokioUring::NAME => run_on::<TokioUring>(&tested),
            Compio::NAME => run_on::<Compio>(&tested),
            Monoio::NAME => run_on::<Monoio>(&tested),
            Glommio::NAME => run_on::<Glommio>(&tested),
            _ => Err(format!("there is no runtime {runtime}").into()),
        }
    }

    /// The buffers of a bridge; none for the native engine.
    fn growth(engine: &str) -> Result<Option<BufferGrowth>> {
        Ok(match engine {
            "native" => None,
            "tungstenite-fixed" => Some(BufferGrowth::FIXED),
            "tungstenite-linear" => Some(BufferGrowth::LINEAR),
            "tungstenite-exponential" => Some(BufferGrowth::EXPONENTIAL),
            _ => return Err(format!("there is no engine {engine}").into()),
        })
    }

    /// The settings of compression; none without it.
    fn compression(deflate: &str) -> Result<Option<Deflate>> {
        let mut settings = Deflate::default();
        match deflate {
            "off" => return Ok(None),
            "shared" => {}
            "takeover" => (settings.send_takeover, settings.receive_takeover) = (true, true),
            _ => return Err(USAGE.into()),
        }
        settings.message_bytes_min = 0; // compress every message
        Ok(Some(settings))
    }

    /// The suite's server, our agent name, and the engine's settings.
    struct Tested<'a> {
        server: SocketAddr,
        agent: &'a str,
        growth: Option<BufferGrowth>,
        deflate: Option<Deflate>,
    }

    fn run_on<R: Runtime>(tested: &Tested<'_>) -> Result<()> {
        R::block_on(R::Config::default(), run_cases::<R>(tested))?
    }

    async fn run_cases<R: Runtime>(tested: &Tested<'_>) -> Result<()> {
        let agent = tested.agent;
        let buffers =
            Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(MEMORY_BYTES_MAX));
        for case in 1..=count_cases::<R>(tested, &buffers).await? {
            let path = format!("/runCase?case={case}&agent={agent}");
            // Many cases make the connection fail. The server judges whether it failed correctly.
            let ended = match tested.growth {
                None => {
                    let socket = open::<R>(tested, &path, &buffers).await?;
                    echo(socket.incoming, socket.outgoing).await
                }
                Some(growth) => {
                    let socket = open_bridged::<R>(tested, &path, &buffers, growth).await?;
                    echo(socket.incoming, socket.outgoing).await
                }
            };
            if let Err(error) = ended {
                println!("connection {case}: {error}");
            }
        }
        let path = format!("/updateReports?agent={agent}");
        let mut socket = open::<R>(tested, &path, &buffers).await?;
        let _ = socket.incoming.receive().await; // the server may end as soon as the reports are written
        Ok(())
    }

    async fn count_cases<R: Runtime>(tested: &Tested<'_>, buffers: &Buffers) -> Result<u32> {
        let mut socket = open::<R>(tested, "/getCaseCount", buffers).await?;
        let Some(Message::Text(count)) = socket.incoming.receive().await? else {
            return Err("the server does not say how many cases there are".into());
        };
        let count = count.parse()?;
        while socket.incoming.receive().await?.is_some() {}
        Ok(count)
    }

    async fn open<R: Runtime>(
        tested: &Tested<'_>,
        path: &str,
        buffers: &Buffers,
    ) -> Result<stream::WebSocket<R::TcpStream>> {
        let stream = R::connect(ConnectOptions::new(tested.server)).await?;
        let host = &tested.server.to_string();
        let offer = Offer { host, path, deflate: tested.deflate, ..Offer::default() };
        let (socket, _protocol) =
            stream::connect::<R, _>(stream, buffers, config(), &offer).await?;
        Ok(socket)
    }

    /// The same over tungstenite.
    async fn open_bridged<R: Runtime>(
        tested: &Tested<'_>,
        path: &str,
        buffers: &Buffers,
        growth: BufferGrowth,
    ) -> Result<bridge::WebSocket<R::TcpStream>> {
        let stream = R::connect(ConnectOptions::new(tested.server)).await?;
        let host = &tested.server.to_string();
        let offer = Offer { host, path, ..Offer::default() };
        let (socket, _protocol) =
            bridge::connect::<R, _>(stream, buffers, config(), growth, &offer).await?;
        Ok(socket)
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.engine.queue_bytes_max = QUEUE_BYTES_MAX;
        config
    }

    async fn echo(
        mut incoming: impl AnyIncoming,
        mut outgoing: impl AnyOutgoing,
    ) -> std::result::Result<(), stream::Error> {
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
