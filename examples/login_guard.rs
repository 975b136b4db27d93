//! A guard in front of a login: few attempts, lockouts that grow for whoever goes on, and two lists.
//!
//! Time is moved by hand, so an hour takes no time. `cargo run --example login_guard`

use std::time::Duration;
use tollgate::{Cause, Clock, Limiter, Penalties};

const MINUTE: Duration = Duration::from_secs(60);

fn main() -> Result<(), tollgate::Error> {
    let (clock, hand) = Clock::manual();
    // Five attempts in any quarter of an hour. Three refusals lock a client out: for a minute, ten, an hour.
    let guard = Limiter::builder()
        .policy("log 5/15min named login")
        .penalties(Penalties::new([MINUTE, 10 * MINUTE, 60 * MINUTE]).after(3))
        .clock(clock)
        .build()?;
    let attempt = |client: &str, right: bool| {
        let decision = guard.try_acquire(client);
        let said = match decision.into_result() {
            Err(denied) => denied.to_string(),
            Ok(_) if right => {
                // Whoever knows the password has not been guessing.
                guard.reset(client);
                "welcome".to_owned()
            }
            Ok(left) => format!("wrong, {} left", left.remaining()),
        };
        println!("{:>5} s  {client}: {said}", hand.now().as_secs());
        decision
    };

    println!("a user who mistypes");
    for _ in 0..4 {
        assert!(attempt("alice", false).is_allowed());
    }
    assert!(attempt("alice", true).is_allowed());
    assert_eq!(guard.peek("alice").remaining(), 5);

    println!("a client that guesses, and goes on");
    for _ in 0..5 {
        assert!(attempt("mallory", false).is_allowed());
    }
    for lockout in [MINUTE, 10 * MINUTE] {
        for _ in 0..3 {
            assert_eq!(attempt("mallory", false).cause(), Cause::Rule);
        }
        let locked = attempt("mallory", false);
        assert_eq!(locked.cause(), Cause::Penalty);
        let wait = locked.retry_after().unwrap_or_default();
        assert!(wait >= lockout && wait < lockout + Duration::from_millis(2));
        hand.advance(wait);
    }

    println!("lists have the last word");
    guard.allow("10.0.0.7 (monitoring)")?;
    for _ in 0..20 {
        assert!(guard.try_acquire("10.0.0.7 (monitoring)").is_allowed());
    }
    guard.deny_for("203.0.113.9", 60 * MINUTE)?;
    assert_eq!(attempt("203.0.113.9", true).cause(), Cause::List);
    hand.advance(61 * MINUTE);
    assert!(attempt("203.0.113.9", true).is_allowed());
    Ok(())
}
