//! The host's name, and paths that contain it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The name of this host in logs and records.
pub fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// Replaces `%h`, `%r` and `%p` in a path; `%%` is a percent sign. Without a rank, `%r` is `unknown`.
pub fn expanded(path: &Path, rank: Option<usize>) -> PathBuf {
    let text = path.to_string_lossy();
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        match characters.next() {
            Some('h') => out += host(),
            Some('r') => out += &rank.map_or("unknown".to_owned(), |rank| rank.to_string()),
            Some('p') => out += &std::process::id().to_string(),
            Some('%') => out.push('%'),
            other => out.extend(['%'].into_iter().chain(other)),
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced() {
        let path = expanded(Path::new("/tmp/%h.%r.%p.%%.%x%"), Some(3));
        let wanted = format!("/tmp/{}.3.{}.%.%x%", host(), std::process::id());
        assert_eq!(path.to_str(), Some(wanted.as_str()));
        assert_eq!(expanded(Path::new("%r"), None).to_str(), Some("unknown"));
    }
}
