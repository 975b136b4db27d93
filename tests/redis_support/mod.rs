//! Real servers that a test starts for itself on 127.0.0.1 and stops by their process.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "tests; each uses its own part"
)]

pub(crate) mod nodes;
pub(crate) mod proxy;

use std::future::poll_fn;
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
use tollgate::redis::{RedisLimiter, RedisLimiterBuilder};

/// How long anything that should happen soon may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A deadline that is no part of what a test is about: as long as a busy machine may keep it waiting.
pub(crate) const NO_HURRY: Duration = Duration::from_secs(30);

/// Waits for the server, and for connections to it, as long as it takes.
pub(crate) fn unhurried(builder: RedisLimiterBuilder) -> RedisLimiterBuilder {
    builder.deadline(NO_HURRY).connect_timeout(NO_HURRY)
}

/// The servers to test with: Redis always, Valkey where it is. `TOLLGATE_VALKEY_SERVER` says where.
pub(crate) fn programs() -> Vec<PathBuf> {
    let redis = find("redis-server").unwrap_or_else(|| {
        panic!("`redis-server` is not on the PATH: install it (apt-get install redis-server), or run ./test")
    });
    let valkey = match std::env::var_os("TOLLGATE_VALKEY_SERVER") {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "TOLLGATE_VALKEY_SERVER names {}, which is not there", path.display());
            Some(path)
        }
        None => find("valkey-server"),
    };
    [redis].into_iter().chain(valkey).collect()
}

/// The one server of tests that are about this side of the connection.
pub(crate) fn redis() -> PathBuf {
    programs().remove(0)
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// A server in a process of its own, which ends with this value.
pub(crate) struct Server {
    program: PathBuf,
    pub(crate) port: u16,
    options: Vec<String>,
    child: Child,
    directory: PathBuf,
}

impl Server {
    pub(crate) fn start(program: impl Into<PathBuf>) -> Self {
        Self::start_with(program, &[])
    }

    pub(crate) fn start_with(program: impl Into<PathBuf>, options: &[&str]) -> Self {
        let program = program.into();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        for _ in 0..20 {
            let port = free_port();
            let directory =
                std::env::temp_dir().join(format!("tollgate-redis-{}-{port}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let child = launch(&program, port, &options, &directory);
            let mut server =
                Self { program: program.clone(), port, options: options.clone(), child, directory };
            // Somebody else may have been given the same port meanwhile.
            if server.wait_until_up() {
                return server;
            }
        }
        panic!("{} does not start", program.display());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn limiter(&self, policy: &str) -> RedisLimiterBuilder {
        unhurried(RedisLimiter::builder(self.url()).policy(policy))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a crash would: nothing is written down, no connection is closed in good order.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again at the same port, with nothing in it.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let until = Instant::now() + PATIENCE;
        loop {
            self.child = launch(&self.program, self.port, &self.options, &self.directory);
            if self.wait_until_up() {
                return;
            }
            assert!(Instant::now() < until, "the server does not come back");
        }
    }

    pub(crate) fn pause(&self) {
        signal("STOP", self.pid());
    }

    pub(crate) fn resume(&self) {
        signal("CONT", self.pid());
    }

    /// Sends one command over a connection of its own.
    pub(crate) fn command(&self, command: &str) -> redis::Value {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        let mut words = command.split_whitespace();
        let mut request = redis::cmd(words.next().unwrap());
        for word in words {
            request.arg(word);
        }
        request.query(&mut connection).unwrap()
    }

    /// How often a command was called, as the server counts it.
    pub(crate) fn calls_of(&self, command: &str) -> u64 {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let start = format!("cmdstat_{command}:calls=");
        stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    fn wait_until_up(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return false;
            }
            if is_up(self.port) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn launch(program: &PathBuf, port: u16, options: &[String], directory: &PathBuf) -> Child {
    // Sentinel insists on a file to write to; everybody else does without.
    let file = options.iter().find(|option| option.ends_with(".conf"));
    Command::new(program)
        .args(file)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .arg(directory)
        .args(["--daemonize", "no"])
        .args(if file.is_some() { &[][..] } else { &["--save", "", "--appendonly", "no"] })
        .args(options.iter().filter(|option| !option.ends_with(".conf")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display()))
}

fn is_up(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
        && redis::Client::open(format!("redis://127.0.0.1:{port}/"))
            .and_then(|client| client.get_connection_with_timeout(Duration::from_secs(2)))
            .and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection))
            .is_ok()
}

/// A port that nobody has at the moment, and whose cluster bus port (10 000 above) is a port too.
pub(crate) fn free_port() -> u16 {
    // Below the range that the system gives to clients, so that no connection takes it in between.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let mine = u16::try_from(std::process::id() % 1_000).unwrap() * 20;
    loop {
        let port = 10_000 + (mine + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub(crate) fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(status.success(), "no signal {name} to {pid}");
}

/// A key outlives what it says by this time of the server's clock, whatever a test says that the time is.
const LINGER: Duration = Duration::from_millis(900);

/// Runs what a key has to live for. Where it failed, and the machine has kept it waiting for longer than keys live, it
/// is run again, with another number.
pub(crate) async fn undisturbed(mut attempt: impl AsyncFnMut(usize)) {
    for number in 0.. {
        let began = Instant::now();
        let mut running = Box::pin(attempt(number));
        let ended =
            poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            });
        match ended.await {
            Ok(()) => return,
            Err(panic) if began.elapsed() < LINGER || number == 9 => resume_unwind(panic),
            Err(_) => eprintln!("it took {:?}: again", began.elapsed()),
        }
    }
}

/// Waits for something that takes another process's doing.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < until, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Numbers that look random and are the same every time.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}
