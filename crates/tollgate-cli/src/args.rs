//! What the command line asks for.

pub(crate) const SEED_DEFAULT: u64 = 42;

pub(crate) const HELP: &str = "\
tollgate: a lock-free, in-process rate limiter

Usage: tollgate [--seed N]

Runs the demonstration: seeded traffic through the engine on a simulated clock,
every decision checked by brute force, and the time one decision takes.

Options:
      --seed N   seed of the traffic (default 42)
  -h, --help     print this and exit
  -V, --version  print the version and exit

Exit status: 0 when every check holds, 1 when one does not, 2 for bad arguments.
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Demo { seed: u64 },
    Help,
    Version,
}

/// Reads the arguments, without the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.into_iter();
    let mut seed = SEED_DEFAULT;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "-V" | "--version" => return Ok(Command::Version),
            "--seed" => {
                let value = arguments.next().ok_or("`--seed` needs a number")?;
                seed = parse_seed(&value)?;
            }
            other => match other.strip_prefix("--seed=") {
                Some(value) => seed = parse_seed(value)?,
                None => return Err(format!("unknown argument `{other}`")),
            },
        }
    }
    Ok(Command::Demo { seed })
}

fn parse_seed(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("`--seed` takes a whole number from 0 to {}, not `{value}`", u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn reads_what_help_lists() {
        assert_eq!(parsed(""), Ok(Command::Demo { seed: SEED_DEFAULT }));
        assert_eq!(parsed("--seed 7"), Ok(Command::Demo { seed: 7 }));
        assert_eq!(parsed("--seed=7"), Ok(Command::Demo { seed: 7 }));
        assert_eq!(parsed("--help"), Ok(Command::Help));
        assert_eq!(parsed("-V"), Ok(Command::Version));
    }

    #[test]
    fn refuses_the_rest_by_name() {
        for (line, cause) in [
            ("--sed 7", "unknown argument `--sed`"),
            ("demo", "unknown argument `demo`"),
            ("--seed", "`--seed` needs a number"),
            ("--seed -1", "not `-1`"),
            ("--seed=", "not ``"),
        ] {
            let message = parsed(line).expect_err(line);
            assert!(message.contains(cause), "{line}: {message}");
        }
    }
}
