//! Columns that line up, in as many columns as the terminal has.
//!
//! The last column may hold sentences: they wrap, or go below their row where too little is left for them. Before that, headings
//! wrap and columns that a table can do without are left out.

use std::fmt;

use textwrap::core::display_width;

use crate::screen::{self, GOOD, HEADING, styled, wrap};

/// Characters between columns.
const GAP: usize = 2;
/// Sentences in fewer columns than this are hard to read: other columns make room.
const LAST_WANTED: usize = 34;
/// A last column narrower than this goes below its row.
const LAST_MIN: usize = 20;
/// How far it is indented there.
const INDENT: usize = 4;

/// A table printed with two spaces between its columns; numbers stand to the right.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns to leave out where the terminal is too narrow, the first of them first.
    optional: Vec<usize>,
    /// The row that people look for, counted without the heading.
    best: Option<usize>,
    /// Columns that stand to the right whatever their place.
    numbers: Vec<usize>,
    /// Lines of text below rows.
    below: Vec<(usize, String)>,
}

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned).to_vec()], ..Self::default() }
    }

    /// Names columns that may be left out, the least important first.
    pub(crate) fn optional(mut self, headings: &[&str]) -> Self {
        self.optional = headings.iter().filter_map(|wanted| self.place(wanted)).collect();
        self
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Adds a line of text below the last row.
    pub(crate) fn below(&mut self, text: String) {
        self.below.push((self.rows.len() - 1, text));
    }

    /// Names columns of numbers that have units: they stand to the right, too.
    pub(crate) fn numbers(mut self, headings: &[&str]) -> Self {
        self.numbers = headings.iter().filter_map(|wanted| self.place(wanted)).collect();
        self
    }

    fn place(&self, wanted: &str) -> Option<usize> {
        self.rows[0].iter().position(|heading| heading == wanted)
    }

    /// Whether the terminal has room for a column.
    pub(crate) fn shows(&self, heading: &str) -> bool {
        let place = self.place(heading);
        self.layout(screen::columns()).columns.iter().any(|column| Some(column.place) == place)
    }

    /// Marks the last row as the answer.
    pub(crate) fn mark(&mut self) {
        self.best = self.rows.len().checked_sub(2);
    }

    /// The table in `width` columns.
    pub(crate) fn fitted(&self, width: usize) -> String {
        let layout = self.layout(width);
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for line in layout.lines(row) {
                let line = line.trim_end();
                match number {
                    0 => text += &styled(HEADING, line),
                    _ if self.best == Some(number - 1) => text += &styled(GOOD, line),
                    _ => text += line,
                }
                text.push('\n');
            }
            for (_, note) in self.below.iter().filter(|(below, _)| *below == number) {
                text.extend(wrap(note, width - INDENT).iter().map(|line| format!("{:INDENT$}{line}\n", "")));
            }
        }
        text
    }

    fn layout(&self, width: usize) -> Layout {
        let without = |count: usize| {
            let left_out = &self.optional[..count];
            let shown: Vec<usize> =
                (0..self.rows[0].len()).filter(|column| !left_out.contains(column)).collect();
            self.columns(&shown)
        };
        for (last_min, may_wrap) in [(LAST_WANTED, false), (LAST_MIN, false), (LAST_MIN, true)] {
            for count in 0..=self.optional.len() {
                let mut layout = without(count);
                if layout.fit(width, last_min, may_wrap) {
                    return layout;
                }
            }
        }
        let mut layout = without(self.optional.len());
        layout.last_below(width);
        layout
    }

    /// Columns as wide as they are.
    fn columns(&self, shown: &[usize]) -> Layout {
        let is_number =
            |cell: &str| matches!(cell, "" | "-") || cell.starts_with(|c: char| c.is_ascii_digit());
        let column = |&place: &usize| {
            let cells = || self.rows[1..].iter().map(|row| row[place].as_str());
            let widest = |text: &mut dyn Iterator<Item = &str>| text.map(display_width).max().unwrap_or(0);
            let heading = self.rows[0][place].as_str();
            let to_right = self.numbers.contains(&place) || place > 0 && cells().all(is_number);
            let (data, title) = (widest(&mut cells()), widest(&mut heading.split(' ')));
            let words = widest(&mut cells().flat_map(|cell| cell.split(' ')));
            Column {
                place,
                width: data.max(display_width(heading)),
                without_heading: data.max(title),
                least: if to_right { data.max(title) } else { words.max(title) },
                to_right,
            }
        };
        Layout { columns: shown.iter().map(column).collect(), below: None }
    }
}

