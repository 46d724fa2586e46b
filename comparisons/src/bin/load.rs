//! `load`: drives a server, checks every answer, says how long the answers took.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("load: it needs Linux (epoll, timerfd and /proc)");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod program {
    use std::process::ExitCode;

    use clap::{Parser, Subcommand};
    use owned_io_comparisons::Failure;
    use owned_io_comparisons::load::{
        Report, Steady, arrivals, burst, churn, deflate, echo, fetch, hold, limit, sink, source,
    };

    /// A load generator on one thread: it drives a server, checks every byte that comes back, and says
    /// how long it took. It exits with 2 when an answer was wrong, with 1 when there was no run.
    #[derive(Parser)]
    #[command(name = "load", version)]
    struct Arguments {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(Subcommand)]
    enum Command {
        /// Sends messages and expects each of them back.
        Echo(Steady),
        /// Opens connections at a rate while others are busy: how long until the first echo.
        Arrivals(arrivals::Options),
        /// Opens connections all at once: how long until each is connected, and until its first echo.
        Burst(burst::Options),
        /// Opens connections, each of which closes after an echo: how fast they come and go.
        Churn(churn::Options),
        /// Sends a compressed message over WebSocket and expects it back, compressed.
        Deflate(Steady),
        /// Asks for messages, one at a time, and checks what comes.
        Fetch(Steady),
        /// Opens connections and leaves them idle: what they cost the server.
        Hold(hold::Options),
        /// Opens more connections than the server has descriptors for: what it does then.
        Limit(limit::Options),
        /// Sends messages and expects the length of each.
        Sink(Steady),
        /// Asks for messages and checks what comes.
        Source(source::Options),
    }

    impl Command {
        fn run(self) -> Result<Report, Failure> {
            match self {
                Self::Echo(options) => echo::run(&options),
                Self::Arrivals(options) => options.run(),
                Self::Burst(options) => options.run(),
                Self::Churn(options) => options.run(),
                Self::Deflate(options) => deflate::run(&options),
                Self::Fetch(options) => fetch::run(&options),
                Self::Hold(options) => options.run(),
                Self::Limit(options) => options.run(),
                Self::Sink(options) => sink::run(&options),
                Self::Source(options) => options.run(),
            }
        }
    }

    pub(super) fn main() -> ExitCode {
        let arguments = match Arguments::try_parse() {
            Ok(arguments) => arguments,
            Err(usage) => {
                // There is nobody else to tell when this cannot be printed.
                let _ = usage.print();
                return if usage.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            }
        };
        match arguments.command.run() {
            Ok(report) => match report.wrong_answer() {
                None => ExitCode::SUCCESS,
                Some(sentence) => {
                    eprintln!("load: {sentence}");
                    ExitCode::from(2)
                }
            },
            Err(failure) => {
                eprintln!("load: {failure}");
                ExitCode::FAILURE
            }
        }
    }
}
