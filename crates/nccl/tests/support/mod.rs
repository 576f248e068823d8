//! Compiles the programs of the tests against the library.

use std::path::{Path, PathBuf};

use weftlink_testkit::processes::command;

/// A folder of the test's own, with the library under the name by which programs look for it.
pub(crate) fn with_library(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let built = std::env::current_exe().unwrap().parent().unwrap().join("libnccl.so");
    std::os::unix::fs::symlink(&built, folder.join("libnccl.so.2")).unwrap();
    folder
}

/// Compiles a program into the folder.
pub(crate) fn compile(folder: &Path, program: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let made = folder.join(program);
    let compiled = command("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&made)
        .arg(tests.join(format!("{program}.c")))
        .arg(folder.join("libnccl.so.2"))
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    made
}

/// Compiles the stand-in for the CUDA driver, whose GPU has host memory, into the folder.
#[allow(dead_code, reason = "some tests need it")]
pub(crate) fn build_driver(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cuda/src/lost_tests/driver.cc");
    let mut compile = command("g++");
    compile.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o"]);
    compile.arg(folder.join("libcuda.so.1")).arg(source);
    assert!(compile.status().unwrap().success());
}
