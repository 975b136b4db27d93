//! Models of the gate with the clock standing still: the admission bound, costs above one, several rules,
//! refund and reset. Each is also run on broken code, and must notice.

#[cfg(tollgate_loom)]
mod models {
    use loom_tests::{Job, caught, explore_thoroughly, gate, law, together};
    use std::sync::Arc;
    use std::time::Duration;
    use tollgate::model::Fault;
    use tollgate::{Gate, ManualHand};

    /// A gate as the threads of a model find it.
    #[derive(Clone, Copy)]
    struct Scene {
        policy: &'static str,
        /// What was taken at the clock's zero, and how far the clock has moved on since.
        taken: u64,
        later: Duration,
        /// What is left to take.
        room: u64,
    }

    impl Scene {
        const fn fresh(policy: &'static str, room: u64) -> Self {
            Self { policy, taken: 0, later: Duration::ZERO, room }
        }

        fn set(self) -> (Arc<Gate>, ManualHand) {
            let (gate, hand) = gate(self.policy);
            law(gate.try_acquire_n(self.taken).is_allowed(), || format!("`{}` cannot be set", self.policy));
            hand.advance(self.later);
            (gate, hand)
        }
    }

    const HOUR: Duration = Duration::from_secs(3_600);
    const HOUR_AND_A_HALF: Duration = Duration::from_secs(5_400);

    const TOKEN_BUCKET: [Scene; 2] = [
        Scene::fresh("1/h burst 2", 2),
        Scene { policy: "1/h burst 3", taken: 3, later: HOUR_AND_A_HALF, room: 1 },
    ];
    const FIXED_WINDOW: [Scene; 2] =
        [Scene::fresh("fixed 2/h", 2), Scene { policy: "fixed 2/h", taken: 2, later: HOUR, room: 2 }];
    // Half of the two that were taken in the previous window still counts.
    const SLIDING_WINDOW: [Scene; 2] = [
        Scene::fresh("sliding 2/h", 2),
        Scene { policy: "sliding 3/h", taken: 2, later: HOUR_AND_A_HALF, room: 2 },
    ];
    const SLIDING_LOG: [Scene; 3] = [
        Scene::fresh("log 2/h", 2),
        Scene { policy: "log 2/h", taken: 1, later: Duration::from_secs(1), room: 1 },
        Scene { policy: "log 2/h", taken: 2, later: HOUR, room: 2 },
    ];

    /// How often a thread may be interrupted: as often as the checker is told to; and where loads are tried in
    /// every order, as often as stays within seconds. A log has a word for each request, and loads them all.
    fn preemptions_max(policy: &str, threads: usize) -> [usize; 2] {
        let counted = match threads {
            0..=2 => 3,
            _ if policy.contains("log") => 0,
            _ => 2,
        };
        [usize::MAX, counted]
    }

    fn acquire(gate: &Arc<Gate>, cost: u64, times: u64) -> Job<u64> {
        let gate = Arc::clone(gate);
        Box::new(move || {
            (0..times).map(|_| if gate.try_acquire_n(cost).is_allowed() { cost } else { 0 }).sum()
        })
    }

    fn refund(gate: &Arc<Gate>, cost: u64) -> Job<u64> {
        let gate = Arc::clone(gate);
        Box::new(move || {
            gate.refund(cost);
            0
        })
    }

    fn reset(gate: &Arc<Gate>) -> Job<u64> {
        let gate = Arc::clone(gate);
        Box::new(move || {
            gate.reset();
            0
        })
    }

    /// What a gate still admits, found by taking it; and what it said it would.
    fn drain(gate: &Gate) -> u64 {
        let promised = gate.peek().remaining();
        let mut left = 0;
        while gate.try_acquire().is_allowed() {
            left += 1;
        }
        law(left == promised, || format!("{left} left where {promised} were promised"));
        left
    }

    /// Requests of one each, more than there is room for: exactly the room is admitted.
    fn admits_the_room(scene: Scene, threads: usize, times: u64) {
        explore_thoroughly(
            &format!("admission, {threads} threads x {times}, {scene:?}"),
            preemptions_max(scene.policy, threads),
            move || {
                let (gate, _hand) = scene.set();
                let admitted: u64 =
                    together((0..threads).map(|_| acquire(&gate, 1, times)).collect()).into_iter().sum();
                law(admitted == scene.room, || {
                    format!("{admitted} admitted, there was room for {}", scene.room)
                });
                law(drain(&gate) == 0, || "more left after all was taken".to_owned());
            },
        );
    }

