//! `matrix`: servers × workloads, in interleaved rounds.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("matrix: it needs Linux (io_uring, epoll and /proc)");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod program {
    use std::process::ExitCode;

    use clap::Parser;
    use owned_io_comparisons::matrix::Options;

    /// Measures servers under loads, as a plan says, in interleaved rounds: prints tables, and keeps
    /// every figure in target/matrix.
    #[derive(Parser)]
    #[command(name = "matrix", version)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    pub(super) fn main() -> ExitCode {
        match Arguments::parse().options.run() {
            Ok(folder) => {
                eprintln!("everything is in {}", folder.display());
                ExitCode::SUCCESS
            }
            Err(failure) => {
                eprintln!("matrix: {failure}");
                ExitCode::FAILURE
            }
        }
    }
}
