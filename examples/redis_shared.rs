//! Three processes share one limit over Redis.
//!
//! `cargo run --features redis --example redis_shared` with a server at 127.0.0.1:6379, or `-- redis://host:port/`. This
//! program starts itself three times; each asks as fast as it is allowed to for three seconds, and all of them together
//! are admitted what the one rule says.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tollgate::redis::{BreakerState, Leasing, RedisLimiter};

const POLICY: &str = "500/s burst 100 named shared";
const BURST: f64 = 100.0;
const RATE: f64 = 500.0;
const PROCESSES: u64 = 3;
const TIME: Duration = Duration::from_secs(3);
/// Tells a process that it is one of the three, and where the server is.
const CHILD: &str = "TOLLGATE_SHARED_CHILD";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if let Ok(url) = std::env::var(CHILD) {
        return child(&url).await;
    }
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379/".to_owned());
    parent(&url, &[]).await.map(|_| ())
}

/// Starts the processes, with arguments for this program if it needs any: how many requests were admitted, and how many
/// may have been.
pub(crate) async fn parent(url: &str, arguments: &[&str]) -> Result<(u64, f64)> {
    let limiter = RedisLimiter::builder(url).policy(POLICY).nodes(PROCESSES).build().await?;
    if limiter.stats().state != BreakerState::Closed {
        return Err(format!("there is no server at {url}: start one with `redis-server`").into());
    }
    limiter.reset("everybody").await?;
    println!("{POLICY}, {PROCESSES} processes, {TIME:?}");
    let began = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).env(CHILD, url).stdout(Stdio::piped());
    let children: Vec<_> = (0..PROCESSES).map(|_| command.spawn()).collect::<std::io::Result<_>>()?;
    let mut total = 0;
    for child in children {
        let output = child.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        for line in text.lines().filter(|line| line.contains("requests admitted")) {
            println!("{line}");
            total += line.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
    }
    let most = BURST + RATE * began.elapsed().as_secs_f64();
    println!("{total} in all, of at most {most:.0}");
    Ok((total, most))
}

/// Asks for three seconds, as often as there is hope.
pub(crate) async fn child(url: &str) -> Result<()> {
    let limiter =
        RedisLimiter::builder(url).policy(POLICY).nodes(PROCESSES).leased(Leasing::new()).build().await?;
    let began = Instant::now();
    let (mut admitted, mut asked) = (0_u64, 0_u64);
    while began.elapsed() < TIME {
        let decision = limiter.try_acquire("everybody").await;
        asked += 1;
        match decision.retry_after() {
            None if decision.is_allowed() => admitted += 1,
            wait => tokio::time::sleep(wait.unwrap_or(TIME).min(Duration::from_millis(1))).await,
        }
    }
    // Gives back what is in hand, for the others.
    limiter.close().await;
    // On a line of its own, whatever was printed before.
    println!("\n{admitted} of {asked} requests admitted, with {} calls to the server", limiter.stats().calls);
    Ok(())
}
