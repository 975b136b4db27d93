//! Where the server is several: a cluster of six nodes and a master that sentinels watch. One of them is killed.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{PATIENCE, Server, eventually, find, programs, unhurried};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tollgate::Cause;
use tollgate::redis::{BreakerState, Leasing, OnFailure, RedisLimiter};

/// Three masters with a replica each.
struct Cluster(Vec<Server>);

impl Cluster {
    fn start(program: &Path) -> Self {
        let cli = find("redis-cli")
            .expect("`redis-cli` is not on the PATH: it comes with redis-server, run ./test");
        // Long enough for a busy machine: a node that is only slow must not be replaced.
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"];
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
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    /// The master of a subject's keys, by its place.
    fn master_of(&self, key: &str) -> usize {
        self.masters()
            .find(|&index| {
                let client = redis::Client::open(self.0[index].url()).unwrap();
                let mut connection = client.get_connection().unwrap();
                redis::cmd("EXISTS").arg(key).query::<u64>(&mut connection) == Ok(1)
            })
            .expect("the key is nowhere")
    }

    fn masters(&self) -> impl Iterator<Item = usize> {
        let is_master = |&index: &usize| info(&self.0[index], "INFO replication").contains("role:master");
        (0..self.0.len()).filter(is_master)
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
            .on_failure(OnFailure::Closed);
        let limiter = unhurried(limiter).build().await.unwrap();
        // All keys of a subject are in one slot, whatever the subject: no call may cross slots.
        for subject in
            (0..100).map(|number| format!("subject {number}")).chain([String::new(), "a}b{".to_owned()])
        {
            let decision = limiter.try_acquire(&subject).await;
            assert!(decision.is_allowed() && decision.cause() == Cause::Rule, "{subject}: {decision:?}");
            assert_eq!(limiter.peek(&subject).await.remaining(), 19);
            limiter.reset(&subject).await.unwrap();
            assert!(limiter.once(&subject, Duration::from_secs(60)).await.is_allowed());
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
            "sentinel monitor shared 127.0.0.1 {port} 1\nsentinel down-after-milliseconds shared 3000\n\
             sentinel failover-timeout shared 10000\n"
        );
        std::fs::write(&file, watch).unwrap();
        let sentinel = Server::start_with(&program, &[file.to_str().unwrap(), "--sentinel"]);
        eventually("the replica is in step and known", async || {
            info(&replica, "INFO replication").contains("master_link_status:up")
                && info(&sentinel, "INFO sentinel").contains("slaves=1")
        })
        .await;

        let limiter =
            RedisLimiter::sentinel([sentinel.url()], "shared").policy("20/h").on_failure(OnFailure::Closed);
        let limiter = unhurried(limiter).build().await.unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stops_without_a_word_is_left_for_its_successor() {
    for program in programs() {
        let cluster = Cluster::start(&program);
        let limiter = RedisLimiter::cluster(cluster.urls())
            .policy("1000/d")
            .on_failure(OnFailure::Closed)
            .deadline(Duration::from_millis(500))
            .connect_timeout(Duration::from_secs(4))
            .build()
            .await
            .unwrap();
        let is_asked = async |subject: &str| limiter.try_acquire(subject).await.cause() == Cause::Rule;
        let mut masters = Vec::new();
        let subjects: Vec<String> = (0..20).map(|number| format!("subject {number}")).collect();
        for subject in &subjects {
            eventually("the subject is known", async || is_asked(subject).await).await;
            masters.push(cluster.master_of(&format!("tollgate:{{{subject}}}:b.0.0")));
        }
        let stopped = masters[0];
        let elsewhere = masters.iter().position(|&master| master != stopped).expect("several masters");
        cluster.0[stopped].pause();
        eventually("the stopped one is missed", async || !is_asked(&subjects[0]).await).await;
        // The others go on answering, which must not hide that this one does not.
        eventually("its successor is asked", async || {
            let _ = is_asked(&subjects[elsewhere]).await;
            is_asked(&subjects[0]).await
        })
        .await;
        cluster.0[stopped].resume();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_refunds_go_where_the_slot_goes() {
    for program in programs() {
        let cluster = Cluster::start(&program);
        let limiter = |policy: &str| unhurried(RedisLimiter::cluster(cluster.urls()).policy(policy));
        let leased = limiter("10/d").prefix("leased").leased(Leasing::new()).build().await.unwrap();
        for subject in (0..20).map(|number| format!("subject {number}")) {
            let mut admitted = 0;
            for _ in 0..30 {
                admitted += u64::from(leased.try_acquire(&subject).await.is_allowed());
            }
            assert!((1..=10).contains(&admitted), "{admitted} of 10");
        }
        leased.close().await;
        let stats = leased.stats();
        assert_eq!((stats.leases.in_hand, stats.failures, stats.fallback_decisions), (0, 0, 0), "{stats:?}");

        // A slot on its way from one node to another: its key is there already, and the first node only points to it.
        let key = "tollgate:{key}:b.0.0";
        let limiter = limiter("1000/d").build().await.unwrap();
        assert_eq!(limiter.try_acquire_n("key", 5).await.remaining(), 995);
        let from = cluster.master_of(key);
        let to = cluster.masters().find(|&index| index != from).unwrap();
        let (from, to) = (&cluster.0[from], &cluster.0[to]);
        let redis::Value::Int(slot) = from.command("CLUSTER KEYSLOT {key}") else { panic!("no slot") };
        let [from_id, to_id] = [from, to].map(|server| info(server, "CLUSTER MYID"));
        to.command(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        from.command(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
        from.command(&format!("MIGRATE 127.0.0.1 {} {key} 0 60000", to.port));
        limiter.refund("key", 2).await.unwrap();
        assert_eq!(limiter.try_acquire_n("key", 10).await.remaining(), 987);
        limiter.refund("key", 3).await.unwrap();
        assert_eq!(limiter.peek("key").await.remaining(), 990);

        for server in [to, from] {
            server.command(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        }
        limiter.refund("key", 4).await.unwrap();
        assert_eq!(limiter.peek("key").await.remaining(), 994);
        assert_eq!((limiter.stats().failures, limiter.stats().fallback_decisions), (0, 0));
    }
}
