//! The charts of the page, as inline SVG that stretches to its place. Words stand beside it in HTML, where they keep
//! their size on a phone.

use super::{Outcome, TopClient, duration, rate};
use crate::input::time::{Moment, NS_PER_S};
use crate::report::table::grouped;
use std::fmt::Write;

/// Colours for rules that refuse; after the last the first comes again.
pub(super) const RULE_COLOURS: usize = 6;

/// A stretched picture of `width` by `height` units.
fn picture(class: &str, width: f64, height: f64, label: &str, inside: &str) -> String {
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">{inside}</svg>",
        escaped(label)
    )
}

fn bar(out: &mut String, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    if height > 0.0 {
        // Writing to memory does not fail.
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
        );
    }
}

/// Requests over time: admitted below, what each rule refused on top.
pub(super) fn over_time(outcome: &Outcome) -> String {
    const HEIGHT: f64 = 100.0;
    let timeline = &outcome.timeline;
    let buckets = timeline.admitted.len().max(1);
    let refused = timeline.refused();
    let most = timeline.admitted.iter().zip(&refused).map(|(a, r)| a + r).max().unwrap_or(0).max(1);
    let scale = HEIGHT / most as f64;
    let mut inside = String::new();
    for (at, (&admitted, &refused)) in timeline.admitted.iter().zip(&refused).enumerate() {
        let moment = Moment::of(timeline.start_ns + at as u64 * timeline.bucket_s * NS_PER_S);
        let _ = write!(
            inside,
            "<g><title>{moment}: {} admitted, {} refused</title>",
            grouped(admitted),
            grouped(refused)
        );
        let mut top = HEIGHT;
        let mut stack = |class: &str, count: u64| {
            let height = count as f64 * scale;
            top -= height;
            bar(&mut inside, class, (at as f64 + 0.05, top), (0.9, height));
        };
        stack("ok", admitted);
        for (rule, counts) in timeline.refused_by.iter().enumerate() {
            stack(&format!("r{}", rule % RULE_COLOURS), counts[at]);
        }
        inside.push_str("</g>");
    }
    let chart = picture("time", buckets as f64, HEIGHT, "Requests over time, by outcome", &inside);
    let last_ns = timeline.start_ns + buckets as u64 * timeline.bucket_s * NS_PER_S;
    let middle_ns = timeline.start_ns + (last_ns - timeline.start_ns) / 2;
    let rate = rate(most, timeline.bucket_s);
    format!(
        "<div class=\"chart\"><div class=\"y\">{rate}</div>{chart}<div class=\"x\"><span>{}</span><span>{}</span>\
         <span>{}</span></div></div><p class=\"note\">A column is {}.</p>",
        short(timeline.start_ns),
        short(middle_ns),
        short(last_ns),
        duration(timeline.bucket_s * NS_PER_S)
    )
}

/// A moment without year and seconds.
fn short(at_ns: u64) -> String {
    let moment = Moment::of(at_ns);
    format!("{} {} {:02}:{:02}", moment.day, moment.month_name(), moment.hour, moment.minute)
}

/// One client's requests over the same time.
pub(super) fn spark(client: &TopClient, used: usize) -> String {
    const HEIGHT: f64 = 20.0;
    let pairs = || client.admitted_over_time.iter().zip(&client.refused_over_time).take(used.max(1));
    let most = pairs().map(|(&a, &r)| u64::from(a) + u64::from(r)).max().unwrap_or(0).max(1);
    let mut inside = String::new();
    for (at, (&admitted, &refused)) in pairs().enumerate() {
        let (low, high) =
            (f64::from(admitted) * HEIGHT / most as f64, f64::from(refused) * HEIGHT / most as f64);
        bar(&mut inside, "ok", (at as f64 + 0.08, HEIGHT - low), (0.84, low));
        bar(&mut inside, "no", (at as f64 + 0.08, HEIGHT - low - high), (0.84, high));
    }
    picture("spark", used.max(1) as f64, HEIGHT, "This client's requests over time", &inside)
}

