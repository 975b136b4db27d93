//! The house rules as a test: what a reader may rely on without looking. Each rule is shown to notice when it
//! is broken.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "tidy/examples.rs"]
mod examples;
#[path = "tidy/links.rs"]
mod links;

use std::fs;
use std::path::Path;

/// Longer than this, a file needs a reason. What is said of public items is not counted: there has to be much of it.
const LINES_MAX: usize = 600;

/// The files that are longer, and why.
const LONG: &[(&str, &str)] = &[
    ("tests/keyed.rs", "one suite of what a keyed limiter promises; its parts share their scenes"),
    ("tests/snapshot.rs", "one format: damage, restart and closing are tried on the same snapshots"),
    ("tests/tiers.rs", "one mapping of states between policies, case by case"),
];

/// What each inner module may import from the rest of the crate. Those that are not here may import anything.
const IMPORTS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("sync", &[]),
    ("cpu", &[]),
    ("horizon", &["sync"]),
    ("clock", &["cpu", "sync"]),
    ("parse", &["error", "policy"]),
    ("policy", &["algorithm", "compile", "error", "parse"]),
    ("algorithm", &["error", "policy"]),
    ("compile", &["algorithm", "error", "policy"]),
    ("decision", &["algorithm"]),
    ("guard", &["algorithm", "compile", "error"]),
    ("policies", &["algorithm", "compile", "error", "policy", "sync"]),
    ("charge", &["algorithm", "charge", "compile", "decision", "sync"]),
    ("table", &["algorithm", "charge", "compile", "cpu", "error", "sync", "table"]),
];

/// Where a rule does not apply (a file, or a directory with all that is in it), and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("opening", "crates/tollgate-macros/tests/refused/", "what the compiler says of them names their lines"),
    ("leftover", "tests/snapshot.rs", "a test that another one runs as a process of its own"),
    ("leftover", "tests/waiting/tasks.rs", "a machine's punctuality, if it does nothing else (--deep)"),
    ("atomics", "src/sync.rs", "the one door"),
    ("atomics", "src/table/tests.rs", "threads of a test, which no model looks into"),
    ("ordering", "src/table/tests.rs", "as above"),
    ("clock", "src/clock.rs", "the one place"),
    ("clock", "src/cpu.rs", "the instruction that the clock reads"),
    ("clock", "src/reserve/future.rs", "a timer of tokio's is set by tokio's time"),
    ("clock", "src/redis/", "deadlines of a network are tokio's too"),
    ("example", "src/macros.rs", "what an attribute writes, and nobody else"),
    ("example", "src/sync.rs", "what models break on purpose"),
    ("example", "src/table/claim.rs", "where models stop a thread"),
    ("unsafe", "src/cpu.rs", "two instructions, and a word to the system"),
    ("unsafe", "src/table/memory.rs", "zeroed memory from the system"),
];

const ORDERINGS: [&str; 7] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst", "CLAIM", "SEARCH"];

/// How far above an ordering its reason may stand, in lines.
const REASON_LINES: usize = 8;

/// What is wrong with a file, as `rule: line: what`. The path is from the root of the repository.
fn complaints(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut complain = |rule: &str, line: usize, what: &str| {
        if !EXCEPTIONS.iter().any(|(excepted, place, _)| *excepted == rule && covers(place, path)) {
            found.push(format!("{path}:{line}: {rule}: {what}"));
        }
    };
    for (line, content) in numbered(text) {
        for host in package_hosts() {
            if content.to_lowercase().contains(&host) {
                complain("host", line, "names a package host");
            }
        }
    }
    if !path.ends_with(".rs") {
        return found;
    }
    if !text.starts_with("//! ") && !text.starts_with("#![doc = include_str!(") {
        complain("opening", 1, "a file begins with a line that says what it is about");
    }
    let is_long = text.lines().filter(|line| !line.trim_start().starts_with("///")).count() > LINES_MAX;
    match (is_long, LONG.iter().any(|(long, _)| *long == path)) {
        (true, false) => complain("length", LINES_MAX, "a file of more than 600 lines needs a reason"),
        (false, true) => complain("length", 1, "does not need its reason to be long any more"),
        _ => {}
    }
    for (line, content) in numbered(text) {
        let word = |needle: &str| has_word(content, needle);
        if ["todo!", "unimplemented!", "dbg!", "FIXME", "XXX"].iter().any(|left| content.contains(left)) {
            complain("leftover", line, "something is left to be done");
        }
        if content.trim_start().starts_with("#[ignore") {
            complain("leftover", line, "a test that is not run");
        }
        if !path.starts_with("src/") || content.trim_start().starts_with("//") {
            continue;
        }
        if word("unsafe") {
            complain("unsafe", line, "only the allocation, and what processor and system are told, are");
        }
        if ["sync::atomic", "portable_atomic", "loom::", "spin_loop"]
            .iter()
            .any(|name| content.contains(name))
        {
            complain("atomics", line, "come through src/sync.rs");
        }
        if ["Instant::now", "SystemTime", "quanta::", "_rdtsc"].iter().any(|name| content.contains(name)) {
            complain("clock", line, "time is read in src/clock.rs");
        }
    }
    if let Some(inside) = path.strip_prefix("src/") {
        let module = inside.split(['/', '.']).next().unwrap_or_default();
        for (line, imported) in imports(text) {
            let may = IMPORTS.iter().find(|(name, _)| *name == module).map(|(_, may)| *may);
            if may.is_some_and(|may| !may.contains(&imported)) {
                complain("imports", line, &format!("`{module}` knows nothing of `{imported}`"));
            }
        }
        for (line, what) in examples::missing(text) {
            complain("example", line, &what);
        }
        for (line, ordering) in unexplained(text) {
            complain("ordering", line, &format!("{ordering} has no reason beside it"));
        }
    }
    found
}

