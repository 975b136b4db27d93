//! A proxy that loses answers: the server has carried a command out, and the connection ends before anybody hears of it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Its threads end with the connections they serve; the one that listens, with the test.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    loses_next: AtomicBool,
    lost: AtomicU64,
}

impl Proxy {
    pub(crate) fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect(("127.0.0.1", server_port)).unwrap();
                let (from_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || copy(from_client, to_server, || true));
                let serving = Arc::clone(&serving);
                thread::spawn(move || copy(server, client, || serving.lets_pass()));
            }
        });
        Self { port, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Drops the connection in place of the next answer.
    pub(crate) fn lose_next_answer(&self) {
        self.shared.loses_next.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn lets_pass(&self) -> bool {
        let loses = self.loses_next.swap(false, Ordering::SeqCst);
        self.lost.fetch_add(u64::from(loses), Ordering::SeqCst);
        !loses
    }
}

/// Copies until either side ends or what was read may not pass; then ends both.
fn copy(mut from: TcpStream, mut to: TcpStream, may_pass: impl Fn() -> bool) {
    let mut buffer = [0; 4_096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !may_pass() || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
