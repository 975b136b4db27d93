//! Models of booking ahead with the clock standing still: the bound holds beside requests that do not book,
//! nothing is lost when bookings are given up, and a word is never seen without the horizon it lies within.

#[cfg(tollgate_loom)]
mod models {
    use loom_tests::{Job, caught, explore_thoroughly, explore_within, law, limiter, together};
    use std::sync::Arc;
    use std::time::Duration;
    use tollgate::model::{Fault, with_counted_loads};
    use tollgate::{Limiter, ManualHand, WhenFull};

    const KEY: &str = "key";
    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(86_400);

    /// A key that has taken `taken` of a bucket that gets one an hour.
    fn scene(policy: &str, taken: u64) -> (Arc<Limiter>, ManualHand) {
        let (limiter, hand) = limiter(policy, 1, WhenFull::Deny);
        law(limiter.try_acquire_n(KEY, taken).is_allowed(), || "the scene cannot be set".to_owned());
        (limiter, hand)
    }

    fn take(limiter: &Arc<Limiter>) -> Job<u64> {
        let limiter = Arc::clone(limiter);
        Box::new(move || u64::from(limiter.try_acquire(KEY).is_allowed()))
    }

    /// Books one and gives it up; counts nothing.
    fn give_up(limiter: &Arc<Limiter>) -> Job<u64> {
        let limiter = Arc::clone(limiter);
        Box::new(move || {
            let booked = limiter.reserve(KEY, 1, DAY);
            law(booked.is_ok(), || "a booking within a day was refused".to_owned());
            0
        })
    }

    /// Books one for good.
    fn keep(limiter: &Arc<Limiter>) -> Job<u64> {
        let limiter = Arc::clone(limiter);
        Box::new(move || {
            let Ok(booked) = limiter.reserve(KEY, 1, DAY) else {
                law(false, || "a booking within a day was refused".to_owned());
                return 0;
            };
            booked.commit(1);
            1
        })
    }

    /// Whatever happened, the word owes exactly what was taken: so many hours.
    fn owes(limiter: &Limiter, taken: u64) {
        let owed = limiter.peek(KEY).reset_after();
        let hours = u32::try_from(taken).unwrap_or(u32::MAX);
        law(owed == HOUR * hours, || format!("{owed:?} owed for {taken} taken"));
    }

    fn loses_nothing(threads: &'static [fn(&Arc<Limiter>) -> Job<u64>], preemptions_max: usize) {
        for counted in [false, true] {
            let explore = || {
                explore_within(
                    &format!("{} threads, loads counted: {counted}", threads.len()),
                    if counted { 1 } else { preemptions_max },
                    move || {
                        let (limiter, _hand) = scene("1/h burst 2", 1);
                        let admitted: u64 =
                            together(threads.iter().map(|job| job(&limiter)).collect()).into_iter().sum();
                        owes(&limiter, 1 + admitted);
                    },
                );
            };
            if counted { with_counted_loads(explore) } else { explore() }
        }
    }

    #[test]
    fn a_booking_given_up_beside_a_request_loses_nothing() {
        let model = || loses_nothing(&[give_up, take], usize::MAX);
        model();
        caught(Fault::LoadThenStore, model);
        caught(Fault::NoHandBack, || loses_nothing(&[give_up, take], usize::MAX));
    }

    #[test]
    fn two_bookings_given_up_beside_a_request_lose_nothing() {
        let model = || loses_nothing(&[give_up, give_up, take], 2);
        model();
        caught(Fault::LoadThenStore, model);
    }

    #[test]
    fn a_booking_kept_and_one_given_up_beside_a_request() {
        let model = || loses_nothing(&[keep, give_up, take], 2);
        model();
        caught(Fault::LoadThenStore, model);
    }

    /// Somebody waits while others book, give up and ask: once they have, its moment is as if they had never come,
    /// whoever was first.
    fn moves_up(others: &'static [fn(&Arc<Limiter>) -> Job<u64>]) {
        explore_within(&format!("moving up, {} others", others.len()), 2, move || {
            let (limiter, _hand) = scene("1/h burst 1", 1);
            let others: Vec<_> = others.iter().map(|job| loom::thread::spawn(job(&limiter))).collect();
            let booked = limiter.reserve(KEY, 1, DAY);
            let admitted: u64 = others.into_iter().filter_map(|thread| thread.join().ok()).sum();
            law(admitted == 0, || format!("{admitted} admitted of a bucket used up"));
            let wait = booked.as_ref().ok().map(tollgate::Reservation::wait);
            law(wait == Some(HOUR), || format!("{wait:?} to wait behind nobody"));
            owes(&limiter, 2);
            drop(booked);
            owes(&limiter, 1);
        });
    }

