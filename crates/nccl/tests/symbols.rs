//! The names that the library exports.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::process::Command;

/// The names of a kind that the library defines: `W` weak, `T` strong.
fn exported(kind: &str) -> BTreeSet<String> {
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libnccl.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let name = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        (words.next()? == kind).then(|| words.next().map(str::to_owned))?
    };
    text.lines().filter_map(name).collect()
}

#[test]
fn all_names_of_nccl_are_exported_and_no_others() {
    let names: BTreeSet<String> = include_str!("exports-2.30.7.txt").lines().map(str::to_owned).collect();
    let twins: BTreeSet<String> = names.iter().map(|name| format!("p{name}")).collect();
    assert_eq!(exported("W"), names);
    assert_eq!(exported("T"), twins);
    for name in include_str!("exports-2.28.9.txt").lines() {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn the_library_has_the_name_by_which_programs_look_for_it() {
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libnccl.so");
    let read = Command::new("readelf").arg("-d").arg(library).output().unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(text.contains("Library soname: [libnccl.so.2]"), "{text}");
    // Loading it must not load CUDA.
    assert!(!text.contains("libcuda"), "{text}");
}