/// Put together here, so that this file names none.
fn package_hosts() -> [String; 12] {
    [
        ["crat", "es.io"],
        ["doc", "s.rs"],
        ["git", "hub"],
        ["git", "lab"],
        ["bit", "bucket"],
        ["code", "berg"],
        ["py", "pi.org"],
        ["np", "mjs"],
        ["deb.deb", "ian.org"],
        ["static.rust", "-lang.org"],
        ["hub.doc", "ker.com"],
        ["docs", "rs)"],
    ]
    .map(|parts| parts.concat())
}

fn covers(exception: &str, path: &str) -> bool {
    exception == path || exception.ends_with('/') && path.starts_with(exception)
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
}

/// The modules of the crate that a file names, outside comments and its own tests.
fn imports(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let own_tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    for (line, content) in numbered(&text[..own_tests]) {
        if content.trim_start().starts_with("//") {
            continue;
        }
        for (at, _) in content.match_indices("crate::") {
            let name = &content[at + "crate::".len()..];
            let end = name.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(name.len());
            if end > 0 {
                found.push((line, &name[..end]));
            }
        }
    }
    found
}

/// Orderings without a reason: a comment shortly above that begins with the name of one of those in the line, or
/// one anywhere above that says it speaks of those below too.
fn unexplained(text: &str) -> Vec<(usize, &'static str)> {
    let lines: Vec<&str> = text.lines().collect();
    let reason = |line: &str, name: &str, below: &str| {
        line.split_once("// ").is_some_and(|(_, said)| {
            said.strip_prefix(name).is_some_and(|said| said.starts_with(below) && said.contains(':'))
        })
    };
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        if line.starts_with("//") || line.starts_with("use ") || line.starts_with("pub(crate) ") {
            continue;
        }
        let names = |name: &&&str| match **name {
            constant @ ("CLAIM" | "SEARCH") => has_word(line, constant),
            name => line.contains(&format!("Ordering::{name}")),
        };
        let named: Vec<&'static str> = ORDERINGS.iter().filter(|name| names(name)).copied().collect();
        let above = &lines[index.saturating_sub(REASON_LINES)..index];
        let is_explained = named.iter().any(|name| {
            above.iter().any(|line| reason(line, name, ""))
                || lines[..index].iter().any(|line| reason(line, name, ", here and below"))
        });
        if let (Some(&first), false) = (named.first(), is_explained) {
            found.push((index + 1, first));
        }
    }
    found
}

/// Benchmarks that a page tells to run and that are not there.
fn unknown_benches(root: &Path, path: &str, text: &str) -> Vec<String> {
    let named = text.match_indices("--bench ").filter_map(|(at, named)| {
        text[at + named.len()..].split(|c: char| !c.is_ascii_lowercase() && c != '_').next()
    });
    named
        .filter(|name| !root.join(format!("benches/{name}.rs")).exists())
        .map(|name| format!("{path}: bench: there is no benchmark `{name}`"))
        .collect()
}

