//! The same over TLS: a server whose certificate is believed, and the same server where it is not.

#![cfg(feature = "redis-tls")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod redis_support;

use redis_support::{NO_HURRY, Server, free_port, redis};
use std::path::Path;
use std::process::Command;
use tollgate::redis::{BreakerState, RedisLimiter};

const URL: &str = "TOLLGATE_REDIS_TLS_URL";

/// Makes an authority and a certificate of its own for 127.0.0.1.
fn certificates(directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for command in [
        format!("req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=authority"),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=server"),
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt"
            .to_owned(),
    ] {
        let run = Command::new("openssl").args(command.split(' ')).current_dir(directory).output();
        let output = run.unwrap_or_else(|error| panic!("`openssl` cannot be run, install it: {error}"));
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Not a test by itself: asks the server that the environment names, and ends with 0 if it decides.
#[tokio::test]
async fn client() {
    let Ok(url) = std::env::var(URL) else { return };
    let limiter = RedisLimiter::builder(url)
        .policy("2/h")
        .deadline(NO_HURRY)
        .connect_timeout(NO_HURRY)
        .build()
        .await
        .unwrap();
    let closed = limiter.stats().state == BreakerState::Closed;
    let decided = closed && limiter.try_acquire_n("key", 2).await.is_allowed();
    std::process::exit(i32::from(!decided));
}

#[test]
fn a_server_is_asked_over_tls_if_its_certificate_is_believed() {
    let port = free_port();
    let directory = std::env::temp_dir().join(format!("tollgate-tls-{}-{port}", std::process::id()));
    certificates(&directory);
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let server = Server::start_with(
        redis(),
        &[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &file("server.crt"),
            "--tls-key-file",
            &file("server.key"),
            "--tls-ca-cert-file",
            &file("ca.crt"),
            "--tls-auth-clients",
            "no",
        ],
    );
    // What a process believes is in its environment.
    let decides = |believed: &str| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client"])
            .env(URL, format!("rediss://127.0.0.1:{port}/"))
            .env("SSL_CERT_FILE", believed)
            .output()
            .unwrap()
            .status
            .success()
    };
    assert!(decides(&file("ca.crt")), "the authority is believed");
    // An authority of the same name that has signed nothing.
    let other = directory.join("other");
    certificates(&other);
    assert!(!decides(other.join("ca.crt").to_str().unwrap()), "another one must not be");
    assert_eq!(server.calls_of("evalsha"), 1);
    let _ = std::fs::remove_dir_all(directory);
}