struct Column {
    place: usize,
    width: usize,
    /// The width of the cells where the heading wraps.
    without_heading: usize,
    /// The width where cells wrap, too; numbers do not.
    least: usize,
    to_right: bool,
}

struct Layout {
    columns: Vec<Column>,
    /// Columns for the last cell where it stands below its row.
    below: Option<usize>,
}

impl Layout {
    /// Characters of all columns but the last, with the gaps after them.
    fn before_last(&self) -> usize {
        self.columns.split_last().map_or(0, |(_, rest)| rest.iter().map(|column| column.width + GAP).sum())
    }

    /// Wraps headings and the last column, then other text if it may, until lines take `width`. False if they cannot.
    fn fit(&mut self, width: usize, last_min: usize, may_wrap: bool) -> bool {
        let Some(last) = self.columns.last() else { return true };
        let wanted = match last.width > last_min {
            true if !last.to_right => last.least.max(last_min),
            _ => last.width.min(last.without_heading),
        };
        if self.before_last() + last.width > width {
            self.wrap_headings();
        }
        if self.before_last() + wanted > width && !(may_wrap && self.shrink(width.saturating_sub(wanted))) {
            return false;
        }
        let rest = width - self.before_last();
        if let Some(column) = self.columns.last_mut() {
            column.width = column.width.min(rest);
        }
        true
    }

    fn wrap_headings(&mut self) {
        let others = self.columns.len() - 1;
        self.columns[..others].iter_mut().for_each(|column| column.width = column.without_heading);
    }

    /// Narrows columns of text until all but the last take `width`, gaps included. False if they cannot.
    fn shrink(&mut self, width: usize) -> bool {
        let others = self.columns.len() - 1;
        while self.before_last() > width {
            let wide = self.columns[..others].iter_mut().filter(|column| column.width > column.least);
            let Some(widest) = wide.max_by_key(|column| column.width) else { return false };
            widest.width -= 1;
        }
        true
    }

    fn last_below(&mut self, width: usize) {
        self.below = Some(width - INDENT);
        if let Some(column) = self.columns.last_mut() {
            column.width = 0;
        }
        if self.before_last() > width + GAP {
            self.wrap_headings();
            // What is still too wide is longer than the screen.
            self.shrink(width + GAP);
        }
    }

    /// A row, which takes as many lines as its tallest cell.
    fn lines(&self, row: &[String]) -> Vec<String> {
        let in_line = self.columns.len() - usize::from(self.below.is_some());
        let cells: Vec<Vec<String>> =
            self.columns[..in_line].iter().map(|column| wrap(&row[column.place], column.width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let line = |at: usize| {
            let mut line = String::new();
            for (column, cell) in self.columns.iter().zip(&cells) {
                let text = cell.get(at).map_or("", String::as_str);
                let padding = " ".repeat(column.width.saturating_sub(display_width(text)));
                match column.to_right {
                    true => line.extend([padding.as_str(), text, "  "]),
                    false => line.extend([text, padding.as_str(), "  "]),
                }
            }
            line
        };
        let mut lines: Vec<String> = (0..height).map(line).collect();
        if let (Some(width), Some(column)) = (self.below, self.columns.last())
            && !row[column.place].is_empty()
        {
            lines.extend(wrap(&row[column.place], width).iter().map(|line| format!("{:INDENT$}{line}", "")));
        }
        lines
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fitted(screen::columns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["name", "bus rate", "note", "why"]).optional(&["note"]);
        let cells = ["ring", "12", "nothing much", "it takes as many steps as there are ranks, twice"];
        table.row(cells.map(str::to_owned));
        table
    }

    fn plain(table: &Table, width: usize) -> Vec<String> {
        let text = table.fitted(width).replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert!(text.lines().all(|line| display_width(line) <= width), "{text}");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_table_that_fits_has_one_line_for_each_row() {
        let lines = plain(&table(), 100);
        assert_eq!(lines[0], "name  bus rate  note          why");
        assert_eq!(
            lines[1],
            "ring        12  nothing much  it takes as many steps as there are ranks, twice"
        );
    }

    #[test]
    fn narrow_tables_wrap_then_drop_columns() {
        let lines = plain(&table(), 66);
        assert_eq!(lines[..2], ["name   bus  note          why", "      rate"]);
        assert_eq!(lines[3].trim(), "ranks, twice");
        let lines = plain(&table(), 33);
        assert_eq!(lines[..2], ["name   bus  why", "      rate"]);
        assert_eq!(lines[2], "ring    12  it takes as many");
        assert_eq!(plain(&table(), 24)[..3], ["name  bus rate", "    why", "ring        12"]);
    }
}
