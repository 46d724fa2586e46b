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

    use clap::{Parser, Subcommand};
    use owned_io_comparisons::matrix::{Compare, Options};

    /// Measures servers under loads, as a plan says, in interleaved rounds: prints tables, and keeps
    /// every figure in target/matrix.
    #[derive(Parser)]
    #[command(name = "matrix", version, args_conflicts_with_subcommands = true)]
    struct Arguments {
        #[command(subcommand)]
        command: Option<Command>,
        #[command(flatten)]
        options: Options,
    }

    #[derive(Subcommand)]
    enum Command {
        /// Shows two runs side by side: which of their ratios agree.
        Compare(Compare),
    }

    pub(super) fn main() -> ExitCode {
        let arguments = Arguments::parse();
        let done = match arguments.command {
            Some(Command::Compare(compare)) => compare.run(),
            None => arguments.options.run().map(|folder| {
                eprintln!("everything is in {}", folder.display());
            }),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("matrix: {failure}");
                ExitCode::FAILURE
            }
        }
    }
}