    #[test]
    fn those_behind_move_up() {
        moves_up(&[give_up]);
        moves_up(&[give_up, give_up]);
        caught(Fault::NoHandBack, || moves_up(&[give_up]));
    }

    #[test]
    fn those_behind_move_up_beside_a_request() {
        moves_up(&[give_up, take]);
        caught(Fault::NoHandBack, || moves_up(&[give_up, take]));
    }

    /// A policy that cuts down what is owed, beside somebody who books by the old one or the new one and then gives
    /// up: others have spent since what the cut has left room for, and that is not given back to anybody.
    fn given_up(is_beside: bool) {
        // What is given up meanwhile is tried in more orders.
        let (name, preemptions_max) = match is_beside {
            true => ("given up beside a change", [2, 1]),
            false => ("given up after a change", [3, 2]),
        };
        explore_thoroughly(name, preemptions_max, move || {
            let (limiter, hand) = limiter("1/h burst 2", 1, WhenFull::Deny);
            let change_and_take: Job<u64> = {
                let limiter = Arc::clone(&limiter);
                Box::new(move || {
                    law(limiter.set_policy("2/min").is_ok(), || "not accepted".to_owned());
                    // One has come back by then.
                    hand.advance(HOUR / 120);
                    u64::from(limiter.try_acquire(KEY).is_allowed())
                })
            };
            let changer = loom::thread::spawn(change_and_take);
            let booked = limiter.reserve(KEY, 2, Duration::ZERO);
            let kept = booked.ok().filter(|_| !is_beside);
            let mut passed = changer.join().unwrap_or(0);
            drop(kept);
            while limiter.try_acquire(KEY).is_allowed() {
                passed += 1;
            }
            law(passed <= 2, || format!("{passed} passed at one moment under a burst of 2"));
        });
    }

    #[test]
    fn what_a_change_has_cut_down_is_not_given_back() {
        given_up(false);
        caught(Fault::MixesEras, || given_up(false));
        caught(Fault::LoadThenStore, || given_up(false));
        given_up(true);
        caught(Fault::JudgesEarly, || given_up(true));
    }

    /// A key is reset beside somebody who books and gives up: what others spend after that stays spent.
    fn given_up_after_a_reset() {
        explore_within("given up after a reset", 2, || {
            let (limiter, _hand) = scene("1/h burst 2", 1);
            let forget: Job<u64> = {
                let limiter = Arc::clone(&limiter);
                Box::new(move || {
                    limiter.reset(KEY);
                    0
                })
            };
            let forgetter = loom::thread::spawn(forget);
            let booked = limiter.reserve(KEY, 1, Duration::ZERO);
            let _none = forgetter.join();
            let mut passed = 0;
            while limiter.try_acquire(KEY).is_allowed() {
                passed += 1;
            }
            drop(booked);
            // Room for what was given up, unless it was forgotten with the rest.
            while limiter.try_acquire(KEY).is_allowed() {
                passed += 1;
            }
            law(passed <= 2, || format!("{passed} passed after a reset under a burst of 2"));
        });
    }

    #[test]
    fn what_was_reset_is_not_given_back() {
        given_up_after_a_reset();
        caught(Fault::RemembersForgotten, given_up_after_a_reset);
    }

    /// A word that lies beyond a whole burst, seen by a request that has not booked: without the horizon it would
    /// pass for long forgotten.
    fn is_seen_within_its_horizon() {
        with_counted_loads(|| {
            explore_within("horizon", 3, || {
                let (limiter, _hand) = scene("1/h burst 1", 1);
                let admitted: u64 = together(vec![keep(&limiter), take(&limiter)]).into_iter().sum();
                law(admitted == 1, || format!("{admitted} admitted where one could book and none pass"));
                owes(&limiter, 2);
            });
        });
    }

    #[test]
    fn a_booked_word_is_seen_within_its_horizon() {
        is_seen_within_its_horizon();
        caught(Fault::BooksUnseen, is_seen_within_its_horizon);
    }
}