/// Every file that is written by hand, from the root.
fn files(root: &Path, directory: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let kind = entry.file_type().unwrap();
        if name.starts_with('.') || name == "target" || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() {
            files(root, &path, found);
        } else if let (false, Ok(text)) = (name.ends_with(".lock"), fs::read_to_string(&path)) {
            found.push((path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), text));
        }
    }
}

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    files(root, root, &mut all);
    assert!(all.iter().any(|(path, _)| path == "src/sync.rs"), "these are not the files of the repository");
    let ours = "tests/tidy.rs";
    let mut found = Vec::new();
    for (path, text) in &all {
        // What is forbidden stands here, to be noticed; but for the names of hosts.
        let said = complaints(path, text);
        found.extend(said.into_iter().filter(|said| path != ours || said.contains(" host: ")));
        if path.ends_with(".md") {
            found.extend(unknown_benches(root, path, text));
        }
    }
    found.extend(links::dead(root, &all));
    let exists = |path: &str| all.iter().any(|(file, _)| covers(path, file));
    let listed = LONG.iter().map(|(path, _)| *path);
    found.extend(listed.filter(|path| !exists(path)).map(|path| format!("{path}: is not there to be long")));
    assert!(found.is_empty(), "{} complaints:\n{}", found.len(), found.join("\n"));
}

/// Every file with an ordering has its place on the page about them, by itself or with its directory.
#[test]
fn every_ordering_is_on_its_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/memory-ordering.md")).unwrap();
    let mut all = Vec::new();
    files(root, &root.join("src"), &mut all);
    for (path, text) in all.iter().filter(|(path, _)| path != "src/table/tests.rs") {
        let names_one = ORDERINGS[..5].iter().any(|name| text.contains(&format!("Ordering::{name}")));
        let directories = path.match_indices('/').skip(1).map(|(end, _)| &path[..=end]);
        let is_there = directories.chain([path.as_str()]).any(|place| page.contains(&format!("`{place}`")));
        assert!(!names_one || is_there, "docs/memory-ordering.md does not speak of {path}");
    }
}

/// The steps of `./test` by their kind: of every run, and of long ones alone.
fn steps<'a>(script: &'a str, kind: &str) -> Vec<&'a str> {
    let (_, list) = script.split_once(&format!("\n{kind}=(\n")).unwrap();
    let lines = list.lines().take_while(|line| *line != ")");
    lines.map(|line| line.trim().trim_start_matches('"').split('|').next().unwrap()).collect()
}

/// The page says of every step when it is run.
#[test]
fn every_step_is_on_its_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(root.join("test")).unwrap();
    let page = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    for (kind, is_of_every_run) in [("steps", true), ("deep_steps", false)] {
        for step in steps(&script, kind) {
            let row =
                page.lines().find(|line| line.starts_with("| `") && line.contains(&format!("`{step}`")));
            let is_said = row.map(|row| !row.contains("| no |"));
            assert_eq!(is_said, Some(is_of_every_run), "CONTRIBUTING.md and the step `{step}`");
        }
    }
}

/// Asserts that a file is complained about once, by this rule.
#[track_caller]
fn noticed(rule: &str, path: &str, text: &str) {
    let found = complaints(path, text);
    assert_eq!(found.len(), 1, "{path}: {text:?}: {found:?}");
    assert!(found[0].contains(&format!(" {rule}: ")), "{found:?}");
}

#[track_caller]
fn passes(path: &str, text: &str) {
    assert_eq!(complaints(path, text), [""; 0], "{path}: {text:?}");
}

#[test]
fn a_file_that_says_nothing_of_itself_is_noticed() {
    noticed("opening", "src/gate.rs", "use std::fmt;\n");
    noticed("opening", "tests/laws.rs", "\n//! Late.\n");
    passes("src/gate.rs", "//! The gate.\n");
    passes("src/tower/mod.rs", "#![doc = include_str!(\"../../docs/tower.md\")]\n");
    passes("docs/tower.md", "# Tower\n");
}

#[test]
fn a_long_file_without_a_reason_is_noticed() {
    let lines = |count: usize| format!("//! Long.{}", "\n".repeat(count));
    noticed("length", "src/gate.rs", &lines(LINES_MAX + 1));
    passes("src/gate.rs", &lines(LINES_MAX));
    passes("src/gate.rs", &lines(LINES_MAX - 1).replace('\n', "\n/// Said.\n"));
    passes("tests/keyed.rs", &lines(LINES_MAX + 1));
    noticed("length", "tests/keyed.rs", "//! Short by now.\n");
}

