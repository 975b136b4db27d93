//! Models of the gate with the clock moving on while a thread is held up between reading it and spending.
//!
//! The clock's hand is not modelled: it moves in the thread that moves it, between two steps of the others.

#[cfg(tollgate_loom)]
mod models {
    use loom_tests::{Job, caught, explore_thoroughly, gate, law, together};
    use std::sync::Arc;
    use std::time::Duration;
    use tollgate::Gate;
    use tollgate::model::Fault;

    const SECOND: Duration = Duration::from_secs(1);
    /// As often as the checker is told to; and where loads are tried in every order, three times.
    const PREEMPTIONS_MAX: [usize; 2] = [usize::MAX, 3];

    /// A request for which only its side effects matter: it may have passed before the clock moved.
    fn held_up(gate: &Arc<Gate>) -> Job<u64> {
        let gate = Arc::clone(gate);
        Box::new(move || {
            let _may_be_early = gate.try_acquire();
            0
        })
    }

    /// One thread asks once. The other moves the clock on and takes what it can get, and afterwards all that
    /// is left is taken. From the move on, no more than the limit passes.
    fn bounded_after_a_move(policy: &'static str, limit: u64, later: Duration) {
        explore_thoroughly(
            &format!("clock moves on {later:?} beside a request, `{policy}`"),
            PREEMPTIONS_MAX,
            move || {
                let (gate, hand) = gate(policy);
                let mover = Arc::clone(&gate);
                let mover: Job<u64> = Box::new(move || {
                    hand.advance(later);
                    (0..limit).map(|_| u64::from(mover.try_acquire().is_allowed())).sum()
                });
                // In this order: the last job runs first, and has read the clock when loom first stops it.
                let mut passed: u64 = together(vec![mover, held_up(&gate)]).into_iter().sum();
                while gate.try_acquire().is_allowed() {
                    passed += 1;
                }
                law(passed <= limit, || format!("{passed} passed at one moment under a limit of {limit}"));
            },
        );
    }

    #[test]
    fn a_request_held_up_for_a_second_stays_in_bounds() {
        for policy in ["2/s", "fixed 2/s", "sliding 2/s", "log 2/s"] {
            bounded_after_a_move(policy, 2, SECOND);
            caught(Fault::LoadThenStore, || bounded_after_a_move(policy, 2, SECOND));
        }
    }

    #[test]
    fn a_request_held_up_for_long_stays_in_bounds() {
        for policy in ["2/s", "fixed 2/s", "sliding 2/s", "log 2/s"] {
            bounded_after_a_move(policy, 2, 10 * SECOND);
            caught(Fault::TrustsOldTime, || bounded_after_a_move(policy, 2, 10 * SECOND));
        }
    }

    /// Two rules: the first admits two a second, the second one in 100 ms. A request that the second
    /// refuses late hands its charge on the first back only after the clock has moved on.
    fn bounded_after_a_late_hand_back(policy: &'static str, later: Duration) {
        explore_thoroughly(&format!("hand-back {later:?} late, `{policy}`"), PREEMPTIONS_MAX, move || {
            let (gate, hand) = gate(policy);
            let (mover, moved) = (Arc::clone(&gate), hand.clone());
            let mover: Job<u64> = Box::new(move || {
                let _makes_the_other_late = mover.try_acquire();
                moved.advance(later);
                u64::from(mover.try_acquire().is_allowed())
            });
            let mut passed: u64 = together(vec![mover, held_up(&gate)]).into_iter().sum();
            for _ in 0..3 {
                hand.advance(Duration::from_millis(100));
                passed += u64::from(gate.try_acquire().is_allowed());
            }
            law(passed <= 2, || format!("{passed} passed within 300 ms under a limit of 2 a second"));
        });
    }

    #[test]
    fn a_late_hand_back_to_a_log_stays_in_bounds() {
        let model = || bounded_after_a_late_hand_back("log 2/s; fixed 1/100ms", SECOND);
        model();
        caught(Fault::LoadThenStore, model);
    }

    #[test]
    fn a_late_hand_back_to_a_token_bucket_stays_in_bounds() {
        let model = || bounded_after_a_late_hand_back("2/s; fixed 1/100ms", SECOND);
        model();
        caught(Fault::LoadThenStore, model);
    }

    #[test]
    fn a_late_hand_back_to_a_fixed_window_stays_in_bounds() {
        let model = || bounded_after_a_late_hand_back("fixed 2/s; fixed 1/100ms", SECOND);
        model();
        caught(Fault::LoadThenStore, model);
    }

    #[test]
    fn a_late_hand_back_to_a_sliding_window_stays_in_bounds() {
        let model = || bounded_after_a_late_hand_back("sliding 2/s; fixed 1/100ms", 2 * SECOND);
        model();
        caught(Fault::LoadThenStore, model);
    }
}
