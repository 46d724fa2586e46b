//! `stalls`: the stall lab. Each kind of stall on each runtime, and what the detector says of it.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("stalls: it needs Linux (io_uring, epoll and /proc)");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod program {
    use std::process::ExitCode;

    use clap::Parser;
    use owned_io_comparisons::stalls::Options;

    /// Makes servers stall, each kind of stall on each runtime, and compares what the stall detector says with the truth:
    /// prints a table, and keeps all of it in target/stalls.
    #[derive(Parser)]
    #[command(name = "stalls", version)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    pub(super) fn main() -> ExitCode {
        match Arguments::parse().options.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("stalls: {failure}");
                ExitCode::FAILURE
            }
        }
    }
}
