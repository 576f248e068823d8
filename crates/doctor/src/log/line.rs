//! Lines of a log: what the library put in front of a message, below what launchers put in front of that.
//!
//! The library writes `HOST:PID:TID [DEVICE] NCCL INFO MESSAGE`; a warning has its place in the source before `NCCL WARN`, a call has no
//! device, and newer versions put a time first. Launchers add a rank, a pod, a stream or a time. Lines of several processes can be torn,
//! so that one line has several messages: each begins with its own header.

use std::borrow::Cow;

/// The longest line that is looked at; the rest of a longer one is cut off.
pub(super) const LINE_MAX: usize = 8192;
/// The most messages in one line.
const MESSAGES_MAX: usize = 64;
/// The longest text that is kept of a line as evidence.
const KEPT_MAX: usize = 300;

/// What the library writes before a message.
const MARKERS: [(&str, Level); 4] = [
    ("NCCL INFO", Level::Info),
    ("NCCL WARN", Level::Warn),
    ("NCCL TRACE", Level::Trace),
    ("NCCL CALL", Level::Trace),
];

/// The level of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::log) enum Level {
    /// `NCCL INFO`.
    Info,
    /// `NCCL WARN`.
    Warn,
    /// `NCCL TRACE` and `NCCL CALL`.
    Trace,
}

/// A message with its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::log) struct Message<'l> {
    /// The line's number, from 1.
    pub number: usize,
    /// The host; empty where the header lacks it.
    pub host: &'l str,
    /// The process; 0 where the header lacks it.
    pub pid: u32,
    /// The thread; 0 where the header lacks it.
    pub tid: u32,
    /// The CUDA device that the thread had chosen.
    pub device: Option<i32>,
    /// The level.
    pub level: Level,
    /// The place in the source that warns: `transport/net_ib.cc:101`.
    pub place: &'l str,
    /// The message, with the spaces it begins with.
    pub text: &'l str,
    /// Header and message.
    pub whole: &'l str,
}

/// The start of a message in a line.
struct Header<'l> {
    start: usize,
    text: usize,
    message: Message<'l>,
}

/// A line without terminal colours, cut to the longest that is looked at.
pub(super) fn clean(line: &str) -> Cow<'_, str> {
    let line = shortened(line, LINE_MAX);
    if !line.contains('\u{1b}') {
        return Cow::Borrowed(line);
    }
    let mut plain = String::with_capacity(line.len());
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            plain.push(letter);
        } else if letters.next_if_eq(&'[').is_some() {
            // A control sequence ends with a letter.
            while letters.next().is_some_and(|letter| !letter.is_ascii_alphabetic()) {}
        }
    }
    Cow::Owned(plain)
}

/// The first bytes of a text, whole characters.
pub(super) fn shortened(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What is kept of a line as evidence.
pub(super) fn kept(text: &str) -> String {
    let text = text.trim();
    let short = shortened(text, KEPT_MAX);
    if short.len() < text.len() { format!("{short}...") } else { short.to_owned() }
}

/// The messages of a line without colours.
pub(super) fn messages(number: usize, line: &str) -> Vec<Message<'_>> {
    let mut headers: Vec<Header<'_>> = Vec::new();
    let mut from = 0;
    while headers.len() < MESSAGES_MAX {
        let next =
            MARKERS.iter().filter_map(|(marker, level)| Some((line[from..].find(marker)?, *marker, *level)));
        let Some((at, marker, level)) = next.min_by_key(|(at, ..)| *at) else { break };
        let (at, end) = (from + at, from + at + marker.len());
        headers.extend(header(number, &line[from..at], level).map(|(start, message)| Header {
            start: from + start,
            text: end,
            message,
        }));
        from = end;
    }
    let ends: Vec<usize> = headers.iter().skip(1).map(|header| header.start).chain([line.len()]).collect();
    headers.into_iter().zip(ends).filter_map(|(header, end)| header.message(line, end)).collect()
}

impl<'l> Header<'l> {
    /// The message up to the next header; nothing if it is empty, which a torn line leaves.
    fn message(self, line: &'l str, end: usize) -> Option<Message<'l>> {
        let text = line.get(self.text..end)?.trim_end();
        let text = text.strip_prefix(' ').unwrap_or(text);
        let whole = line.get(self.start..end)?.trim_end();
        (!text.trim().is_empty()).then_some(Message { text, whole, ..self.message })
    }
}

/// The header that ends a text, and where in it the header begins. Nothing if it is not one.
fn header(number: usize, before: &str, level: Level) -> Option<(usize, Message<'_>)> {
    let mut rest = before.trim_end();
    let mut message =
        Message { number, host: "", pid: 0, tid: 0, device: None, level, place: "", text: "", whole: "" };
    if level != Level::Info && !rest.ends_with(']') {
        let word = last_word(rest);
        let is_place = word.rsplit_once(':').is_some_and(|(_, line)| line.parse::<u32>().is_ok());
        if is_place && word.matches(':').count() == 1 {
            message.place = word;
            rest = rest[..rest.len() - word.len()].trim_end();
        }
        // The time of a trace line.
        let word = last_word(rest);
        if word.contains('.') && word.parse::<f64>().is_ok() {
            rest = rest[..rest.len() - word.len()].trim_end();
        }
    }
    let word = last_word(rest);
    let device =
        word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).and_then(|word| word.parse().ok());
    let mut start = rest.len();
    if device.is_some() {
        message.device = device;
        start = rest.len() - word.len();
        rest = rest[..start].trim_end();
    }
    let word = last_word(rest);
    let mut parts = word.rsplitn(3, ':');
    let mut number_of = || parts.next().and_then(|part| part.parse().ok());
    let (tid, pid) = (number_of(), number_of());
    if let (Some(tid), Some(pid), Some(address)) = (tid, pid, parts.next()) {
        // What stands before the host belongs to the launcher.
        let named = address.trim_end_matches('>');
        let is_part_of_name = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
        let host = named.rsplit(|letter: char| !is_part_of_name(letter)).next().unwrap_or("");
        (message.host, message.pid, message.tid) = (host, pid, tid);
        start = rest.len() - (word.len() - named.len()) - host.len();
    } else if device.is_none() {
        return None;
    }
    Some((start, message))
}

fn last_word(text: &str) -> &str {
    text.rsplit(char::is_whitespace).next().unwrap_or("")
}
