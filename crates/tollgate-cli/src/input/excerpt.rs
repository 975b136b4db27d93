//! What is shown of text that comes from a log: little, and nothing that a terminal obeys.

const CHARS_MAX: usize = 100;

/// The beginning of a text, without what a terminal would take for an order.
pub(super) fn beginning(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * CHARS_MAX)]);
    text.chars().take(CHARS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
