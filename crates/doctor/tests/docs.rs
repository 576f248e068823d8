//! `docs/doctor.md` ends with a table of all checks; `WEFT_BLESS=1` writes it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use weftlink_doctor::checks;

#[test]
fn the_page_lists_all_checks() {
    let mut page = String::from(include_str!("docs/doctor.md"));
    writeln!(page, "\n## All checks\n\n| check | finds | reads |\n|---|---|---|").unwrap();
    for check in checks::all() {
        writeln!(page, "| `{}` | {} | {} |", check.id, check.finds, check.reads).unwrap();
    }
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md"));
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == page, "docs/doctor.md is out of date; run `make bless`");
}

#[test]
fn checks_have_names_of_their_own() {
    let ids: BTreeSet<&str> = checks::all().map(|check| check.id).collect();
    assert_eq!(ids.len(), checks::all().count());
    for check in checks::all() {
        let is_plain = check.id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        assert!(is_plain && !check.finds.is_empty() && !check.reads.is_empty(), "{}", check.id);
        assert!(!check.finds.contains('|') && !check.reads.contains('|'), "{}", check.id);
    }
}
