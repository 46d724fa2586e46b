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

    use clap::Parser;
    use owned_io_comparisons::load::CommandLine;

    pub(super) fn main() -> ExitCode {
        let command_line = match CommandLine::try_parse() {
            Ok(command_line) => command_line,
            Err(usage) => {
                // There is nobody else to tell when this cannot be printed.
                let _ = usage.print();
                return if usage.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            }
        };
        match command_line.run() {
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
