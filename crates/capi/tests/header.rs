//! `weft.h` is generated from the sources of the library: `WEFT_BLESS=1` writes it. C and C++ compile it without warnings, and the library
//! exports what it declares.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use common::{compile, library, scratch, success};
use weftlink_testkit::processes::command;

/// Modules with exported items, in the order of the header. Each becomes a section, whose text is the comment at the top of the module.
const SECTIONS: [&str; 13] = [
    "error",
    "types",
    "options",
    "comm",
    "start",
    "collectives",
    "request",
    "started",
    "uneven",
    "messages",
    "stream",
    "plan",
    "predict",
];

/// Types of the header; cbindgen would leave out those that no function of their section mentions.
const TYPES: [&str; 13] = [
    "weft_status",
    "weft_blame_kind",
    "weft_blame",
    "weft_type",
    "weft_op",
    "weft_options",
    "weft_comm",
    "weft_request",
    "weft_pair",
    "weft_outgoing",
    "weft_incoming",
    "weft_plan",
    "weft_prediction",
];

/// Numbers of `any.rs`, and the enums that the header has in their place.
const ENUMS: [(&str, &str); 3] = [("Status", "weft_status"), ("Type", "weft_type"), ("Op", "weft_op")];

const BEGIN: &str = r#"/*
 * Weft: multi-GPU communication, planned from the wiring. The C interface.
 *
 * Generated from crates/capi/src. The guide is docs/c.md; a program is compiled with
 *
 *     cc program.c $(pkg-config --cflags --libs weft) -o program
 */
#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEFT_VERSION "@version@"

#ifdef __cplusplus
extern "C" {
#endif
"#;

const END: &str = "
#ifdef __cplusplus
}
#endif

#endif /* WEFT_H */
";

#[test]
fn the_header_is_current() {
    let wanted = header();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("weft.h");
    let mut committed = fs::read_to_string(&path).unwrap_or_default();
    if committed != wanted && std::env::var_os("WEFT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &wanted).unwrap();
        committed.clone_from(&wanted);
    }
    let differs = committed.lines().zip(wanted.lines()).position(|(old, new)| old != new);
    assert!(committed == wanted, "weft.h is out of date from line {differs:?}; `make bless` writes it");
}

#[test]
fn c_and_cpp_compile_the_header_without_warnings() {
    let folder = scratch("header");
    fs::write(folder.join("weft.h"), header()).unwrap();
    for (compiler, standard, name) in [
        ("cc", "-std=c99", "a.c"),
        ("cc", "-std=c17", "b.c"),
        ("g++", "-std=c++11", "c.cc"),
        ("g++", "-std=c++20", "d.cc"),
    ] {
        let source = folder.join(name);
        // Twice, for the guard, and first, so that it includes what it needs.
        fs::write(&source, "#include \"weft.h\"\n#include \"weft.h\"\nint main(void) { return 0; }\n")
            .unwrap();
        compile(
            compiler,
            &[standard, "-Wstrict-prototypes"][..1 + usize::from(compiler == "cc")],
            &source,
            &folder.join("program"),
        );
    }
}

/// Everything that is exported begins with `weft_` and is declared, and the other way round.
#[test]
fn the_library_exports_what_the_header_declares() {
    let dynamic = success(command("nm").args(["-D", "--defined-only"]).arg(library()));
    let exported: BTreeSet<&str> =
        dynamic.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let header = header();
    let declared = declared(&header);
    assert!(declared.iter().all(|name| name.starts_with("weft_")), "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn the_guide_lists_every_function() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c.md");
    let (guide, header) = (fs::read_to_string(guide).unwrap(), header());
    for name in declared(&header) {
        let call = name.trim_end_matches("_start").trim_end_matches("_on_stream");
        assert!(guide.contains(&format!("`{call}`")) || guide.contains(&format!("`{name}`")), "{name}");
    }
}

/// The functions of a header.
fn declared(header: &str) -> BTreeSet<&str> {
    let lines = header.lines().filter(|line| !line.starts_with([' ', '#', '/', '}']));
    let before = lines.filter_map(|line| line.split_once('(')).map(|(before, _)| before);
    before.filter_map(|before| before.rsplit([' ', '*']).next()).collect()
}

#[test]
fn the_soname_has_the_number_of_the_interface() {
    let dynamic = success(command("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("[libweft.so.0]"), "{dynamic}");
}

fn header() -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut header = BEGIN.replace("@version@", env!("CARGO_PKG_VERSION"));
    for name in SECTIONS {
        let source = sources.join(format!("{name}.rs"));
        header += &section_comment(&fs::read_to_string(&source).unwrap());
        let mut bindings = Vec::new();
        Builder::new().with_config(config()).with_src(&source).generate().unwrap().write(&mut bindings);
        header += &format!("\n{}\n", for_c(&String::from_utf8(bindings).unwrap()).trim());
    }
    header + END
}

fn config() -> Config {
    let mut config = Config {
        language: Language::C,
        style: Style::Both,
        no_includes: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::Doxy,
        ..Config::default()
    };
    config.export.include = TYPES.map(str::to_owned).to_vec();
    config.export.rename = ENUMS.map(|(number, name)| (number.to_owned(), name.to_owned())).into();
    config
}

/// The comment of a section.
fn section_comment(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!")).map(|line| format!(" *{line}\n"));
    format!("\n\n/* {}\n{} */\n", "-".repeat(90), lines.collect::<String>())
}

/// Without what only Rust programs need to know, with short comments on one line.
fn for_c(text: &str) -> String {
    let (mut kept, mut is_safety) = (Vec::<String>::new(), false);
    for line in text.lines() {
        let end = line.trim() == "*/";
        is_safety = (is_safety || line.trim() == "* # Safety") && !end;
        if is_safety {
            continue;
        }
        if end && kept.last().is_some_and(|last| last == " *") {
            kept.pop();
        }
        let begins = kept.len() > 1 && kept[kept.len() - 2].trim() == "/**";
        match kept.last_mut().filter(|_| end && begins) {
            Some(only) => {
                *only = only.replacen(" * ", "/** ", 1) + " */";
                kept.remove(kept.len() - 2);
            }
            None if line.starts_with("typedef") => kept.push(line.to_owned()),
            None => kept.push(line.replace("struct weft_", "weft_").replace("enum weft_", "weft_")),
        }
    }
    kept.join("\n")
}
