//! What the tests of documents share: a shell that finds `weft`, and the comparison of what is committed with what is
//! true now, which `WEFT_BLESS=1` turns into writing it.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{env, fs};

use weftlink_testkit::processes::command;

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A new, empty folder.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
        _ => fs::create_dir_all(&folder).unwrap(),
    }
    folder
}

/// An example, which Cargo puts into the folder `examples` beside the command.
pub(crate) fn example(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_weft")).with_file_name("examples").join(name);
    let shown = built.display();
    assert!(built.exists(), "{shown} is not there: `cargo build -p weftlink --examples` builds it");
    built
}

/// A folder with the C library and its header, as after `make capi`.
pub(crate) fn c_library() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_weft")).with_file_name("deps").join("libweft.so");
    let shown = built.display();
    assert!(built.exists(), "{shown} is not there: `cargo build -p weftlink-capi` builds it");
    let folder = scratch("c-library");
    for (name, file) in
        [("libweft.so", &built), ("libweft.so.0", &built), ("weft.h", &root().join("crates/capi/weft.h"))]
    {
        std::os::unix::fs::symlink(file.canonicalize().unwrap(), folder.join(name)).unwrap();
    }
    folder
}

/// What a command printed, and how it ended.
pub(crate) struct Outcome {
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) code: Option<i32>,
}

/// The output of a command that must go well.
pub(crate) fn shown(folder: &Path, command: &str) -> String {
    let Outcome { output, errors, code } = shell(folder, command);
    assert_eq!(code, Some(0), "{command}\n{errors}");
    output
}

/// The same with `--json`.
pub(crate) fn json(folder: &Path, command: &str) -> serde_json::Value {
    serde_json::from_str(&shown(folder, &format!("{command} --json"))).unwrap()
}

/// Runs a command line in a folder, by a shell whose `weft` is the one just built. What adapts the output to a terminal is not set.
pub(crate) fn shell(folder: &Path, line: &str) -> Outcome {
    let weft = Path::new(env!("CARGO_BIN_EXE_weft")).parent().unwrap();
    let path =
        env::join_paths([weft.to_owned()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap())));
    let done = command("sh")
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", path.unwrap())
        .env("LC_ALL", "C.UTF-8")
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Outcome {
        output: String::from_utf8(done.stdout).unwrap(),
        errors: String::from_utf8(done.stderr).unwrap(),
        code: done.status.code(),
    }
}

/// Fails where a committed file is not what it should be; with `WEFT_BLESS=1` makes it so instead.
pub(crate) fn assert_current(file: &str, wanted: &str) {
    let path = root().join(file);
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if committed == wanted {
        return;
    }
    if env::var_os("WEFT_BLESS").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, wanted).unwrap();
        println!("blessed {file}");
        return;
    }
    let (old, new): (Vec<_>, Vec<_>) = (committed.lines().collect(), wanted.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let excerpt =
        |lines: &[&str]| lines.iter().skip(same).take(12).fold(String::new(), |all, line| all + line + "\n");
    panic!(
        "{file} is out of date from line {}; `make bless` writes it afresh.\n--- committed\n{}--- now\n{}",
        same + 1,
        excerpt(&old),
        excerpt(&new),
    );
}
