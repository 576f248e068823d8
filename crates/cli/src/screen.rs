//! Output for people: lines that fit the terminal, colour where it shows, ASCII where the locale asks for it.
//!
//! Files, JSON and the rows of `weft bench` do not pass through here: programs read those.

use std::env;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::os::fd::AsFd;

use anstream::AutoStream;
use clap::ColorChoice;
use clap::builder::styling::{AnsiColor, Style};
use terminal_size::{Width, terminal_size_of};
use textwrap::core::display_width;
use textwrap::{Options, WordSplitter};

/// Columns where nothing says how many there are: what `--help` takes, too.
const COLUMNS: usize = 100;
/// Prose wider than this is hard to read, however wide the terminal is.
const PROSE_COLUMNS_MAX: usize = 100;
/// In fewer columns than this lines are longer than the screen.
const COLUMNS_MIN: usize = 40;

pub(crate) const HEADING: Style = Style::new().bold();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Standard output for people. What is written fits already: [`prose`] and tables see to it.
pub(crate) struct Screen {
    out: AutoStream<StdoutLock<'static>>,
    is_ascii: bool,
}

pub(crate) fn stdout() -> Screen {
    Screen { out: AutoStream::auto(io::stdout().lock()), is_ascii: wants_ascii() }
}

/// Writes a line of prose, wrapped.
macro_rules! say {
    ($out:expr, $($text:tt)*) => {
        writeln!($out, "{}", $crate::screen::prose(&format!($($text)*)))
    };
}
pub(crate) use say;

/// Text that is one line in a pipe, and fits a terminal.
pub(crate) fn record(text: &str) -> String {
    let width = known_columns().map_or(usize::MAX, |columns| columns.min(PROSE_COLUMNS_MAX));
    wrapped(text, width).join("\n")
}

/// Text whose lines fit the terminal. What continues a line is indented as it is, and below the text of an item.
pub(crate) fn prose(text: &str) -> String {
    let width = columns().min(PROSE_COLUMNS_MAX);
    let lines: Vec<String> = text.split('\n').flat_map(|line| wrapped(line, width)).collect();
    lines.join("\n")
}

/// The columns of standard output: COLUMNS, or the terminal's, or the default.
pub(crate) fn columns() -> usize {
    known_columns().unwrap_or(COLUMNS)
}

/// The columns of help, which people read through a pager: those of the terminal behind the pipe, if there is one.
pub(crate) fn help_columns() -> usize {
    known_columns().or_else(|| Some(size_of(io::stderr())?.max(COLUMNS_MIN))).unwrap_or(COLUMNS)
}

/// The same without a default, for lines that are not broken unless people look at a terminal.
pub(crate) fn known_columns() -> Option<usize> {
    let known = columns_from_environment().or_else(|| size_of(io::stdout()));
    known.map(|columns| columns.max(COLUMNS_MIN))
}

/// The same for what programs read from a pipe: nothing unless standard output is a terminal.
pub(crate) fn terminal_columns() -> Option<usize> {
    io::stdout().is_terminal().then(columns)
}

fn size_of(stream: impl AsFd) -> Option<usize> {
    terminal_size_of(stream).map(|(Width(columns), _)| usize::from(columns))
}

/// Sets the colours of both streams; `Auto` is colour on a terminal, unless NO_COLOR is set.
pub(crate) fn choose_colours(choice: ColorChoice) {
    match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Prints `SOURCE: TEXT` on standard error. It is one line, as logs want it, unless people look at a terminal.
pub(crate) fn complain(source: &str, text: &str) {
    complain_as(&format!("{ERROR}{source}:{ERROR:#} {text}"));
}

/// Prints a message on standard error, in as many lines.
pub(crate) fn complain_as(text: &str) {
    let columns = columns_from_environment().or_else(|| size_of(io::stderr()));
    let width = columns.map_or(usize::MAX, |columns| columns.clamp(COLUMNS_MIN, PROSE_COLUMNS_MAX));
    let lines: Vec<String> = text.trim_end().lines().flat_map(|line| wrapped(line, width)).collect();
    let text = lines.join("\n");
    let text = if wants_ascii() { ascii(&text) } else { text };
    // If standard error is closed, nobody reads it.
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// `text` in a style, which terminals show and files do not hold.
pub(crate) fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

fn columns_from_environment() -> Option<usize> {
    env::var("COLUMNS").ok()?.trim().parse().ok().filter(|columns| *columns > 0)
}

/// Whether the locale is one without box-drawing characters. One that is not set asks for nothing.
fn wants_ascii() -> bool {
    let set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find(|name| set(name)).and_then(env::var_os);
    locale.is_some_and(|locale| {
        let locale = locale.to_string_lossy().to_ascii_lowercase();
        !locale.contains("utf-8") && !locale.contains("utf8")
    })
}

/// The lines that `line` takes.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    if display_width(line) <= width {
        return vec![line.to_owned()];
    }
    let text = line.trim_start_matches(' ');
    let own = line.len() - text.len();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_numbered = digits > 0 && text[digits..].starts_with("  ");
    let more = match own {
        0 => 0,
        _ if is_numbered => own + digits + 2,
        own => own + 2,
    };
    let (first, next) = (" ".repeat(own), " ".repeat(more));
    let options = Options::new(width)
        .initial_indent(&first)
        .subsequent_indent(&next)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(String::from).collect()
}

/// `text` in lines of up to `width` columns.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    if display_width(text) <= width {
        return vec![text.to_owned()];
    }
    let options = Options::new(width.max(1)).break_words(false).word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(String::from).collect()
}

/// The nearest ASCII: boxes of `+`, `-` and `|`, `us` for microseconds.
fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            _ if c.is_ascii() => plain.push(c),
            '─' => plain.push('-'),
            '═' => plain.push('='),
            '│' | '║' => plain.push('|'),
            '\u{2500}'..='\u{257f}' => plain.push('+'),
            '█' => plain.push('#'),
            'µ' | 'μ' => plain.push('u'),
            '×' => plain.push('x'),
            '·' => plain.push('.'),
            '→' => plain.push_str("->"),
            '…' => plain.push_str("..."),
            '≤' => plain.push_str("<="),
            '≥' => plain.push_str(">="),
            '–' | '—' => plain.push('-'),
            '‘' | '’' => plain.push('\''),
            '“' | '”' => plain.push('"'),
            _ => plain.push('?'),
        }
    }
    plain
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.is_ascii {
            true => self.out.write_all(ascii(&String::from_utf8_lossy(bytes)).as_bytes())?,
            false => self.out.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_continue_below_their_text() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(wrapped("  one two three", 9), ["  one two", "    three"]);
        assert_eq!(wrapped("   12  one two three", 14), ["   12  one two", "       three"]);
        assert_eq!(wrapped("as-long-as-it-is all-reduce", 12), ["as-long-as-it-is", "all-reduce"]);
        assert_eq!(wrapped("", 10), [""]);
    }

    #[test]
    fn drawings_keep_their_shape_in_ascii() {
        let drawn = "┌─╥─┐ 5 µs → █";
        assert_eq!(ascii(drawn), "+-+-+ 5 us -> #");
        assert!(ascii("é漢").is_ascii());
    }
}
