//! Text for people: aligned columns and grouped digits.

use std::fmt;

/// A table whose first column is aligned left and whose numbers are aligned right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<C: Into<String>>(headings: impl IntoIterator<Item = C>) -> Self {
        Self { rows: vec![headings.into_iter().map(Into::into).collect()] }
    }

    pub(crate) fn row(&mut self, name: &str, numbers: impl IntoIterator<Item = u64>) {
        self.cells([name.to_owned()].into_iter().chain(numbers.into_iter().map(grouped)));
    }

    pub(crate) fn cells(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether a column holds numbers: all but the first, unless something in it is no number.
    fn is_numeric(&self, column: usize) -> bool {
        let is_number = |cell: &String| cell.chars().all(|c| c.is_ascii_digit() || " .%".contains(c));
        column > 0 && self.rows.iter().skip(1).filter_map(|row| row.get(column)).all(is_number)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let shapes: Vec<_> = (0..columns).map(|column| (width(column), self.is_numeric(column))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, &(width, is_numeric)) in row.iter().zip(&shapes) {
                line += &if is_numeric { format!("  {cell:>width$}") } else { format!("  {cell:<width$}") };
            }
            writeln!(f, "{}", line.trim_end())?;
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
        let mut table = Table::new(["who", "in", "out", "why"]);
        table.cells(["a long name", "1", "23 456", "because"].map(str::to_owned));
        assert_eq!(table.to_string(), "  who          in     out  why\n  a long name   1  23 456  because\n");
    }
}
