//! Draws what each algorithm lets through of the same demand: the small charts of the documentation.
//!
//! `cargo run --example charts` writes `docs/charts/`, and a test holds what is there against what this draws.
//! The engine decides, by a clock that is moved from one request to the next.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tollgate::{Clock, Error, Gate};

/// What is drawn, one below the other.
pub const POLICIES: [(&str, &str); 4] = [
    ("token bucket", "10/s"),
    ("fixed window", "fixed 10/s"),
    ("sliding window", "sliding 10/s"),
    ("sliding log", "log 10/s"),
];

const SECONDS: u64 = 6;
const SECOND_MS: u64 = 1_000;
/// What one bar stands for.
const BAR_MS: u64 = 100;

// In pixels. The colours are of middling brightness, to be read on light and on dark.
const WIDTH: u64 = 640;
const LEFT: u64 = 16;
const SECOND_WIDTH: u64 = (WIDTH - 2 * LEFT) / SECONDS;
const PANEL: u64 = 72;
const PLOT: u64 = 40;
const HEADER: u64 = 28;
const INK: &str = "#808890";
const PASSED: &str = "#2a8fd8";

/// Requests of one kind.
#[derive(Debug)]
pub struct Demand {
    /// Also the name of the file.
    pub name: &'static str,
    /// What stands above the chart.
    pub title: &'static str,
    /// When each comes, in milliseconds.
    pub at_ms: Vec<u64>,
}

/// The demands that are drawn, the same in every run.
pub fn demands() -> [Demand; 3] {
    let mut random = Random(7);
    let steady = random.requests(0, SECONDS * SECOND_MS, 15);
    let edges = [2, 4].map(|second| second * SECOND_MS);
    let edge = edges.iter().flat_map(|&edge| random.requests(edge - 100, edge + 100, 100)).collect();
    let flood = random.requests(500, 5_000, 40);
    [
        Demand { name: "steady", title: "A steady 15 a second against a limit of 10", at_ms: steady },
        Demand { name: "edge", title: "A few at once, around the edges of the windows", at_ms: edge },
        Demand { name: "flood", title: "A flood of 40 a second that begins within a window", at_ms: flood },
    ]
}

/// When the requests that a policy lets through came.
///
/// # Errors
///
/// A policy that does not parse.
pub fn passed_ms(policy: &str, at_ms: &[u64]) -> Result<Vec<u64>, Error> {
    let (clock, hand) = Clock::manual();
    let gate = Gate::with_clock(policy, clock)?;
    let passes = |&at_ms: &u64| {
        hand.set(Duration::from_millis(at_ms));
        gate.try_acquire().is_allowed()
    };
    Ok(at_ms.iter().copied().filter(passes).collect())
}

/// The most of them in any span of a second.
pub fn most_in_a_second(at_ms: &[u64]) -> usize {
    let within =
        |&from_ms: &u64| at_ms.iter().filter(|&&ms| (from_ms..from_ms + SECOND_MS).contains(&ms)).count();
    at_ms.iter().map(within).max().unwrap_or(0)
}

