//! The `tollgate` command. Without arguments it runs the demonstration.

mod args;
mod check;
mod demo;
mod measure;
mod table;
mod traffic;

use args::Command;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let command = match args::parse(arguments) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("tollgate: {message}\nTry `tollgate --help`.");
            return ExitCode::from(2);
        }
    };
    let mut out = io::stdout().lock();
    let done = match command {
        Command::Help => out.write_all(args::HELP.as_bytes()).map(|()| true),
        Command::Version => writeln!(out, "tollgate {}", env!("CARGO_PKG_VERSION")).map(|()| true),
        Command::Demo { seed } => demo::run(seed, &mut out),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever reads has seen enough: `tollgate | head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tollgate: {error}");
            ExitCode::FAILURE
        }
    }
}
