//! Models of tollgate's lock-free parts, run by the model checker loom.
//!
//! The models use the same source as everybody else: `--cfg tollgate_loom` swaps the atomics in
//! `src/sync.rs` for loom's, which try every interleaving and every value that the memory orderings allow
//! a load to return.
//!
//! ```text
//! RUSTFLAGS="--cfg tollgate_loom" CARGO_TARGET_DIR=target/loom LOOM_MAX_PREEMPTIONS=3 \
//!     cargo test -p loom-tests --release
//! ```
//!
//! * Without the cfg there is nothing to model and no test: `./test` checks that the models ran.
//! * A target directory of its own keeps the flag from rebuilding everything else.
//! * `LOOM_MAX_PREEMPTIONS` bounds the search. Two or three find nearly all mistakes; without it the models
//!   of three threads take minutes.
//! * `-- --nocapture --test-threads=1` shows how many executions each model took.
//! * `LOOM_LOG=trace LOOM_LOCATION=1` with the name of one test shows the execution that broke a law.
//!
//! Every model is also run with a rule of the algorithm broken on purpose (`tollgate::model::Fault`), and
//! that run must be `caught`: a model that passes on broken code proves nothing.
//!
//! What loom does not show: it never lets a weak compare-exchange fail spuriously, and it takes `SeqCst`
//! accesses for `AcqRel`. Where the table relies on their order, models have a fence (`in_total_order` in
//! `src/sync.rs`).

#[cfg(tollgate_loom)]
mod checker;
#[cfg(tollgate_loom)]
mod scene;

#[cfg(tollgate_loom)]
pub use checker::{Job, caught, explore, explore_thoroughly, explore_within, gate, law, limiter, together};
#[cfg(tollgate_loom)]
pub use scene::{Act, After, Cast, KEYS, Scene};
