//! A sheet of characters to draw boxes and lines on, with notes beside it.

use std::io::{self, Write};

use textwrap::core::display_width;

use crate::screen::say;

/// Characters between the drawing and a note beside it.
const GAP: usize = 2;

/// A drawing that grows as it is drawn on.
#[derive(Default)]
pub(super) struct Canvas {
    rows: Vec<Vec<char>>,
    notes: Vec<Note>,
    /// Columns where a drawing that is too wide may be cut.
    cuts: Vec<usize>,
    /// A line below the drawing, and the rows below that line.
    caption: Option<String>,
    below_caption: usize,
}

/// What a row of the drawing shows: beside it, or below the drawing with a name where that is too narrow.
struct Note {
    row: usize,
    name: &'static str,
    text: String,
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

    pub(super) fn note(&mut self, row: usize, name: &'static str, text: String) {
        if !text.is_empty() {
            self.notes.push(Note { row, name, text });
        }
    }

    pub(super) fn cut_at(&mut self, column: usize) {
        self.cuts.push(column);
    }

    /// A sentence below what is drawn so far; what is drawn later stands below it.
    pub(super) fn caption(&mut self, text: String) {
        self.below_caption = self.rows.len();
        self.caption = Some(text);
    }

    /// Prints it in `columns`: notes beside or below, the drawing in parts where it is wider.
    pub(super) fn print(mut self, out: &mut impl Write, columns: usize) -> io::Result<()> {
        let width = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_beside = self.notes.iter().all(|note| width + GAP + display_width(&note.text) <= columns);
        if is_beside {
            for Note { row, text, .. } in std::mem::take(&mut self.notes) {
                self.put(width + GAP, row, &text);
            }
        }
        let drawn = if self.caption.is_some() { self.below_caption } else { self.rows.len() };
        let (above, below) = self.rows.split_at(drawn);
        let parts = if is_beside { vec![(0, usize::MAX)] } else { self.parts(width, columns) };
        for (number, part) in parts.into_iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            print_part(out, above, part)?;
        }
        for Note { name, text, .. } in &self.notes {
            say!(out, "  {name}: {text}")?;
        }
        if let Some(caption) = &self.caption {
            say!(out, "{caption}")?;
        }
        print_part(out, below, (0, usize::MAX))
    }

    /// From which column to which, each part as wide as fits.
    fn parts(&self, width: usize, columns: usize) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        let mut from = 0;
        while width - from > columns {
            let fits = self.cuts.iter().copied().filter(|cut| (from + 1..=from + columns).contains(cut));
            let Some(cut) = fits.max() else { break };
            parts.push((from, cut));
            from = cut;
        }
        parts.push((from, usize::MAX));
        parts
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

fn print_part(out: &mut impl Write, rows: &[Vec<char>], (from, to): (usize, usize)) -> io::Result<()> {
    for row in rows {
        let line: String = row.iter().take(to).skip(from).collect();
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
