//! Charts as small SVG files, readable on a light and on a dark page.

use std::fmt::Write as _;

const STYLE: &str = "<style>\
    text{font:13px system-ui,sans-serif;fill:#1f2328}.dim{fill:#59636e}.title{font-weight:600;font-size:15px}\
    .bar{fill:#8c959f}.ours{fill:#0969da}.axis{stroke:#d1d9e0;stroke-width:1}.line{fill:none;stroke-width:2}\
    @media(prefers-color-scheme:dark){text{fill:#f0f6fc}.dim{fill:#9198a1}.bar{fill:#656c76}.ours{fill:#4493f8}\
    .axis{stroke:#3d444d}}</style>";

/// Colours of lines that stand apart on white and on black.
const LINES: [&str; 6] = ["#0969da", "#bf8700", "#1a7f37", "#cf222e", "#8250df", "#6e7781"];

/// A bar: its label, its length, whether it is ours.
pub type Bar = (String, f64, bool);

fn open(width: f64, height: f64, title: &str) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{title}\">{STYLE}<text class=\"title\" x=\"12\" y=\"24\">{title}</text>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Panels of horizontal bars, the shortest first; each panel has a scale of its own, from zero.
pub fn bars(title: &str, write_value: impl Fn(f64) -> String, panels: &[(String, Vec<Bar>)]) -> String {
    const LABEL: f64 = 220.0;
    const LENGTH: f64 = 420.0;
    let rows: usize = panels.iter().map(|(_, bars)| bars.len()).sum();
    let height = 40.0 + 34.0 * panels.len() as f64 + 20.0 * rows as f64;
    let mut svg = open(LABEL + LENGTH + 100.0, height, title);
    let mut y = 36.0;
    for (panel, bars) in panels {
        let mut bars = bars.clone();
        bars.sort_by(|a, b| a.1.total_cmp(&b.1));
        let longest = bars.last().map_or(1.0, |bar| bar.1).max(f64::MIN_POSITIVE);
        let _ = writeln!(svg, "<text class=\"dim\" x=\"12\" y=\"{:.0}\">{}</text>", y + 18.0, escape(panel));
        y += 26.0;
        for (label, value, ours) in &bars {
            let length = (value / longest * LENGTH).max(1.0);
            let class = if *ours { "ours" } else { "bar" };
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"{class}\" x=\"{LABEL}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"14\" rx=\"2\"/>\
                 <text class=\"dim\" x=\"{:.1}\" y=\"{:.0}\">{}</text>",
                LABEL - 8.0,
                y + 12.0,
                escape(label),
                LABEL + length + 6.0,
                y + 12.0,
                escape(&write_value(*value)),
            );
            y += 20.0;
        }
        y += 8.0;
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line: its name and its points.
pub type Line = (String, Vec<(f64, f64)>);

/// Lines on axes that are both logarithmic.
pub fn lines(title: &str, x_name: &str, y_name: &str, lines: &[Line]) -> String {
    const LEFT: f64 = 64.0;
    const TOP: f64 = 44.0;
    const WIDTH: f64 = 460.0;
    const HEIGHT: f64 = 320.0;
    let mut svg = open(LEFT + WIDTH + 250.0, TOP + HEIGHT + 48.0, title);
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let bounds = |pick: fn(&(f64, f64)) -> f64| {
        let (low, high) = points().map(pick).fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
        (low.ln(), (high.ln() - low.ln()).max(f64::MIN_POSITIVE))
    };
    let ((x_low, x_span), (y_low, y_span)) = (bounds(|point| point.0), bounds(|point| point.1));
    let x = |value: f64| LEFT + (value.ln() - x_low) / x_span * WIDTH;
    let y = |value: f64| TOP + HEIGHT - (value.ln() - y_low) / y_span * HEIGHT;
    let decades = (-3..12).map(|power| 10f64.powi(power));
    for mark in decades.filter(|mark| (y_low..=y_low + y_span).contains(&mark.ln())) {
        let (right, at) = (LEFT + WIDTH, y(mark));
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {at:.1}H{right}\"/>\
             <text class=\"dim\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
            LEFT - 8.0,
            at + 4.0,
        );
    }
    let doublings = (0..12).map(|power| f64::from(1 << power));
    for mark in doublings.filter(|mark| (x_low..=x_low + x_span).contains(&mark.ln())) {
        let (bottom, at) = (TOP + HEIGHT, x(mark));
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
             <text class=\"dim\" x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{mark}</text>",
            bottom + 18.0,
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"dim\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\
         <text class=\"dim\" x=\"12\" y=\"40\">{}</text>",
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + 38.0,
        escape(x_name),
        escape(y_name),
    );
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = LINES[index % LINES.len()];
        let path: Vec<String> =
            points.iter().map(|point| format!("{:.1} {:.1}", x(point.0), y(point.1))).collect();
        let key_y = TOP + 14.0 + 22.0 * index as f64;
        let _ = writeln!(
            svg,
            "<path class=\"line\" stroke=\"{colour}\" d=\"M{}\"/>\
             <path class=\"line\" stroke=\"{colour}\" d=\"M{:.0} {key_y}h22\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            path.join("L"),
            LEFT + WIDTH + 16.0,
            LEFT + WIDTH + 44.0,
            key_y + 4.0,
            escape(name),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_they_should_be_and_sorted() {
        let panel = ("p & q".to_owned(), vec![("b".to_owned(), 4.0, false), ("a".to_owned(), 2.0, true)]);
        let svg = bars("t", |value| format!("{value} ns"), &[panel]);
        let (ours, other) =
            (svg.find("class=\"ours\"").expect("ours"), svg.find("class=\"bar\"").expect("other"));
        assert!(
            ours < other
                && svg[ours..].contains("width=\"210.0\"")
                && svg[other..].contains("width=\"420.0\"")
        );
        assert!(svg.contains("p &amp; q") && svg.contains("4 ns") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn lines_go_from_corner_to_corner() {
        let svg = lines("t", "x", "y", &[("l".to_owned(), vec![(1.0, 1.0), (64.0, 100.0)])]);
        assert!(svg.contains("d=\"M64.0 364.0L524.0 44.0\""), "{svg}");
    }
}
