//! The page in a real browser: it renders, in light and dark and on a phone, nothing is logged to the console, and its
//! numbers are those of the JSON output and of the terminal. Pictures of it are kept in `target/tmp`.
//!
//! Without a Chromium the test is passed over, unless `TOLLGATE_NEED_CHROMIUM` is set.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{generated, path, text, tollgate};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
const PHONE_PX: u64 = 390;

const PATIENCE: Duration = Duration::from_secs(60);

/// One browser at a time: several would wait for each other.
static BROWSER: Mutex<()> = Mutex::new(());

/// What a browser makes of a file: the page after loading, and what it logged. Nothing if there is no browser.
fn browsed(file: &Path, arguments: &[&str]) -> Option<(String, String)> {
    let _alone = BROWSER.lock().unwrap_or_else(PoisonError::into_inner);
    for name in NAMES {
        if Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()) {
            // On a busy machine a browser may hang for once.
            let seen = launched(name, file, arguments).or_else(|_| launched(name, file, arguments));
            return Some(seen.unwrap_or_else(|why| panic!("{name}: {why}")));
        }
    }
    assert!(std::env::var_os("TOLLGATE_NEED_CHROMIUM").is_none(), "no Chromium found");
    println!("skipped: no Chromium found");
    None
}

fn launched(name: &str, file: &Path, arguments: &[&str]) -> Result<(String, String), String> {
    let profile = tempfile::tempdir().unwrap();
    let mut child = Command::new(name)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000"])
        .arg(format!("--user-data-dir={}", path(profile.path())))
        .args(arguments)
        .arg(format!("file://{}", path(file)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let until = Instant::now() + PATIENCE;
    let (out, log) = (read_aside(child.stdout.take().unwrap()), read_aside(child.stderr.take().unwrap()));
    let read = [out, log].map(|words| words.recv_timeout(until.saturating_duration_since(Instant::now())));
    let [Ok(out), Ok(log)] = read else {
        child.kill().map_err(|error| error.to_string())?;
        child.wait().map_err(|error| error.to_string())?;
        return Err(format!("not done after {} s", PATIENCE.as_secs()));
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok((out, log)) } else { Err(format!("{status}\n{log}")) }
}

/// Reads to the end on a thread of its own.
fn read_aside(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read until an error is all there is.
        let _ = from.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// The page after loading, and what was logged.
fn dumped(file: &Path, arguments: &[&str]) -> Option<(String, String)> {
    browsed(file, &[&["--dump-dom"], arguments].concat())
}

/// Keeps a picture of a page among the files of the build.
fn pictured(file: &Path, name: &str, size: &str, arguments: &[&str]) {
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&picture);
    let (kept, window) = (format!("--screenshot={}", path(&picture)), format!("--window-size={size}"));
    browsed(file, &[&[kept.as_str(), &window, "--hide-scrollbars"], arguments].concat()).unwrap();
    let bytes = fs::read(&picture).unwrap();
    // An empty page would be a few thousand bytes.
    assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 30_000, "{} bytes", bytes.len());
    println!("a picture of the page: {}", picture.display());
}

/// Looks at the page from inside, and tells the page around it.
const LOOK: &str = r#"<script>
addEventListener('load', () => {
  const box = e => e.getBoundingClientRect();
  const svgs = [...document.querySelectorAll('svg')];
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    scroll: document.documentElement.scrollWidth,
    page: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    text: Object.fromEntries([...document.querySelectorAll('[id]')].map(e => [e.id, e.innerText])),
    clients: [...document.querySelectorAll('tr.client')].map(r => [...r.cells].map(c => c.textContent)),
    svgs: svgs.length,
    flat: svgs.filter(s => box(s).width < 20 || box(s).height < 10).length,
    drawn: [...document.querySelectorAll('svg.time rect')].filter(r => box(r).height > 0).length,
    limits: [...document.querySelectorAll('line.limit')].filter(l => box(l).height > 10).length,
  }), '*');
});
</script>"#;

