//! The table of cases, and what each aims at.

use crate::peers::Traffic::{self, Admit, Refuse};

/// Which keys are asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    /// A limiter without keys.
    None,
    /// Always the same.
    Hot,
    /// Drawn evenly from so many.
    Uniform(u64),
    /// Drawn from so many, the rank `r` as often as `1 / r^0.99`.
    Zipf(u64),
    /// The same, as texts of 20 bytes.
    Texts(u64),
    /// So many that were never seen before, once each.
    New(u64),
}

impl Keys {
    /// How many there are.
    pub fn distinct(self) -> u64 {
        match self {
            Self::None | Self::Hot => 1,
            Self::Uniform(keys) | Self::Zipf(keys) | Self::Texts(keys) | Self::New(keys) => keys,
        }
    }
}

/// Ratios over governor's default to aim at; 0 where none was set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Targets {
    pub precise: f64,
    pub coarse: f64,
    pub batch: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub keys: Keys,
    pub traffic: Traffic,
    pub threads: usize,
    pub targets: Targets,
    /// Shown in a chart.
    pub is_charted: bool,
}

impl Case {
    /// What it is called in a table.
    pub fn title(&self) -> String {
        let outcome = if self.traffic == Admit { "admit" } else { "refuse" };
        let threads =
            if self.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", self.threads) };
        format!("{}, {outcome}, {threads}", self.name)
    }

    const fn charted(self) -> Self {
        Self { is_charted: true, ..self }
    }

    const fn of(self, precise: f64, coarse: f64, batch: f64) -> Self {
        Self { targets: Targets { precise, coarse, batch }, ..self }
    }
}

const fn case(name: &'static str, keys: Keys, traffic: Traffic, threads: usize) -> Case {
    let targets = Targets { precise: 0.0, coarse: 0.0, batch: 0.0 };
    Case { name, keys, traffic, threads, targets, is_charted: false }
}

const M: u64 = 1_000_000;
const UNIFORM: Keys = Keys::Uniform(M);
const ZIPF: Keys = Keys::Zipf(M);

/// All of them. Neighbours with as many keys and the same traffic are measured on the same limiters.
pub const CASES: &[Case] = &[
    case("no key", Keys::None, Admit, 1).charted(),
    case("no key", Keys::None, Admit, 2),
    case("no key", Keys::None, Refuse, 1),
    case("hot key", Keys::Hot, Admit, 1).of(2.4, 6.0, 0.0).charted(),
    case("hot key", Keys::Hot, Admit, 2).of(2.4, 5.0, 0.0).charted(),
    case("hot key", Keys::Hot, Refuse, 1).of(2.1, 9.0, 0.0),
    case("hot key", Keys::Hot, Refuse, 2).of(5.0, 12.0, 0.0).charted(),
    case("1 k keys", Keys::Uniform(1_000), Admit, 1).of(2.2, 3.3, 0.0),
    case("1 k keys", Keys::Uniform(1_000), Admit, 2),
    case("1 k keys", Keys::Uniform(1_000), Refuse, 1).of(2.1, 3.6, 0.0),
    case("1 k keys", Keys::Uniform(1_000), Refuse, 2),
    case("1 M uniform", UNIFORM, Admit, 1).of(2.8, 4.5, 9.0).charted(),
    case("1 M uniform", UNIFORM, Admit, 2).of(2.8, 4.5, 9.0).charted(),
    case("1 M Zipf", ZIPF, Admit, 1).of(2.8, 4.0, 0.0),
    case("1 M Zipf", ZIPF, Admit, 2).of(2.8, 4.0, 0.0).charted(),
    case("1 M uniform", UNIFORM, Refuse, 1).of(4.0, 5.0, 0.0),
    case("1 M uniform", UNIFORM, Refuse, 2).of(4.0, 5.0, 0.0),
    case("1 M Zipf", ZIPF, Refuse, 1),
    case("1 M Zipf", ZIPF, Refuse, 2),
    case("10 M uniform", Keys::Uniform(10 * M), Admit, 1).of(2.5, 6.0, 12.0).charted(),
    case("100 k strings, Zipf", Keys::Texts(100_000), Admit, 1).of(2.2, 0.0, 0.0).charted(),
    case("never seen", Keys::New(5 * M), Refuse, 1).of(2.0, 0.0, 0.0).charted(),
];

/// Beyond these cases: bytes of memory that a live key may take.
pub const BYTES_A_KEY: f64 = 24.0;
/// How long any call may take: filling, full, or while others clean up.
pub const STALL_NS: f64 = 50_000.0;
/// What a gate may take, as a multiple of reading the clock alone, and with the coarse clock.
pub const GATE_RATIO: f64 = 1.15;
pub const COARSE_GATE_NS: f64 = 3.0;
/// The ratio over governor with ahash that is to hold in every case.
pub const OVER_AHASH: f64 = 1.4;
/// How much more two threads are to do than one where nothing is written.
pub const TWO_OVER_ONE: f64 = 1.9;
