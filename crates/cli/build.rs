//! Tells the command which commit it is built from, for `weft --version`.
//!
//! `WEFT_COMMIT` says it where there is no repository. Without either, the version says so. Cargo runs this again only when the
//! commit changes, and what it writes depends on the commit alone, so that builds stay reproducible.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=WEFT_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let commit = std::env::var("WEFT_COMMIT").ok().filter(|commit| !commit.is_empty()).or_else(commit);
    println!("cargo::rustc-env=WEFT_BUILT_COMMIT={}", commit.as_deref().unwrap_or("unknown commit"));
    println!("cargo::rustc-env=WEFT_BUILT_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=WEFT_BUILT_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
}

/// The commit of the repository that has this file, and not of one around an unpacked archive.
fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let branch = git(&["rev-parse", "--symbolic-full-name", "HEAD"]);
    // A file that is not there would make Cargo run this at every build.
    let watched = ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
    for path in watched.filter_map(|name| git(&["rev-parse", "--git-path", name])).map(PathBuf::from) {
        if Path::new(&path).is_file() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    Some(commit)
}

fn git(words: &[&str]) -> Option<String> {
    let done = Command::new("git").args(words).output().ok().filter(|done| done.status.success())?;
    let text = String::from_utf8(done.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
