//! A random trace under one rule, every decision checked by the oracle.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Algorithm;
use tollgate_fuzz::{TraceInput, run_one};

fuzz_target!(|input: TraceInput| run_one(Algorithm::SlidingLog, &input));
