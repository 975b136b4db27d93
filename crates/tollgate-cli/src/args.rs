//! What the command line asks for.

use crate::input::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

pub(crate) const SEED_DEFAULT: u64 = 42;

/// Find the right rate limit: replay traffic against a policy and see who would have been refused.
///
/// Without a command, a demonstration: traffic from a seed goes through the engine on a simulated clock, every
/// decision is checked against an independent count, and a report is written.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) demo: DemoArgs,
}

const EXAMPLES: &str = "\
Examples:
  tollgate                                         the demonstration
  tollgate replay access.log --policy \"100/min burst 20; 5000/d\"
  tollgate replay access.log*.gz --policy 60/min --policy 120/min --html report.html
  tollgate replay access.log --rules tollgate.toml the rules of the HTTP layer, on real traffic
  tollgate suggest access.log                      limits that would leave ordinary clients alone
  tollgate generate --requests 1000000 -o traffic.log.gz

Exit status:
  0  done
  1  a check failed: of the demonstration, or `replay --max-refused`
  2  the arguments are wrong: a bad policy, an unknown format
  3  an input cannot be read, is empty or is not in order, or an output cannot be written";

const REPLAY_EXAMPLES: &str = "\
Examples:
  tollgate replay access.log --policy \"100/min burst 20; 5000/d\" --key ip/64
  zcat old.gz | tollgate replay - --policy \"log 5/15min\" --key ip+path
  tollgate replay app.jsonl --policy 10/s --key user --field time=ts --field user=auth.sub
  tollgate replay calls.csv --policy 1000/h --key key --field key=tenant --json

Lines may be out of order within a log by up to --reorder seconds; what comes later still is decided at the time of
the line before it, and counted; if that is more than one in a hundred, the status is 3. Several logs are merged by time. Lines that cannot be read are counted and shown, and
do not stop the replay. Clients are counted exactly up to 65 536; beyond, the busiest are kept, and the rest estimated.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a policy, or several side by side, over logs
    Replay(ReplayArgs),
    /// Find limits that would never have refused 99 %, 99.9 %, … of the clients
    Suggest(SuggestArgs),
    /// Write traffic from a seed, in any of the formats that can be read
    Generate(GenerateArgs),
    /// Print completions for a shell
    Completions { shell: Shell },
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Seed of the traffic
    #[arg(long, default_value_t = SEED_DEFAULT, value_name = "N")]
    pub(crate) seed: u64,
    /// Requests to make
    #[arg(long, default_value_t = 3_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Where numbers go.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Write a report as a self-contained page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print everything as JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which logs, and how to read them.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Logs, packed with gzip or not; `-` for the standard input
    #[arg(required = true, value_name = "LOG")]
    pub(crate) logs: Vec<PathBuf>,
    /// Format of the lines; found out if not given
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Where a field is found in JSON or CSV: `time=ts`, `ip=request.remote_ip`; time, ip, user, method, path or key
    #[arg(long = "field", value_name = "FIELD=NAME")]
    pub(crate) fields: Vec<String>,
    /// How many seconds a line may be out of order
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub(crate) reorder: u64,
    /// Live keys there is room for in the engine's table
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub(crate) max_keys: usize,
}

#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) input: LogArgs,
    /// A policy, such as "100/min burst 20; sliding 5000/d"; several are compared
    #[arg(short, long = "policy", value_name = "POLICY", required_unless_present_any = ["rules", "parse_only"])]
    pub(crate) policies: Vec<String>,
    /// Rules in a file, as the HTTP layer reads them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["policies", "key", "max_keys"])]
    pub(crate) rules: Option<PathBuf>,
    /// What clients are told apart by: ip, ip/N (IPv6 by its first N bits), user, path, method, key, global; joined by `+`
    #[arg(short, long, default_value = "ip")]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// End with status 1 if more than so many per cent are refused, by any of the policies
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) max_refused: Option<f64>,
    /// Only read and parse: what a replay costs without keys, order and engine
    #[arg(long, conflicts_with_all = ["policies", "rules", "html", "json", "max_refused"])]
    pub(crate) parse_only: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate suggest access.log
  tollgate suggest access.log --key ip --key user --key ip+path --share 99 --share 99.99

For each kind of key and each share of the clients, the tightest `RATE burst N` that would not have refused any of
them: the one that lets the least through in --horizon. Then every one is replayed. The log is read again for that: a
pipe or the standard input is kept in a temporary file, and of a log that grows, what is there at first is read. Up to 100 000 clients are measured for each kind of key; of more, a sample.")]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    pub(crate) input: LogArgs,
    /// Kinds of keys to find limits for
    #[arg(short, long = "key", value_name = "KEY", default_values = ["ip", "ip+path", "user"])]
    pub(crate) keys: Vec<String>,
    /// Shares of the clients, in per cent, that must never be refused
    #[arg(long = "share", value_name = "PERCENT", default_values_t = [99.0, 99.9, 99.99])]
    pub(crate) shares: Vec<f64>,
    /// Over how many seconds a limit should let as little through as possible
    #[arg(long, default_value_t = 3_600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub(crate) horizon: u64,
    /// Print everything as JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// A share of all requests.
fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|error| format!("{error}"))?;
    match (0.0..=100.0).contains(&percent) {
        true => Ok(percent),
        false => Err("it is at least 0 and at most 100".to_owned()),
    }
}

/// What generated traffic is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerateFormat {
    /// Common log format
    Clf,
    /// Common log format with referrer and agent
    Combined,
    /// JSON lines
    Json,
    /// CSV with a heading
    Csv,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate generate --requests 10000000 -o traffic.log
  tollgate generate --format json | tollgate replay - --policy 100/min")]
pub(crate) struct GenerateArgs {
    /// Requests to make
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: u64,
    /// Ordinary clients
    #[arg(long, default_value_t = 30_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: u32,
    /// Seed of the traffic: the same seed gives the same requests everywhere
    #[arg(long, default_value_t = SEED_DEFAULT, value_name = "N")]
    pub(crate) seed: u64,
    /// How many seconds the traffic lasts
    #[arg(long, default_value_t = 3_600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(60..=31_536_000))]
    pub(crate) duration: u64,
    /// Format of the lines; by the name of the output (.json, .csv, else combined) if not given
    #[arg(long, value_enum)]
    pub(crate) format: Option<GenerateFormat>,
    /// Where to write; packed if the name ends with .gz. The standard output if not given
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn reads_what_help_lists() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' '));
        assert_eq!(parsed("tollgate").expect("demo").demo.seed, SEED_DEFAULT);
        assert_eq!(parsed("tollgate --seed=7").expect("demo").demo.seed, 7);
        assert!(matches!(
            parsed("tollgate replay a -p 1/s -p 2/s").expect("replay").command,
            Some(Command::Replay(ReplayArgs { policies, .. })) if policies == ["1/s", "2/s"]
        ));
        for wrong in
            ["tollgate --no-such-flag", "tollgate replay a", "tollgate replay -p 1/s", "tollgate --seed -1"]
        {
            assert_eq!(parsed(wrong).expect_err(wrong).exit_code(), 2);
        }
        for wrong in ["nan", "inf", "-1", "100.1", "x"] {
            let line = format!("tollgate replay a -p 1/s --max-refused={wrong}");
            assert_eq!(parsed(&line).expect_err(wrong).exit_code(), 2);
        }
        assert!(parsed("tollgate replay a --rules r --max-keys 5").is_err());
        assert!(parsed("tollgate replay a --rules r").is_ok());
    }
}
