//! Memory a key: each limiter in a process of its own, which says by how much it grew.

use crate::peers::{self, Key, Peer, Setup, Traffic};
use std::process::Command;
use tollgate_bench::{Scale, key, progress};

/// The argument that makes this program measure one limiter and print the bytes.
const FLAG: &str = "--memory-of";

/// Bytes a live key, with numbers and with texts of 20 bytes; none where the system does not tell.
pub struct Memory {
    pub name: &'static str,
    pub is_ours: bool,
    pub numbers: Option<f64>,
    pub texts: Option<f64>,
}

pub fn measure(scale: Scale) -> Vec<Memory> {
    let keys: u64 = scale.pick(1_000, 1_000_000, 5_000_000);
    let children = peers::keyed::<u64>().into_iter().filter(|peer| !peer.is_variant).map(|peer| {
        progress(&format!("memory: {}", peer.name));
        let child = |kind: &str| {
            let program = std::env::current_exe().ok()?;
            let output =
                Command::new(program).args([FLAG, peer.name, kind, &keys.to_string()]).output().ok()?;
            let bytes: f64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
            Some(bytes / keys as f64)
        };
        Memory { name: peer.name, is_ours: peer.is_ours(), numbers: child("numbers"), texts: child("texts") }
    });
    children.collect()
}

/// What a child does, if this is one.
pub fn is_child() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [flag, name, kind, keys] = arguments.as_slice() else { return false };
    if flag != FLAG {
        return false;
    }
    let keys = keys.parse().expect("a number of keys");
    let bytes = if kind == "texts" { grown::<String>(name, keys) } else { grown::<u64>(name, keys) };
    // Nothing is printed where the system does not tell.
    if let Some(bytes) = bytes {
        println!("{bytes}");
    }
    true
}

fn grown<K: Key>(name: &str, keys: u64) -> Option<u64> {
    let peer: Peer<K> = peers::keyed().into_iter().find(|peer| peer.name == name)?;
    let before = resident_bytes()?;
    let limiter = (peer.build)(Setup::new(Traffic::Refuse, keys as usize));
    for rank in 0..keys {
        limiter.decide(&[K::of(key(rank))]);
    }
    let after = resident_bytes()?;
    // Alive until here.
    drop(limiter);
    Some(after.saturating_sub(before))
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}
