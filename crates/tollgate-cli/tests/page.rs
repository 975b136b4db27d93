//! The page in a real browser: it renders, in light and dark and on a phone, nothing is logged to the console, and its
//! numbers are those of the JSON output.
//!
//! Without a Chromium the test is passed over, unless `TOLLGATE_NEED_CHROMIUM` is set.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{generated, path, text, tollgate};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
const PHONE_PX: u64 = 390;

/// What a browser makes of a file: the page after loading, and what it logged.
fn browsed(file: &Path, arguments: &[&str]) -> Option<(String, String)> {
    let profile = tempfile::tempdir().unwrap();
    for name in NAMES {
        let output = Command::new(name)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", path(profile.path())))
            .args(arguments)
            .arg(format!("file://{}", path(file)))
            .stdin(Stdio::null())
            .output();
        if let Ok(output) = output {
            let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            return Some((words(output.stdout), words(output.stderr)));
        }
    }
    assert!(std::env::var_os("TOLLGATE_NEED_CHROMIUM").is_none(), "no Chromium found");
    println!("skipped: no Chromium found");
    None
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
    let (dom, log) = browsed(&around, arguments)?;
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

    let Some((_, log)) = browsed(&page_file, &[]) else { return };
    assert!(!log.contains("CONSOLE"), "{log}");
    // The same look would have seen it.
    let noisy = directory.path().join("noisy.html");
    fs::write(&noisy, "<script>undefined.x</script>").unwrap();
    assert!(browsed(&noisy, &[]).unwrap().1.contains("CONSOLE"));

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
                text(&format!("p{index}-touched")),
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
    let Some((_, log)) = browsed(&page_file, &[]) else { return };
    assert!(!log.contains("CONSOLE"), "{log}");
    let page = fs::read_to_string(&page_file).unwrap();
    let seen = look(directory.path(), &page, PHONE_PX, &[]).unwrap();
    assert_eq!(
        digits(seen["text"]["p0-refused"].as_str().unwrap()),
        report["policies"][0]["refused"].to_string()
    );
    assert!(seen["flat"] == 0 && seen["drawn"].as_u64().unwrap() > 50);
    assert!(seen["scroll"].as_u64() <= Some(PHONE_PX));
}
