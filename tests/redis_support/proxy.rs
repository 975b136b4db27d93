//! A proxy that loses answers: the server has carried a command out, and the connection ends before anybody hears of it,
//! or goes on without a word, as if the other end had vanished.

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
    connections: AtomicU64,
    /// One more than the connection over which nothing passes any more.
    mute: AtomicU64,
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
                thread::spawn(move || copy(from_client, to_server, || Passes::Yes));
                let serving = Arc::clone(&serving);
                let number = serving.connections.fetch_add(1, Ordering::SeqCst) + 1;
                thread::spawn(move || copy(server, client, || serving.passes(number)));
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

    /// From now on, nothing comes back over the connection that was made first; it stays open.
    pub(crate) fn mute_first(&self) {
        self.shared.mute.store(1, Ordering::SeqCst);
    }

    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn passes(&self, number: u64) -> Passes {
        if self.mute.load(Ordering::SeqCst) == number {
            return Passes::Unsaid;
        }
        let loses = self.loses_next.swap(false, Ordering::SeqCst);
        self.lost.fetch_add(u64::from(loses), Ordering::SeqCst);
        if loses { Passes::No } else { Passes::Yes }
    }
}

enum Passes {
    Yes,
    /// And the connection ends.
    No,
    /// And nobody is told.
    Unsaid,
}

/// Copies until either side ends or what was read may not pass; then ends both.
fn copy(mut from: TcpStream, mut to: TcpStream, passes: impl Fn() -> Passes) {
    let mut buffer = [0; 4_096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        match passes() {
            Passes::Yes if to.write_all(&buffer[..read]).is_ok() => {}
            Passes::Unsaid => {}
            Passes::Yes | Passes::No => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