    fn admission(scenes: &[Scene]) {
        for &scene in scenes {
            for (threads, times) in [(2, 2), (3, 1)] {
                admits_the_room(scene, threads, times);
                caught(Fault::LoadThenStore, || admits_the_room(scene, threads, times));
            }
        }
    }

    #[test]
    fn token_bucket_admits_its_burst() {
        admission(&TOKEN_BUCKET);
    }

    #[test]
    fn fixed_window_admits_its_limit() {
        admission(&FIXED_WINDOW);
    }

    #[test]
    fn sliding_window_admits_its_limit() {
        admission(&SLIDING_WINDOW);
    }

    #[test]
    fn sliding_log_admits_its_limit() {
        admission(&SLIDING_LOG);
    }

    /// Requests of several costs, one a thread: what was not admitted is still there. For a log this says
    /// that the tokens of a request that did not get enough of them are all rested again.
    fn keeps_what_it_refuses(scene: Scene, costs: &'static [u64]) {
        let [plain, counted] = preemptions_max(scene.policy, costs.len());
        explore_thoroughly(
            &format!("costs {costs:?}, {scene:?}"),
            [if costs.len() > 2 { 2 } else { plain }, counted],
            move || {
                let (gate, _hand) = scene.set();
                let admitted: u64 =
                    together(costs.iter().map(|&cost| acquire(&gate, cost, 1)).collect()).into_iter().sum();
                law(admitted <= scene.room, || {
                    format!("{admitted} admitted, there was room for {}", scene.room)
                });
                let left = drain(&gate);
                law(left + admitted == scene.room, || {
                    format!("{left} left of {} after {admitted} admitted", scene.room)
                });
            },
        );
    }

    #[test]
    fn costs_above_one_leave_the_rest() {
        let scenes = ["1/h burst 3", "fixed 3/h", "sliding 3/h"].map(|policy| Scene::fresh(policy, 3));
        for scene in scenes {
            const COSTS: [&[u64]; 2] = [&[2, 2], &[2, 1, 2]];
            for costs in COSTS {
                keeps_what_it_refuses(scene, costs);
                caught(Fault::LoadThenStore, || keeps_what_it_refuses(scene, costs));
            }
        }
    }

    fn rests_partial_takes(cases: &[(&'static str, u64, &'static [u64])]) {
        for &(policy, room, costs) in cases {
            let scene = Scene::fresh(policy, room);
            keeps_what_it_refuses(scene, costs);
            caught(Fault::LoadThenStore, || keeps_what_it_refuses(scene, costs));
            caught(Fault::NoHandBack, || keeps_what_it_refuses(scene, costs));
        }
    }

    #[test]
    fn log_rests_partial_takes_of_two() {
        rests_partial_takes(&[("log 2/h", 2, &[2, 2]), ("log 3/h", 3, &[2, 2]), ("log 3/h", 3, &[3, 2])]);
    }

    #[test]
    fn log_rests_partial_takes_of_three() {
        rests_partial_takes(&[("log 2/h", 2, &[2, 1, 2]), ("log 3/h", 3, &[2, 2, 2])]);
    }

    /// Two rules, the first `wide` and slow to come back, the second admitting one a second. Whoever comes
    /// second has charged the first rule by the time the second refuses.
    fn hands_back(policy: &'static str, wide: u64, threads: usize) {
        explore_thoroughly(
            &format!("two rules, {threads} threads, `{policy}`"),
            preemptions_max(policy, threads),
            move || {
                let (gate, hand) = gate(policy);
                let admitted: u64 =
                    together((0..threads).map(|_| acquire(&gate, 1, 1)).collect()).into_iter().sum();
                law(admitted == 1, || format!("{admitted} admitted by a rule of 1"));
                let narrow = gate.peek();
                law((narrow.rule(), narrow.remaining()) == (1, 0), || {
                    format!("the narrow rule left {narrow:?}")
                });
                // With the narrow rule renewed for each, what passes now is what the wide one has left.
                let mut left = 0;
                while {
                    hand.advance(Duration::from_secs(1));
                    gate.try_acquire().is_allowed()
                } {
                    left += 1;
                }
                law(left + admitted == wide, || format!("{left} left of {wide} after {admitted} admitted"));
            },
        );
    }

    fn hands_back_or_is_caught(policy: &'static str, wide: u64, threads: usize) {
        hands_back(policy, wide, threads);
        caught(Fault::LoadThenStore, || hands_back(policy, wide, threads));
        caught(Fault::NoHandBack, || hands_back(policy, wide, threads));
    }

