//! What all models share: exploring, stating laws, and showing that a broken law is noticed.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::Instant;
use tollgate::model::{Fault, with_counted_loads, with_fault};
use tollgate::{Clock, Gate, Limiter, ManualHand, WhenFull};

/// How the message of a broken law begins, so that it is not mistaken for a complaint of loom itself.
const BROKEN: &str = "law broken: ";
/// How loom says that a thread goes round in circles.
const ENDLESS: &str = "Model exceeded maximum number of branches";

/// How many preemptions `./test` asks for.
const PREEMPTIONS: usize = 3;

/// Runs `body` in every execution that loom can tell apart, and prints how many there were.
///
/// # Panics
///
/// If a law of the model is broken.
pub fn explore(name: &str, body: impl Fn() + Send + Sync + 'static) {
    explore_within(name, usize::MAX, body);
}

/// The same with at most so many preemptions, for models that more of them would make endless.
///
/// # Panics
///
/// As [`explore`].
pub fn explore_within(name: &str, preemptions_max: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // Keys of several cells take more steps than loom expects of a model that ends.
    model.max_branches = 20_000;
    model.preemption_bound = match model.preemption_bound {
        // Who asks for more than usual is given as many more as that, whatever the model's own bound.
        Some(asked) => Some(asked.min(preemptions_max.saturating_add(asked.saturating_sub(PREEMPTIONS)))),
        None if preemptions_max < usize::MAX => Some(preemptions_max),
        None => None,
    };
    // Not loom's: the count runs on from one execution to the next.
    let executions = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&executions);
    let start = Instant::now();
    model.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{name}: {executions} executions in {:.0?}", start.elapsed());
}

/// Runs `body` twice: as [`explore_within`] does, and with loads that loom tries in every order too. Without that
/// a thread which only loads, because it is refused, is hardly tried against the others at all; with it there
/// are some thirty times as many executions. So each has a bound of its own.
///
/// # Panics
///
/// As [`explore`].
pub fn explore_thoroughly(
    name: &str,
    preemptions_max: [usize; 2],
    body: impl Fn() + Clone + Send + Sync + 'static,
) {
    let [plain, counted] = preemptions_max;
    let thorough = body.clone();
    with_counted_loads(|| explore_within(&format!("{name}, loads in every order"), counted, thorough));
    explore_within(name, plain, body);
}

/// A gate with a clock that stands still until it is moved.
///
/// # Panics
///
/// If the policy is not valid.
pub fn gate(policy: &str) -> (Arc<Gate>, ManualHand) {
    let (clock, hand) = Clock::manual();
    match Gate::with_clock(policy, clock) {
        Ok(gate) => (Arc::new(gate), hand),
        Err(error) => panic!("{error}"),
    }
}

/// A limiter with such a clock, and seeds that place every key where it was the last time.
///
/// # Panics
///
/// If the policy is not valid.
pub fn limiter(policy: &str, max_keys: usize, when_full: WhenFull) -> (Arc<Limiter>, ManualHand) {
    let (clock, hand) = Clock::manual();
    let builder = Limiter::builder().policy(policy).max_keys(max_keys).when_full(when_full);
    match builder.seeds([1, 2, 3, 4]).clock(clock).build() {
        Ok(limiter) => (Arc::new(limiter), hand),
        Err(error) => panic!("{error}"),
    }
}

/// What one thread of a model does.
pub type Job<T> = Box<dyn FnOnce() -> T>;

/// Runs every job on a modelled thread of its own and gives their results in order.
///
/// The last one runs on the calling thread, which saves loom a thread to schedule.
pub fn together<T: 'static>(mut jobs: Vec<Job<T>>) -> Vec<T> {
    let last = jobs.pop();
    let others: Vec<_> = jobs.into_iter().map(loom::thread::spawn).collect();
    let last = last.map(|job| job());
    let join = |thread: loom::thread::JoinHandle<T>| match thread.join() {
        Ok(result) => result,
        Err(panic) => panic::resume_unwind(panic),
    };
    others.into_iter().map(join).chain(last).collect()
}

/// States a law; a model under a fault must end here and nowhere else.
///
/// # Panics
///
/// If the law does not hold.
#[track_caller]
pub fn law(holds: bool, what: impl FnOnce() -> String) {
    assert!(holds, "{BROKEN}{}", what());
}

/// Asserts that `model` notices when `fault` is in force.
///
/// # Panics
///
/// If the model passes, or ends by anything but a broken [`law`]: that nobody waits for ever is one too.
#[track_caller]
pub fn caught(fault: Fault, model: impl FnOnce()) {
    let ended = quietly(|| with_fault(fault, || panic::catch_unwind(AssertUnwindSafe(model))));
    let Err(panic) = ended else { panic!("the model does not notice {fault:?}") };
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    let is_caught = message.starts_with(BROKEN) || message.starts_with(ENDLESS);
    assert!(is_caught, "{fault:?} ended the model by something else: {message}");
    println!("{fault:?} caught: {}", message.lines().next().unwrap_or_default());
}

std::thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `expected` without the report of a panic. Loom runs a model's threads on the thread that called it,
/// so one flag silences them all, and no other test's.
fn quietly<T>(expected: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                report(info);
            }
        }));
    });
    QUIET.set(true);
    let result = expected();
    QUIET.set(false);
    result
}
