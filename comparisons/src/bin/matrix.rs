//! `matrix`: servers × workloads, in pairs and in interleaved rounds.

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
    use owned_io_comparisons::matrix::{Compare, Options, Report};

    /// Measures servers under loads, as a plan says, in pairs and in interleaved rounds: prints a table, and keeps every
    /// figure in target/matrix.
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
        /// Writes report.html and report.md of existing results.
        Report(Report),
    }

    pub(super) fn main() -> ExitCode {
        let arguments = Arguments::parse();
        let done = match arguments.command {
            Some(Command::Compare(compare)) => compare.run(),
            Some(Command::Report(report)) => report.run(),
            None => arguments.options.run(),
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
