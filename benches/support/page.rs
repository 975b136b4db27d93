//! Results as a page: a markdown file that says where, when, and with what it was made.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

/// Where results are kept.
pub fn results_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results")
}

/// Writes a file of results, and says so.
pub fn save(name: &str, content: &str) {
    let path = results_folder().join(name);
    match std::fs::write(&path, content) {
        Ok(()) => eprintln!("written: {}", path.display()),
        Err(error) => eprintln!("cannot write {}: {error}", path.display()),
    }
}

/// Machine, date and compiler in one line.
pub fn provenance() -> String {
    let rustc = std::process::Command::new("rustc").arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "an unknown rustc".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    format!("Machine: {}. Date: {}. Compiler: {rustc}, release, fat LTO.", machine(), today())
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").trim()
    };
    let guest = if info.contains(" hypervisor") { ", a virtual machine" } else { "" };
    format!(
        "{} cores of {} (family {}, model {}{guest}), {} {}",
        crate::cores(),
        field("model name"),
        field("cpu family"),
        field("model\t"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

/// The date in universal time.
fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day counted from 1970-01-01.
fn civil(mut day: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    (year, month as u64 + 1, day + 1)
}

/// The version of a package that this was built with, by the lock file.
pub fn version(package: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    version_in(&std::fs::read_to_string(path).unwrap_or_default(), package).unwrap_or_else(|| "?".to_owned())
}

fn version_in(lock: &str, package: &str) -> Option<String> {
    let wanted = format!("name = \"{package}\"");
    // Of several versions the last, which is the newest: dependents of old ones pull those in.
    let versions = lock.split("[[package]]").filter(|entry| entry.lines().any(|line| line == wanted));
    let entry = versions.last()?;
    let line = entry.lines().find_map(|line| line.strip_prefix("version = \""))?;
    line.strip_suffix('"').map(str::to_owned)
}

/// A table of markdown.
#[derive(Clone, Debug)]
pub struct Table(String);

impl Table {
    /// A table with a heading for each column.
    pub fn new<T: AsRef<str>>(headings: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self(String::new());
        table.row(headings);
        let columns = table.0.matches('|').count() - 1;
        table.0.push_str(&"|---".repeat(columns));
        table.0.push_str("|\n");
        table
    }

    /// One more row.
    pub fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.0.push('|');
        for cell in cells {
            let _ = write!(self.0, " {} |", cell.as_ref());
        }
        self.0.push('\n');
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Nanoseconds in the unit that reads best.
pub fn time(ns: f64) -> String {
    match ns {
        _ if !ns.is_finite() => "–".to_owned(),
        _ if ns < 999.5 => format!("{ns:.1} ns"),
        _ if ns < 999_500.0 => format!("{:.1} µs", ns / 1e3),
        _ => format!("{:.1} ms", ns / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_775), (2026, 11, 18));
    }

    #[test]
    fn the_lock_file_names_versions() {
        let lock =
            "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\n[[package]]\nname = \"ab\"\nversion = \"9\"\n";
        assert_eq!(version_in(lock, "a").as_deref(), Some("1.2.3"));
        assert_eq!(version_in(lock, "b"), None);
        assert!(version("governor").starts_with("0."));
    }

    #[test]
    fn tables_have_a_rule_under_their_headings() {
        let mut table = Table::new(["a", "b"]);
        table.row(["1", "2"]);
        assert_eq!(table.to_string(), "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
