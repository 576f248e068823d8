//! What the tests share: the library as a program finds it, compilers, and programs that are run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use weftlink_testkit::processes::command;

/// The library that Cargo has built for this test, beside its binary.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libweft.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// A new, empty folder.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{name}"));
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
        _ => fs::create_dir_all(&folder).unwrap(),
    }
    folder
}

/// Compiles a program against `weft.h` and the library, which lie beside it as after `make capi`. Warnings are errors.
pub(crate) fn compile(compiler: &str, options: &[&str], source: &Path, program: &Path) {
    let folder = program.parent().unwrap();
    for name in ["libweft.so", "libweft.so.0"] {
        let link = folder.join(name);
        let _ = fs::remove_file(&link);
        symlink(library(), link).unwrap();
    }
    let header = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut run = command(compiler);
    run.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]).args(options);
    run.arg(source).arg("-I").arg(header).arg("-L").arg(folder).arg("-lweft");
    run.arg(format!("-Wl,-rpath,{}", folder.display())).arg("-o").arg(program);
    success(&mut run);
}

/// Runs a command, which must succeed, and returns what it prints.
pub(crate) fn success(run: &mut Command) -> String {
    let done = run.output().unwrap_or_else(|error| panic!("{run:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{run:?}: {}\n{text}\n{errors}", done.status);
    text.into_owned()
}