/// How many clients wanted how much, in bars up to 1, 2, 4, …, with the limit drawn in.
pub(super) fn distribution(title: &str, clients: &[u64], limit: u64, limit_text: &str) -> String {
    const HEIGHT: f64 = 60.0;
    let limit_at = (limit.max(1) as f64).log2() + 1.0;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 65")]
    let limit_bars = limit_at.ceil() as usize;
    let last = clients.iter().rposition(|&count| count > 0).map_or(1, |last| last + 1);
    let bars = (last.max(limit_bars) + 1).min(clients.len());
    let most = clients.iter().copied().max().unwrap_or(0).max(1);
    let scale = |count: u64| (1.0 + count as f64).ln() / (1.0 + most as f64).ln() * HEIGHT;
    let mut inside = String::new();
    for (at, &count) in clients.iter().enumerate().take(bars) {
        let (end, height) = (1_u64 << at, scale(count));
        let class = if end > limit && 2 * limit <= end { "no" } else { "ok" };
        let _ = write!(inside, "<g><title>{}: up to {}</title>", grouped(count), grouped(end));
        bar(&mut inside, class, (at as f64 + 0.06, HEIGHT - height), (0.88, height));
        inside.push_str("</g>");
    }
    // The last bar has no end: what lies in it or beyond has no place on the scale.
    let beyond = if limit_at > clients.len() as f64 - 1.0 { ", beyond the scale" } else { "" };
    if beyond.is_empty() {
        let _ = write!(
            inside,
            "<line class=\"limit\" x1=\"{limit_at:.2}\" x2=\"{limit_at:.2}\" y1=\"0\" y2=\"{HEIGHT}\"/>"
        );
    }
    let labels: String = (0..bars)
        .map(|at| match at % bars.div_ceil(8).max(1) {
            0 => format!("<span>{}</span>", compact(1 << at)),
            _ => "<span></span>".to_owned(),
        })
        .collect();
    format!(
        "<figure><figcaption>{}<br><b class=\"limit\">limit: {}{beyond}</b></figcaption>{}<div class=\"ticks\">{labels}</div></figure>",
        escaped(title),
        escaped(limit_text),
        picture("bars", bars as f64, HEIGHT, title, &inside)
    )
}

/// `2k` for 2 048.
fn compact(number: u64) -> String {
    match number {
        0..1_024 => number.to_string(),
        1_024..1_048_576 => format!("{}k", number >> 10),
        _ => format!("{}M", number >> 20),
    }
}

/// Text that stands in a page as itself. Keys come from whoever wrote the log.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_log_becomes_part_of_the_page() {
        assert_eq!(escaped("<script>\"x\"&'\u{7}"), "&lt;script&gt;&quot;x&quot;&amp;&#39;\u{fffd}");
    }

    #[test]
    fn the_limit_stands_where_its_bar_ends() {
        // Bars end at 1, 2, 4, 8: a limit of 4 is the right edge of the third.
        let chart = distribution("burst", &[5, 3, 2, 1, 0, 0], 4, "4");
        assert!(chart.contains("x1=\"3.00\""), "{chart}");
        assert_eq!(chart.matches("class=\"no\"").count(), 1);
        assert_eq!(chart.matches("class=\"ok\"").count(), 3);
    }

    #[test]
    fn a_limit_beyond_the_scale_is_said() {
        for (limit, is_drawn) in [(16, true), (17, false), (1 << 40, false)] {
            let chart = distribution("burst", &[5, 3, 2, 1, 0, 0], limit, "x");
            assert_eq!(chart.contains("<line"), is_drawn, "{limit}: {chart}");
            assert_eq!(chart.contains("limit: x, beyond the scale"), !is_drawn, "{limit}: {chart}");
        }
    }
}