/// The page in a frame of some width, seen from inside.
fn look(directory: &Path, page: &str, width_px: u64, arguments: &[&str]) -> Option<Value> {
    let open = page.replace("style-src", "script-src 'unsafe-inline'; style-src");
    fs::write(directory.join("look.html"), open.replace("</body>", &format!("{LOOK}</body>"))).unwrap();
    let around = directory.join("around.html");
    let frame = format!(
        "<!doctype html><pre id=seen></pre>\
         <script>addEventListener('message', e => document.getElementById('seen').textContent = e.data)</script>\
         <iframe src=look.html style='width:{width_px}px;height:900px;border:0'></iframe>"
    );
    fs::write(&around, frame).unwrap();
    let (dom, log) = dumped(&around, arguments)?;
    let seen = dom.split("<pre id=\"seen\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let seen = seen.unwrap_or_else(|| panic!("{dom}\n{log}"));
    let seen = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Some(serde_json::from_str(&seen).unwrap_or_else(|error| panic!("{error}: {seen}\n{log}")))
}

fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

#[test]
fn the_page_renders_and_its_numbers_are_right() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 20_000);
    // A log is written by strangers.
    let evil = "<script>console.error(1)</script><b>\"x\"&";
    let mut lines = fs::read_to_string(&log).unwrap();
    let model = lines.lines().next().unwrap().split_once(' ').unwrap().1.to_owned();
    (0..50).for_each(|_| lines.insert_str(0, &format!("{} {model}\n", evil.replace(' ', ""))));
    fs::write(&log, lines).unwrap();

    let page_file = directory.path().join("page.html");
    let arguments = [
        "replay",
        path(&log),
        "-p",
        "2/s burst 10; sliding 60/min",
        "-p",
        "log 20/min",
        "--html",
        path(&page_file),
    ];
    let report: Value = serde_json::from_str(&text(&[&arguments[..], &["--json"]].concat())).unwrap();
    let shown = text(&arguments);
    let page = fs::read_to_string(&page_file).unwrap();
    assert!(
        !page.contains("http://") && !page.contains("https://") && !page.contains("<script"),
        "needs nothing else"
    );

    let Some((_, log)) = dumped(&page_file, &[]) else { return };
    assert!(!log.contains("CONSOLE"), "{log}");
    // The same look would have seen it.
    let noisy = directory.path().join("noisy.html");
    fs::write(&noisy, "<script>undefined.x</script>").unwrap();
    assert!(dumped(&noisy, &[]).unwrap().1.contains("CONSOLE"));

    let light = look(directory.path(), &page, 1_100, &["--blink-settings=preferredColorScheme=1"]).unwrap();
    let dark = look(directory.path(), &page, PHONE_PX, &["--blink-settings=preferredColorScheme=0"]).unwrap();
    assert_ne!(light["page"], dark["page"]);
    assert_ne!(light["ink"], dark["ink"]);
    assert_eq!(dark["width"], PHONE_PX);
    for seen in [&light, &dark] {
        assert!(
            seen["scroll"].as_u64() <= seen["width"].as_u64(),
            "wider than its window: {}",
            seen["scroll"]
        );
        assert!(seen["svgs"].as_u64().unwrap() >= 8 && seen["flat"] == 0, "{seen}");
        assert!(seen["drawn"].as_u64().unwrap() > 50, "{}", seen["drawn"]);
        assert!(seen["limits"].as_u64().unwrap() >= 3, "{}", seen["limits"]);
        let text =
            |id: &str| digits(seen["text"][id].as_str().unwrap_or_else(|| panic!("{id} is not there")));
        let mut clients = seen["clients"].as_array().unwrap().iter();
        for (index, outcome) in report["policies"].as_array().unwrap().iter().enumerate() {
            for number in ["requests", "admitted", "refused"] {
                assert_eq!(text(&format!("p{index}-{number}")), outcome[number].to_string());
            }
            assert_eq!(
                text(&format!("p{index}-touched0")),
                outcome["scopes"][0]["clients"]["touched"].to_string()
            );
            for (number, rule) in outcome["rules"].as_array().unwrap().iter().enumerate() {
                assert_eq!(text(&format!("p{index}-rule{number}")), rule["refused"].to_string());
            }
            for client in outcome["scopes"][0]["top"].as_array().unwrap() {
                let row = clients.next().unwrap();
                assert_eq!(row[0], client["key"]);
                let cells = [1, 2, 3].map(|cell| digits(row[cell].as_str().unwrap()));
                let numbers = ["requests", "admitted", "refused"].map(|name| client[name].to_string());
                assert_eq!(cells, numbers);
            }
        }
        assert_eq!(clients.next(), None);
    }
    // And the terminal says the same.
    let shown = digits(&shown);
    for outcome in report["policies"].as_array().unwrap() {
        assert!(shown.contains(&format!("{}{}", outcome["admitted"], outcome["refused"])));
    }
}

