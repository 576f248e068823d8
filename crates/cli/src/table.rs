//! Columns that line up.

use std::fmt;

/// A table printed with two spaces between its columns; numbers stand to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned).to_vec()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let cell_width = |row: &Vec<String>, column: usize| row[column].chars().count();
        let widths: Vec<usize> =
            (0..columns).map(|c| self.rows.iter().map(|row| cell_width(row, c)).max().unwrap_or(0)).collect();
        let is_number =
            |cell: &str| cell.is_empty() || cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit());
        let to_right: Vec<bool> =
            (0..columns).map(|c| c > 0 && self.rows[1..].iter().all(|row| is_number(&row[c]))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths[column] - cell.chars().count());
                match to_right[column] {
                    true => line.extend([padding.as_str(), cell, "  "]),
                    false => line.extend([cell, padding.as_str(), "  "]),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