#[test]
fn what_is_left_to_be_done_is_noticed() {
    for left in ["todo!()", "unimplemented!()", "// FIXME: later", "dbg!(now)"] {
        noticed("leftover", "crates/tollgate-cli/src/main.rs", &format!("//! The tool.\n{left};\n"));
    }
    noticed("leftover", "tests/laws.rs", "//! Laws.\n#[ignore]\n");
    noticed("leftover", "tests/laws.rs", "//! Laws.\n    #[ignore = \"slow\"]\n");
    passes("tests/laws.rs", "//! Laws.\n// Not to ignore.\n");
}

#[test]
fn unsafe_code_is_noticed() {
    noticed("unsafe", "src/gate.rs", "//! The gate.\nlet word = unsafe { read(word) };\n");
    passes("src/gate.rs", "//! The gate.\n// Nothing unsafe.\n#![deny(unsafe_code)]\n");
    passes("src/cpu.rs", "//! Instructions.\nunsafe { prefetch(line) };\n");
}

#[test]
fn atomics_beside_the_door_are_noticed() {
    for import in
        ["std::sync::atomic::AtomicU64", "portable_atomic::AtomicU64", "loom::thread", "std::hint::spin_loop"]
    {
        noticed("atomics", "src/gate.rs", &format!("//! The gate.\nuse {import};\n"));
        passes("src/sync.rs", &format!("//! The door.\nuse {import};\n"));
    }
    passes("src/gate.rs", "//! The gate.\nuse crate::sync::AtomicU64;\n");
    passes("tests/laws.rs", "//! Laws.\nuse std::sync::atomic::AtomicU64;\n");
}

#[test]
fn a_reading_of_another_clock_is_noticed() {
    for reading in ["Instant::now()", "SystemTime::now()", "quanta::Clock::new()"] {
        noticed("clock", "src/limiter.rs", &format!("//! The limiter.\nlet now = {reading};\n"));
        passes("src/clock.rs", &format!("//! The clock.\nlet now = {reading};\n"));
    }
    passes("src/redis/leased/flight.rs", "//! A flight.\nlet began = Instant::now();\n");
}

#[test]
fn an_import_the_wrong_way_is_noticed() {
    noticed("imports", "src/table/slot.rs", "//! Slots.\nuse crate::limiter::Limiter;\n");
    noticed("imports", "src/algorithm/gcra.rs", "//! A step.\nuse crate::sync::AtomicU64;\n");
    noticed("imports", "src/charge/mod.rs", "//! Charging.\nfn f(clock: &crate::clock::Clock) {}\n");
    noticed("imports", "src/decision.rs", "//! The answer.\nuse crate::table::WhenFull;\n");
    passes("src/table/slot.rs", "//! Slots.\nuse crate::sync::AtomicU64;\n/// [`crate::limiter`]\n");
    passes("src/limiter.rs", "//! The limiter.\nuse crate::table::Table;\n");
    passes("src/decision.rs", "//! The answer.\n#[cfg(test)]\nmod tests {\n    use crate::gate::Gate;\n}\n");
}

#[test]
fn an_ordering_without_a_reason_is_noticed() {
    let file = |lines: &str| format!("//! Words.\n{lines}\n");
    let bare = "word.load(Ordering::Relaxed);";
    noticed("ordering", "src/gate.rs", &file(bare));
    noticed("ordering", "src/gate.rs", &file("self.owner.load(SEARCH);"));
    noticed("ordering", "src/gate.rs", &file(&format!("// Acquire: not what stands there.\n{bare}")));
    noticed("ordering", "src/gate.rs", &file(&format!("// Relaxed\n{bare}")));
    let far = "\n".repeat(REASON_LINES);
    noticed("ordering", "src/gate.rs", &file(&format!("// Relaxed: far away.\n{far}{bare}")));
    passes("src/gate.rs", &file(&format!("// Relaxed: a number of its own.\n{bare}")));
    passes("src/gate.rs", &file(&format!("// Relaxed, here and below: numbers.\n{far}{bare}")));
    passes(
        "src/gate.rs",
        &file("// AcqRel: both.\nword.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);"),
    );
    passes("src/gate.rs", &file("use crate::sync::{CLAIM, Ordering};\nif a.cmp(&b) == Ordering::Less {}"));
}

#[test]
fn a_package_host_is_noticed() {
    for host in package_hosts() {
        noticed("host", "docs/tower.md", &format!("# Tower\n\nSee {host}.\n"));
    }
}

#[test]
fn an_unknown_benchmark_is_noticed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = unknown_benches(
        root,
        "README.md",
        "`cargo bench --bench versus`, `cargo bench --bench gone -- --quick`",
    );
    assert_eq!(found, ["README.md: bench: there is no benchmark `gone`"]);
}
