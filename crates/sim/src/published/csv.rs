//! Parses CSV records (RFC 4180, quotes included), with the line that each starts on.

use super::ReadError;

/// Maximum file size: ten times the published file.
pub const BYTES_MAX: usize = 64 << 20;

/// A record: the line it starts on, and its fields.
pub(super) type Record = (usize, Vec<String>);

/// All records; empty lines are skipped.
pub(super) fn records(text: &str) -> Result<Vec<Record>, ReadError> {
    if text.len() > BYTES_MAX {
        return Err(ReadError::TooLong { bytes: text.len(), bytes_max: BYTES_MAX });
    }
    let mut all = Vec::new();
    let mut fields: Vec<String> = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut line = 1;
    let mut start = 1;
    let mut letters = text.strip_prefix('\u{feff}').unwrap_or(text).chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' if quoted || field.is_empty() => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                finish(&mut all, start, &mut fields, &mut field);
                line += 1;
                start = line;
            }
            '\r' if !quoted => {}
            _ => {
                line += usize::from(letter == '\n');
                field.push(letter);
            }
        }
    }
    if quoted {
        return Err(ReadError::OpenQuote { line: start });
    }
    finish(&mut all, start, &mut fields, &mut field);
    Ok(all)
}

fn finish(all: &mut Vec<Record>, line: usize, fields: &mut Vec<String>, field: &mut String) {
    if fields.is_empty() && field.trim().is_empty() {
        field.clear();
        return;
    }
    fields.push(std::mem::take(field));
    all.push((line, std::mem::take(fields)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_commas_quotes_and_lines() {
        let found = records("a,\"b, \"\"c\"\"\nd\",e\r\n\nf,,\n").unwrap();
        assert_eq!(
            found,
            [
                (1, vec!["a".into(), "b, \"c\"\nd".into(), "e".into()]),
                (4, vec!["f".into(), String::new(), String::new()]),
            ]
        );
    }

    #[test]
    fn an_unclosed_quote_is_an_error() {
        assert!(matches!(records("a\nb,\"c\nd"), Err(ReadError::OpenQuote { line: 2 })));
    }
}
