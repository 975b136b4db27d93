//! Where the server is several: a cluster of six nodes and a master that sentinels watch. One of them is killed.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{NO_HURRY, PATIENCE, Server, eventually, find, programs};
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tollgate::Cause;
use tollgate::redis::{BreakerState, OnFailure, RedisLimiter};

/// Three masters with a replica each.
struct Cluster(Vec<Server>);

impl Cluster {
    fn start(program: &Path) -> Self {
        let cli = find("redis-cli")
            .expect("`redis-cli` is not on the PATH: it comes with redis-server, run ./test");
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let servers: Vec<Server> = (0..6).map(|_| Server::start_with(program, &options)).collect();
        let addresses = servers.iter().map(|server| format!("127.0.0.1:{}", server.port));
        let output = Command::new(cli)
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(output.status.success(), "no cluster: {}", String::from_utf8_lossy(&output.stdout));
        let cluster = Self(servers);
        let until = Instant::now() + PATIENCE;
        // Every node knows that all slots are served, and every replica has caught up with its master.
        while !cluster.0.iter().all(|server| {
            info(server, "CLUSTER INFO").contains("cluster_state:ok")
                && !info(server, "INFO replication").contains("master_link_status:down")
        }) {
            assert!(Instant::now() < until, "the cluster does not form");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        cluster
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    /// The master of a subject's keys, by its place.
    fn master_of(&self, key: &str) -> usize {
        let is_master = |server: &Server| info(server, "INFO replication").contains("role:master");
        self.0
            .iter()
            .position(|server| {
                let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
                is_master(server) && redis::cmd("EXISTS").arg(key).query::<u64>(&mut connection) == Ok(1)
            })
            .expect("the key is nowhere")
    }
}

fn info(server: &Server, command: &str) -> String {
    match server.command(command) {
        redis::Value::BulkString(text) => String::from_utf8(text).unwrap(),
        redis::Value::VerbatimString { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

/// Asks until the server itself refuses, and counts what it admits on the way.
async fn admitted_until_refused(limiter: &RedisLimiter, subject: &str) -> u64 {
    let mut admitted = 0;
    eventually("the limit is reached", async || {
        let decision = limiter.try_acquire(subject).await;
        admitted += u64::from(decision.is_allowed());
        decision.is_denied() && decision.cause() == Cause::Rule
    })
    .await;
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_decides_over_all_slots_and_survives_a_failover() {
    for program in programs() {
        let mut cluster = Cluster::start(&program);
        let limiter = RedisLimiter::cluster(cluster.urls())
            .policy("20/h; fixed 1000/d; sliding 1000/d; log 100/d")
            .on_failure(OnFailure::Closed)
            .deadline(NO_HURRY)
            .build()
            .await
            .unwrap();
        // All keys of a subject are in one slot, whatever the subject: no call may cross slots.
        for subject in
            (0..100).map(|number| format!("subject {number}")).chain([String::new(), "a}b{".to_owned()])
        {
            let decision = limiter.try_acquire(&subject).await;
            assert!(decision.is_allowed() && decision.cause() == Cause::Rule, "{subject}: {decision:?}");
            assert_eq!(limiter.peek(&subject).await.remaining(), 19);
            limiter.reset(&subject).await.unwrap();
            assert!(limiter.once(&subject, std::time::Duration::from_secs(60)).await.is_allowed());
        }
        assert_eq!(limiter.stats().failures, 0, "{:?}", limiter.stats());

        let mut admitted = 0;
        for _ in 0..10 {
            admitted += u64::from(limiter.try_acquire("key").await.is_allowed());
        }
        assert_eq!(admitted, 10);
        let master = cluster.master_of("tollgate:{key}:b.0.0");
        cluster.0[master].kill();
        admitted += admitted_until_refused(&limiter, "key").await;
        // The replica knew of what was spent, all but what was on its way; the burst is granted again at worst.
        assert!((20..=40).contains(&admitted), "{admitted}");
        assert!(limiter.stats().failures > 0);
        eventually("the breaker closes", async || limiter.stats().state == BreakerState::Closed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_next_master() {
    for program in programs() {
        let mut master = Server::start(&program);
        let port = master.port.to_string();
        let replica = Server::start_with(&program, &["--replicaof", "127.0.0.1", &port]);
        let file = std::env::temp_dir().join(format!("tollgate-sentinel-{}-{port}.conf", std::process::id()));
        let watch = format!(
            "sentinel monitor shared 127.0.0.1 {port} 1\nsentinel down-after-milliseconds shared 500\n\
             sentinel failover-timeout shared 3000\n"
        );
        std::fs::write(&file, watch).unwrap();
        let sentinel = Server::start_with(&program, &[file.to_str().unwrap(), "--sentinel"]);
        eventually("the replica is in step and known", async || {
            info(&replica, "INFO replication").contains("master_link_status:up")
                && info(&sentinel, "INFO sentinel").contains("slaves=1")
        })
        .await;

        let limiter = RedisLimiter::sentinel([sentinel.url()], "shared")
            .policy("20/h")
            .on_failure(OnFailure::Closed)
            .deadline(NO_HURRY)
            .build()
            .await
            .unwrap();
        assert_eq!(limiter.stats().state, BreakerState::Closed);
        for _ in 0..10 {
            assert!(limiter.try_acquire("key").await.is_allowed());
        }
        master.kill();
        let admitted = 10 + admitted_until_refused(&limiter, "key").await;
        assert!((20..=40).contains(&admitted), "{admitted}");
        assert!(info(&replica, "INFO replication").contains("role:master"));
        let _ = std::fs::remove_file(file);
    }
}
