//! A random trace over several keys of a tiny table that denies what it has no room for, each key beside an oracle
//! of its own.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{KeyedInput, run_keyed};

fuzz_target!(|input: KeyedInput| run_keyed(&input));
