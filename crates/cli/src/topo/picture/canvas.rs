//! A sheet of characters to draw boxes and lines on.

use std::fmt;

/// A drawing that grows as it is drawn on.
#[derive(Default)]
pub(super) struct Canvas {
    rows: Vec<Vec<char>>,
}

impl Canvas {
    pub(super) fn put(&mut self, x: usize, y: usize, text: &str) {
        for (offset, c) in text.chars().enumerate() {
            *self.at(x + offset, y) = c;
        }
    }

    /// A box with its lines of text in the middle.
    pub(super) fn boxed(&mut self, x: usize, y: usize, width: usize, lines: &[String]) {
        let inner = width.saturating_sub(2);
        self.put(x, y, &format!("┌{}┐", "─".repeat(inner)));
        for (row, line) in lines.iter().enumerate() {
            let fitted: String = line.chars().take(inner).collect();
            self.put(x, y + 1 + row, &format!("│{fitted:^inner$}│"));
        }
        self.put(x, y + 1 + lines.len(), &format!("└{}┘", "─".repeat(inner)));
    }

    /// A vertical line from row `top` to row `bottom`, joined to the boxes it meets.
    pub(super) fn down(&mut self, x: usize, top: usize, bottom: usize, double: bool) {
        let (line, leaves, meets) = if double { ('║', '╥', '╨') } else { ('│', '┬', '┴') };
        for y in top..=bottom {
            let cell = self.at(x, y);
            *cell = match *cell {
                '─' if y == top => leaves,
                '─' if y == bottom => meets,
                _ => line,
            };
        }
    }

    fn at(&mut self, x: usize, y: usize) -> &mut char {
        if self.rows.len() <= y {
            self.rows.resize_with(y + 1, Vec::new);
        }
        let row = &mut self.rows[y];
        if row.len() <= x {
            row.resize(x + 1, ' ');
        }
        &mut row[x]
    }
}

impl fmt::Display for Canvas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let line: String = row.iter().collect();
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
