//! Text for people: aligned columns and grouped digits.

use std::fmt;

/// A table whose first column is aligned left and whose others are aligned right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<C: Into<String>>(headings: impl IntoIterator<Item = C>) -> Self {
        Self { rows: vec![headings.into_iter().map(Into::into).collect()] }
    }

    pub(crate) fn row(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) {
        self.rows.push([name.to_owned()].into_iter().chain(numbers.into_iter().map(grouped)).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                match column {
                    0 => write!(f, "  {cell:<0$}", width(0))?,
                    _ => write!(f, "  {cell:>0$}", width(column))?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A number with its thousands set apart: `1 234 567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_from_the_right() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1 000"), (12_345_678, "12 345 678")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["who", "in", "out"]);
        table.row("a long name", [1, 23_456]);
        assert_eq!(table.to_string(), "  who          in     out\n  a long name   1  23 456\n");
    }
}
