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
mod lasting;
mod ledger;
mod measure;
mod memory;
mod need;
mod page_file;
mod progress;
mod replay;
mod report;
mod suggest;
mod timeline;
mod traffic;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use failure::Failure;
use lasting::Lasting;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let stdout = io::stdout().lock();
    let done = match &cli.command {
        None => printing(Lasting::new(stdout), |out| demo::run(&cli.demo, out)),
        Some(Command::Replay(args)) => printing(Lasting::new(stdout), |out| replay::run(args, out)),
        Some(Command::Suggest(args)) => printing(Lasting::new(stdout), |out| suggest::run(args, out)),
        Some(Command::Generate(args)) => printing(stdout, |out| generate::run(args, out)),
        Some(Command::Completions { shell }) => printing(stdout, |out| {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "tollgate", &mut text);
            out.write_all(&text)?;
            Ok(failure::DONE)
        }),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        // Whoever reads has seen enough: `tollgate generate | head`.
        Err(Failure::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tollgate: {failure}");
            match failure {
                Failure::Told { status, .. } => ExitCode::from(status),
                Failure::Output(_) => ExitCode::from(failure::INPUT),
            }
        }
    }
}

fn printing<W: Write>(
    out: W,
    run: impl FnOnce(&mut BufWriter<W>) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    let mut out = BufWriter::new(out);
    let status = run(&mut out)?;
    out.flush()?;
    Ok(status)
}
