//! A small chart for the terminal: admitted and refused over time, one on the other.

/// Whether and how text is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) colours: bool,
}

impl Paint {
    const GREEN: &str = "32";
    const RED: &str = "31";

    pub(crate) fn good(self, text: &str) -> String {
        self.with(Self::GREEN, text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.with(Self::RED, text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

const HEIGHT: u64 = 7;
const COLUMNS_MAX: usize = 64;
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Lines of the chart, the highest first, and how many the highest column stands for.
pub(crate) fn stacked(admitted: &[u64], refused: &[u64], paint: Paint) -> (Vec<String>, u64) {
    let per_column = admitted.len().div_ceil(COLUMNS_MAX).max(1);
    let sums =
        |counts: &[u64]| -> Vec<u64> { counts.chunks(per_column).map(|chunk| chunk.iter().sum()).collect() };
    let (admitted, refused) = (sums(admitted), sums(refused));
    let most = admitted.iter().zip(&refused).map(|(a, r)| a + r).max().unwrap_or(0).max(1);
    let eighths = |count: u64| (u128::from(count) * u128::from(HEIGHT) * 8).div_ceil(u128::from(most));
    let line = |row: u64| -> String {
        let cell = |(a, r): (&u64, &u64)| {
            let floor = u128::from(row) * 8;
            // How much of this cell either fills, from below.
            let inside = |height: u128| usize::try_from(height.saturating_sub(floor).min(8)).unwrap_or(8);
            let (low, high) = (inside(eighths(*a)), inside(eighths(a + r)));
            match (low, high) {
                (0, 0) => " ".to_owned(),
                (low, high) if low == high => paint.good(EIGHTHS[low]),
                (0, 8) => paint.bad(if paint.colours { "█" } else { "░" }),
                (0, high) => paint.bad(if paint.colours { EIGHTHS[high] } else { "░" }),
                // Both: the lower one in the foreground, the upper one behind it.
                (low, _) if paint.colours => format!("\x1b[32;41m{}\x1b[0m", EIGHTHS[low]),
                (low, high) => if low * 2 >= high { "█" } else { "░" }.to_owned(),
            }
        };
        admitted.iter().zip(&refused).map(cell).collect()
    };
    ((0..HEIGHT).rev().map(line).collect(), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_column_is_full_and_the_empty_one_empty() {
        let (lines, most) = stacked(&[0, 70, 35], &[0, 0, 35], Paint { colours: false });
        assert_eq!((lines.len(), most), (7, 70));
        assert!(lines.iter().all(|line| line.chars().count() == 3 && line.starts_with(" █")));
        assert!(lines[0].ends_with('░') && lines[6].ends_with('█'));
    }

    #[test]
    fn long_times_are_drawn_together() {
        let (lines, _) = stacked(&[1; 128], &[0; 128], Paint { colours: false });
        assert_eq!(lines[0].chars().count(), 64);
    }
}
