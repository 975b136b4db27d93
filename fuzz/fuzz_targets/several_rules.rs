//! A random trace under up to four rules, every decision checked by the oracle.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{SeveralInput, run_several};

fuzz_target!(|input: SeveralInput| run_several(&input));