/// One demand and what each policy makes of it.
///
/// # Errors
///
/// A policy that does not parse.
pub fn chart(demand: &Demand) -> Result<String, Error> {
    let asked = bars(&demand.at_ms);
    let highest = asked.iter().copied().max().unwrap_or(1).max(1);
    let height = HEADER + PANEL * POLICIES.len() as u64 + 22;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <title>{}</title>\n\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"14\" font-weight=\"600\">{}</text>\n",
        demand.title, demand.title
    );
    for (panel, (name, policy)) in (0u64..).zip(POLICIES) {
        let passed = passed_ms(policy, &demand.at_ms)?;
        let label_y = HEADER + PANEL * panel + 14;
        let floor_y = HEADER + PANEL * panel + 22 + PLOT;
        let say = format!(
            "{} of {} pass, at most {} in any second",
            passed.len(),
            demand.at_ms.len(),
            most_in_a_second(&passed)
        );
        let right = LEFT + SECOND_WIDTH * SECONDS;
        let _ = write!(
            svg,
            "<text x=\"{LEFT}\" y=\"{label_y}\">{name}, <tspan font-family=\"monospace\">{policy}</tspan></text>\n\
             <text x=\"{right}\" y=\"{label_y}\" text-anchor=\"end\">{say}</text>\n\
             <path d=\"{}\" opacity=\".35\"/>\n\
             <path d=\"{}\" fill=\"{PASSED}\"/>\n\
             <path d=\"M{LEFT} {floor_y}H{right}{}\" stroke=\"{INK}\" fill=\"none\" opacity=\".6\"/>\n",
            outline(&asked, highest, floor_y),
            outline(&bars(&passed), highest, floor_y),
            (0..=SECONDS).fold(String::new(), |ticks, second| {
                ticks + &format!("M{} {floor_y}v4", LEFT + SECOND_WIDTH * second)
            }),
        );
    }
    for second in 0..=SECONDS {
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\">{second} s</text>",
            LEFT + SECOND_WIDTH * second,
            height - 6
        );
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// How many fall into each bar.
fn bars(at_ms: &[u64]) -> Vec<u64> {
    let count = |bar: u64| at_ms.iter().filter(|&&ms| ms / BAR_MS == bar).count() as u64;
    (0..SECONDS * SECOND_MS / BAR_MS).map(count).collect()
}

fn outline(bars: &[u64], highest: u64, floor_y: u64) -> String {
    let bar_width = SECOND_WIDTH * BAR_MS / SECOND_MS;
    let mut path = String::new();
    for (index, &bar) in (0u64..).zip(bars).filter(|(_, bar)| **bar > 0) {
        let x = LEFT + SECOND_WIDTH * BAR_MS * index / SECOND_MS + 1;
        let height = (PLOT * bar).div_ceil(highest);
        let _ = write!(path, "M{x} {floor_y}v-{height}h{}v{height}z", bar_width - 2);
    }
    path
}

/// Each chart by its name, as a link to the drawing itself: rustdoc has no files beside its pages.
pub fn embedded(charts: &[(&str, String)]) -> String {
    charts.iter().fold(String::new(), |page, (name, svg)| {
        page + &format!("[{name}]: data:image/svg+xml,{}\n", escaped(svg))
    })
}

fn escaped(svg: &str) -> String {
    svg.bytes().fold(String::new(), |uri, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            uri + char::from(byte).encode_utf8(&mut [0; 4])
        }
        _ => uri + &format!("%{byte:02X}"),
    })
}

/// All charts by their names.
///
/// # Errors
///
/// A policy that does not parse.
pub fn charts() -> Result<Vec<(&'static str, String)>, Error> {
    demands().iter().map(|demand| Ok((demand.name, chart(demand)?))).collect()
}

/// Where the charts are.
pub fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/charts"))
}

#[allow(dead_code, reason = "a test takes the rest")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let charts = charts()?;
    fs::create_dir_all(directory())?;
    for (name, svg) in &charts {
        let path = directory().join(format!("{name}.svg"));
        fs::write(&path, svg)?;
        println!("{}", path.display());
    }
    fs::write(directory().join("embedded.md"), embedded(&charts))?;
    Ok(())
}

/// `SplitMix64`: a few random numbers that are the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Requests between two times, so many a second, half an interval early or late.
    fn requests(&mut self, from_ms: u64, to_ms: u64, per_second: u64) -> Vec<u64> {
        let interval_ms = SECOND_MS / per_second;
        let mut at_ms: Vec<u64> = (0..(to_ms - from_ms) / interval_ms)
            .map(|index| from_ms + index * interval_ms + self.next() % interval_ms)
            .collect();
        at_ms.sort_unstable();
        at_ms
    }
}
