//! The Lua scripts: each is the common part and its own, known to the server by the SHA-1 of both.

use ::redis::{Cmd, Script};

/// What the probe runs: by itself, and always with its text.
pub(super) const PROBE: &str = include_str!("scripts/probe.lua");

#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Source,
    pub(super) refund: Source,
    pub(super) once: Source,
    pub(super) lease: Source,
}

/// One script.
#[derive(Debug)]
pub(super) struct Source {
    code: &'static str,
    sha1: String,
}

impl Source {
    fn new(code: &'static str) -> Self {
        Self { code, sha1: Script::new(code).get_hash().to_owned() }
    }

    /// The command that runs the script as the server knows it, or with all of its text.
    pub(super) fn command(&self, known: bool, call: &Call) -> Cmd {
        let mut command = Cmd::with_capacity(3 + call.keys.len() + call.args.len(), 128 + call.bytes());
        if known {
            command.arg("EVALSHA").arg(&self.sha1);
        } else {
            command.arg("EVAL").arg(self.code);
        }
        command.arg(call.keys.len());
        for part in call.keys.iter().chain(&call.args) {
            command.arg(part.as_str());
        }
        command
    }
}

/// What a script is called with.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<String>,
}

impl Call {
    fn bytes(&self) -> usize {
        self.keys.iter().chain(&self.args).map(|part| part.len() + 16).sum()
    }
}

impl Default for Scripts {
    fn default() -> Self {
        macro_rules! script {
            ($name:literal) => {
                Source::new(concat!(
                    include_str!("scripts/common.lua"),
                    include_str!(concat!("scripts/", $name, ".lua"))
                ))
            };
        }
        Self {
            acquire: script!("acquire"),
            refund: script!("refund"),
            once: script!("once"),
            lease: script!("lease"),
        }
    }
}
