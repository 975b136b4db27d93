//! Tenants with different plans over one table: the plan is chosen at the call, and changed while in force.
//!
//! `cargo run --example tenant_tiers`

use std::error::Error;
use std::time::Duration;
use tollgate::{Clock, Decision, Limiter};

struct Tenant {
    name: &'static str,
    /// The name of a tier; none is the free plan.
    plan: Option<&'static str>,
}

fn ask(limiter: &Limiter, tenant: &Tenant, cost: u64) -> Decision {
    match tenant.plan.and_then(|plan| limiter.tier(plan)) {
        Some(tier) => tier.try_acquire_n(tenant.name, cost),
        None => limiter.try_acquire_n(tenant.name, cost),
    }
}

fn show(what: &str, tenant: &Tenant, decision: Decision) {
    let verdict = if decision.is_allowed() { "passes" } else { "is refused" };
    println!("{what}: {} {verdict}, {} of {} left", tenant.name, decision.remaining(), decision.limit());
}

fn main() -> Result<(), Box<dyn Error>> {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder()
        .policy("fixed 10/min named free")
        .tier("team", "fixed 100/min named team")
        .tier("enterprise", "fixed 5000/min named enterprise; 500/s named smooth")
        .clock(clock)
        .build()?;
    let small = Tenant { name: "small", plan: None };
    let mut grown = Tenant { name: "grown", plan: None };
    let large = Tenant { name: "large", plan: Some("enterprise") };

    for tenant in [&small, &grown] {
        show("ten on the free plan", tenant, ask(&limiter, tenant, 10));
        assert!(ask(&limiter, tenant, 1).is_denied());
    }
    let smoothed = ask(&limiter, &large, 400);
    show("four hundred at once", &large, smoothed);
    assert_eq!((smoothed.rule_name(), smoothed.remaining()), (Some("smooth"), 100));

    // A better plan counts what was spent under the old one, and nothing is moved or forgotten.
    grown.plan = Some("team");
    let upgraded = ask(&limiter, &grown, 1);
    show("after the upgrade", &grown, upgraded);
    assert_eq!(upgraded.remaining(), 100 - 10 - 1);

    // The free plan is cut, for everybody and at once.
    limiter.set_policy("fixed 5/min named free")?;
    hand.advance(Duration::from_secs(60));
    let cut = ask(&limiter, &small, 5);
    show("five on what is left of the free plan", &small, cut);
    assert_eq!((cut.limit(), cut.remaining()), (5, 0));
    assert_eq!(
        limiter.tier("team").map(|tier| tier.policy().to_string()).as_deref(),
        Some("fixed 100/min named team")
    );

    // What cannot be in force is refused, and the old one stays.
    let error = limiter.set_policy("fixed 5/fortnight").expect_err("no such unit");
    println!("a mistake in a plan: {error}");
    assert_eq!(limiter.policy().to_string(), "fixed 5/min named free");
    Ok(())
}