/// The rows of a table on the terminal, from the line that begins with `heading` to the next empty one.
fn rows(shown: &str, heading: &str) -> Vec<Vec<String>> {
    let table = shown.lines().skip_while(|line| !line.trim_start().starts_with(heading)).skip(1);
    let cells = |line: &str| {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    table.take_while(|line| !line.is_empty()).map(cells).collect()
}

/// One policy, whose account on the terminal is a full one: row by row the same as on the page.
#[test]
fn the_terminal_says_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let log = generated(directory.path(), "traffic.log", 20_000);
    let page_file = directory.path().join("page.html");
    let policy = "1/s burst 3 named rate; sliding 20/min named minute; log 15/2min named slow";
    let shown = text(&["replay", path(&log), "-p", policy, "--html", path(&page_file)]);
    let Some((_, log)) = dumped(&page_file, &[]) else { return };
    assert!(!log.contains("CONSOLE"), "{log}");
    let page = fs::read_to_string(&page_file).unwrap();
    let seen = look(directory.path(), &page, 1_100, &[]).unwrap();
    let on_page = |id: &str| digits(seen["text"][id].as_str().unwrap_or_else(|| panic!("{id} is not there")));

    for word in ["admitted", "refused"] {
        let line = shown.lines().find(|line| line.starts_with(word)).unwrap();
        let number = line[word.len()..].trim().split("  ").next().unwrap();
        assert_eq!(digits(number), on_page(&format!("p0-{word}")), "{line}");
    }
    let clients = shown.lines().find(|line| line.starts_with("clients: ")).unwrap();
    let touched = clients.split(" seen, ").nth(1).unwrap().split(" refused").next().unwrap();
    assert_eq!(digits(touched), on_page("p0-touched0"));

    let rules = rows(&shown, "by rule");
    assert_eq!(rules.len(), 3, "{shown}");
    for (number, rule) in rules.iter().enumerate() {
        assert_eq!(digits(&rule[1]), on_page(&format!("p0-rule{number}")), "{rule:?}");
    }
    let top = rows(&shown, "most refused");
    assert!(top.len() >= 10, "{shown}");
    for (row, client) in top.iter().zip(seen["clients"].as_array().unwrap()) {
        assert_eq!(row[0], client[0].as_str().unwrap());
        for cell in 1..4 {
            assert_eq!(digits(&row[cell]), digits(client[cell].as_str().unwrap()), "{row:?}");
        }
    }
    pictured(&page_file, "page-light.png", "1100,2200", &["--blink-settings=preferredColorScheme=1"]);
    pictured(&page_file, "page-dark.png", "500,2600", &["--blink-settings=preferredColorScheme=0"]);
}

#[test]
fn the_page_of_the_demonstration_renders() {
    let directory = tempfile::tempdir().unwrap();
    let page_file = directory.path().join("page.html");
    let output = tollgate(&["--requests", "60000", "--json", "--html", path(&page_file)]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let check = &report["demonstration"]["check"];
    assert_eq!(
        (&check["over_bound"], &check["undue"], &check["not_tight"]),
        (&0.into(), &0.into(), &0.into())
    );
    let Some((_, log)) = dumped(&page_file, &[]) else { return };
    assert!(!log.contains("CONSOLE"), "{log}");
    let page = fs::read_to_string(&page_file).unwrap();
    let seen = look(directory.path(), &page, PHONE_PX, &[]).unwrap();
    assert_eq!(
        digits(seen["text"]["p0-refused"].as_str().unwrap()),
        report["policies"][0]["refused"].to_string()
    );
    assert!(seen["flat"] == 0 && seen["drawn"].as_u64().unwrap() > 50);
    assert!(seen["scroll"].as_u64() <= Some(PHONE_PX));
    // A client of one rule may be a client of the other: each says how many it has.
    for (number, scope) in report["policies"][0]["scopes"].as_array().unwrap().iter().enumerate() {
        let touched = digits(seen["text"][format!("p0-touched{number}")].as_str().unwrap());
        assert_eq!(touched, scope["clients"]["touched"].to_string());
    }
    pictured(&page_file, "page-demonstration.png", "1100,3000", &[]);
}
