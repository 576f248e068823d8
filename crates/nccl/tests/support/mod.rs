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

/// Compiles a program in C that is linked to the library.
#[allow(dead_code, reason = "some tests need it")]
pub(crate) fn compile(folder: &Path, program: &str) -> PathBuf {
    let library = folder.join("libnccl.so.2").display().to_string();
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    built("cc", &format!("{program}.c"), &folder.join(program), &["-std=gnu11", &library, &rpath])
}

/// Compiles a source of these tests.
pub(crate) fn built(compiler: &str, source: &str, made: &Path, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let mut command = command(compiler);
    command
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(made)
        .arg(source)
        .args(options);
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    made.to_owned()
}

/// Runs a program without inherited settings, on the loopback interface.
#[allow(dead_code, reason = "some tests need it")]
pub(crate) fn run(program: &Path, arguments: &str, settings: &[(&str, &str)]) -> String {
    let done = command(program)
        .args(arguments.split(' '))
        .env_clear()
        .env("NCCL_SOCKET_IFNAME", "lo")
        .env("WEFT_DEADLINE", "60s")
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.ends_with("ok\n"), "{arguments}: {:?}\n{out}\n{err}", done.status);
    out.into_owned()
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