    #[test]
    fn two_rules_hand_back_between_two() {
        for first in ["2/d", "fixed 2/d", "sliding 2/d", "log 2/d"] {
            for second in ["1/s", "fixed 1/s", "log 1/s"] {
                hands_back_or_is_caught(Box::leak(format!("{first}; {second}").into()), 2, 2);
            }
        }
    }

    // The window algorithms are the same loop around another pure step: one of them stands for all three.
    #[test]
    fn two_rules_hand_back_among_three() {
        hands_back_or_is_caught("3/d; fixed 1/s", 3, 3);
    }

    #[test]
    fn two_rules_hand_back_among_three_with_a_log() {
        hands_back_or_is_caught("log 3/d; 1/s", 3, 3);
    }

    #[derive(Clone, Copy)]
    enum Undo {
        Refund(u64),
        Reset,
    }

    /// Requests of one each beside something that undoes: `expected` says what may be admitted and left.
    fn undoes(
        name: &str,
        scene: Scene,
        requests: usize,
        undo: &'static [Undo],
        expected: impl Fn(u64, u64) -> bool + Clone + Send + Sync + 'static,
    ) {
        explore_thoroughly(
            &format!("{name}, {scene:?}"),
            preemptions_max(scene.policy, requests + undo.len()),
            move || {
                let (gate, _hand) = scene.set();
                let undo = undo.iter().map(|undo| match *undo {
                    Undo::Refund(cost) => refund(&gate, cost),
                    Undo::Reset => reset(&gate),
                });
                let jobs = (0..requests).map(|_| acquire(&gate, 1, 1)).chain(undo).collect();
                let admitted: u64 = together(jobs).into_iter().sum();
                let left = drain(&gate);
                law(expected(admitted, left), || format!("{admitted} admitted and {left} left"));
            },
        );
    }

    fn taken(policy: &'static str, taken: u64) -> Scene {
        Scene { policy, taken, later: Duration::ZERO, room: 0 }
    }

    const OF_2: [&str; 4] = ["1/h burst 2", "fixed 2/h", "sliding 2/h", "log 2/h"];
    const OF_3: [&str; 4] = ["1/h burst 3", "fixed 3/h", "sliding 3/h", "log 3/h"];

    #[test]
    fn refund_beside_requests_loses_none() {
        for policy in OF_3 {
            let model = || {
                undoes(
                    "refund beside requests",
                    taken(policy, 1),
                    2,
                    &[Undo::Refund(1)],
                    |admitted, left| (admitted, left) == (2, 1),
                );
            };
            model();
            caught(Fault::LoadThenStore, model);
        }
    }

    #[test]
    fn refund_is_there_for_the_next_request() {
        for policy in OF_2 {
            let model = || {
                undoes(
                    "refunds of a gate used up",
                    taken(policy, 2),
                    1,
                    &[Undo::Refund(1), Undo::Refund(1)],
                    |admitted, left| admitted + left == 2,
                );
            };
            model();
            caught(Fault::LoadThenStore, model);
        }
    }

    #[test]
    fn refund_never_goes_above_the_burst() {
        for policy in OF_3 {
            // Where the refund finds only the one that was taken before, the other one it has is lost.
            let model = || {
                undoes("refund of too much", taken(policy, 1), 2, &[Undo::Refund(2)], |admitted, left| {
                    admitted == 2 && (left == 1 || left == 2)
                });
            };
            model();
            caught(Fault::LoadThenStore, model);
        }
    }

    #[test]
    fn reset_beside_requests_is_before_or_after_each() {
        for policy in OF_2 {
            // What was taken before is forgotten in any case, the request itself only if it came first.
            let one = || {
                undoes("reset beside a request", taken(policy, 1), 1, &[Undo::Reset], |admitted, left| {
                    admitted == 1 && (left == 1 || left == 2)
                });
            };
            one();
            // A log has a word for each request: these two never meet on one, with or without the fault.
            if !policy.starts_with("log") {
                caught(Fault::LoadThenStore, one);
            }
        }
        for policy in ["1/h burst 1", "fixed 1/h", "sliding 1/h", "log 1/h"] {
            // The one that the reset brings back is taken once, or still there.
            let two = || {
                undoes("reset beside two requests", taken(policy, 1), 2, &[Undo::Reset], |admitted, left| {
                    admitted + left == 1
                });
            };
            two();
            caught(Fault::LoadThenStore, two);
        }
    }

    impl std::fmt::Debug for Scene {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "`{}`", self.policy)?;
            if self.taken > 0 {
                write!(f, " after {} at -{:?}", self.taken, self.later)?;
            }
            Ok(())
        }
    }
}
