//! The `tollgate` command: replay traffic against a policy, find the right limit, see it.

mod args;
mod check;
mod contender;
mod demo;
mod distinct;
mod failure;
mod generate;
mod input;
mod key;
mod ledger;
mod measure;
mod memory;
mod need;
mod progress;
mod replay;
mod report;
mod suggest;
mod timeline;
mod traffic;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use failure::Failure;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = match &cli.command {
        None => demo::run(&cli.demo, &mut out),
        Some(Command::Replay(args)) => replay::run(args, &mut out),
        Some(Command::Suggest(args)) => suggest::run(args, &mut out),
        Some(Command::Generate(args)) => generate::run(args, &mut out),
        Some(Command::Completions { shell }) => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "tollgate", &mut text);
            out.write_all(&text).map(|()| true).map_err(Failure::from)
        }
    };
    match done.and_then(|well| out.flush().map(|()| well).map_err(Failure::from)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever reads has seen enough: `tollgate | head`.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            // What is left in the buffer has nowhere to go.
            std::mem::forget(out);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("tollgate: {failure}");
            match failure {
                Failure::Told { status, .. } => ExitCode::from(status),
                Failure::Output(_) => ExitCode::from(failure::INPUT),
            }
        }
    }
}
