//! Dependencies inside a crate point one way: its top-level modules import each other without a cycle. A module and its children count
//! as one, and unit tests do not count.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_import_each_other_one_way() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let graph = graph(&folder.join("src"));
        let edges = |cycle: &str| {
            let members: Vec<&str> = cycle.split(' ').collect();
            let inside = |from: &&str| {
                (from.to_string(), graph[*from].iter().filter(|to| members.contains(&to.as_str())))
            };
            let lines = members
                .iter()
                .map(inside)
                .map(|(from, to)| format!("{from} -> {:?}", to.collect::<Vec<_>>()));
            lines.collect::<Vec<_>>().join(", ")
        };
        let cycles: Vec<String> = cycles(&graph).iter().map(|cycle| edges(cycle)).collect();
        assert!(cycles.is_empty(), "crate {name}: modules import each other: {}", cycles.join("; "));
    }
}

/// The imports between top-level modules of a crate.
fn graph(sources: &Path) -> Graph {
    let root = ["lib.rs", "main.rs"].map(|name| sources.join(name)).into_iter().find(|path| path.exists());
    let Some(root) = root else { return Graph::new() };
    let root = without_tests(&fs::read_to_string(root).unwrap());
    let modules: BTreeSet<String> = root.lines().filter_map(declared).collect();
    let exported = exported(&root, &modules);
    let mut graph: Graph = modules.iter().map(|module| (module.clone(), BTreeSet::new())).collect();
    for module in &modules {
        let mut files = files(&sources.join(module));
        files.push(sources.join(format!("{module}.rs")));
        for file in files.iter().filter(|file| file.exists() && !file.ends_with("tests.rs")) {
            let text = without_tests(&fs::read_to_string(file).unwrap());
            // In a top-level module, `super` is the root.
            let is_top = file.parent() == Some(sources)
                || file.ends_with("mod.rs") && file.parent().unwrap().parent() == Some(sources);
            let prefixes: &[&str] = if is_top { &["crate::", "super::"] } else { &["crate::"] };
            for name in prefixes.iter().flat_map(|prefix| named(&text, prefix)) {
                let target = if modules.contains(&name) { Some(&name) } else { exported.get(&name) };
                if let Some(target) = target.filter(|target| *target != module) {
                    graph.get_mut(module).unwrap().insert(target.clone());
                }
            }
        }
    }
    graph
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.map(|entry| entry.unwrap().path()).flat_map(below).collect()
}

/// A source without comments and test-only code.
fn without_tests(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: Vec<&str> = code.collect();
    let is_test = |at: &usize| {
        code[*at] == "#[cfg(test)]"
            && code[*at + 1..].iter().take(3).any(|line| line.starts_with("mod tests"))
    };
    let end = (0..code.len()).find(is_test).unwrap_or(code.len());
    let mut kept = Vec::new();
    let mut lines = code[..end].iter();
    while let Some(line) = lines.next() {
        if *line == "#[cfg(test)]" {
            // Skip the item, which is declared in one line.
            lines.by_ref().find(|line| !line.starts_with("#["));
        } else {
            kept.push(*line);
        }
    }
    kept.join("\n")
}

/// The module that a line declares.
fn declared(line: &str) -> Option<String> {
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub ")).unwrap_or(line);
    Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
}

/// Names that the root re-exports from its modules.
fn exported(root: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for statement in root.split(';') {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        let path = path.trim().trim_start_matches("self::").trim_start_matches("crate::");
        let Some((module, names)) = path.split_once("::").filter(|(module, _)| modules.contains(*module))
        else {
            continue;
        };
        let words = names.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        exported
            .extend(words.filter(|word| !word.is_empty()).map(|word| (word.to_owned(), module.to_owned())));
    }
    exported
}

/// The first names after a prefix: `a` in `crate::a::b`, `a` and `c` in `crate::{a::b, c}`.
fn named(text: &str, prefix: &str) -> Vec<String> {
    let word = |text: &str| {
        text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect::<String>()
    };
    let mut names = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let rest = &text[at + prefix.len()..];
        let Some(inside) = rest.strip_prefix('{') else {
            names.push(word(rest));
            continue;
        };
        let mut depth = 0_usize;
        let mut item = String::new();
        for letter in inside.chars() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => names.push(word(std::mem::take(&mut item).trim_start())),
                _ if depth == 0 => item.push(letter),
                _ => {}
            }
        }
        names.push(word(item.trim_start()));
    }
    names
}

/// The sets of modules that reach each other, each in order of names.
fn cycles(graph: &Graph) -> Vec<String> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = graph[from].iter().collect();
        while let Some(module) = next.pop() {
            if seen.insert(module.clone()) {
                next.extend(&graph[module]);
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|module| (module, reach(module))).collect();
    let together = |module: &&String| {
        let both = |other: &&String| reached[module].contains(*other) && reached[*other].contains(*module);
        graph.keys().filter(both).cloned().collect::<Vec<_>>().join(" ")
    };
    let found: BTreeSet<String> = graph
        .keys()
        .filter(|module| reached[module].contains(*module))
        .map(|module| together(&module))
        .collect();
    found.into_iter().collect()
}

#[test]
fn imports_are_found_and_cycles_named() {
    assert_eq!(named("use crate::{a::{b, c}, d};\nlet x = crate::e::f();", "crate::"), ["a", "d", "e"]);
    let edge = |from: &str, to: &[&str]| (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect());
    let graph = Graph::from([edge("a", &["b"]), edge("b", &["c"]), edge("c", &["b"]), edge("d", &["a"])]);
    assert_eq!(cycles(&graph), ["b c"]);
    let text = "use crate::a;\n#[cfg(test)]\nmod loom_tests;\nfn f() {}\n#[cfg(test)]\nmod tests {\nuse crate::b;\n}";
    assert_eq!(without_tests(text), "use crate::a;\nfn f() {}");
}
