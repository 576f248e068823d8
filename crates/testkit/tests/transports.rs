//! A new transport touches no match in the engine: what runs, compiles, places and chooses plans names no transport. Transports are the
//! modules of `crates/comm/src/transport` that declare capabilities.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Sources below `crates/comm/src` that must not name a transport.
const UNAWARE: [&str; 6] = ["engine", "compile", "compile.rs", "layout.rs", "choose", "choose.rs"];

#[test]
fn the_engine_names_no_transport() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("comm/src");
    let transports = transports(&sources.join("transport"));
    assert_eq!(transports, ["cma", "shared_memory", "tcp"], "are all transports found?");
    let files: Vec<PathBuf> = UNAWARE.iter().flat_map(|path| files(&sources.join(path))).collect();
    assert!(files.len() > UNAWARE.len(), "the engine has moved");
    for file in files {
        let named = named(&fs::read_to_string(&file).unwrap(), &transports);
        assert_eq!(named, None, "{} names a transport", file.display());
    }
}

/// The modules that declare the capabilities of a transport.
fn transports(folder: &Path) -> Vec<String> {
    let declares = |path: &PathBuf| {
        let path = if path.is_dir() { path.join("mod.rs") } else { path.clone() };
        fs::read_to_string(path).unwrap().contains("const CAPABILITIES: Capabilities")
    };
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<String> = paths.filter(declares).map(name).collect();
    names.sort();
    names
}

/// A file, or all files below a folder.
fn files(path: &Path) -> Vec<PathBuf> {
    match fs::read_dir(path) {
        Ok(entries) => entries.flat_map(|entry| files(&entry.unwrap().path())).collect(),
        Err(_) => vec![path.to_owned()],
    }
}

/// The first transport that a source names outside of comments: as a module, or as a variant of an enum.
fn named(text: &str, transports: &[String]) -> Option<String> {
    let variant = |name: &String| {
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        name.split('_').map(capital).collect::<String>()
    };
    let code =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let has_word = |word: &str| code.split(|letter| !is_part(letter)).any(|found| found == word);
    let has_variant = |name: &String| {
        let variant = variant(name);
        ["Transport", "SendPort", "ReceivePort"].iter().any(|of| code.contains(&format!("{of}::{variant}")))
            || has_word(&format!("{variant}Transport"))
    };
    transports.iter().find(|name| has_word(name) || has_variant(name)).cloned()
}

#[test]
fn transport_names_are_found() {
    let transports = ["shared_memory", "tcp"].map(str::to_owned);
    for text in ["use crate::transport::tcp;", "SendPort::Tcp(port) => {}", "fn drain(it: &mut TcpTransport)"]
    {
        assert_eq!(named(text, &transports).as_deref(), Some("tcp"), "{text}");
    }
    assert_eq!(named("Transport::SharedMemory", &transports).as_deref(), Some("shared_memory"));
    assert_eq!(named("// tcp\nuse weftlink_shm::memory::SharedMemory;", &transports), None);
}
