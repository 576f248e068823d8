//! Loading the library: into programs in C++, by a handle, and beside another NCCL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::{built, run, with_library};

#[test]
fn a_program_in_cpp() {
    let folder = with_library("cpp");
    let library = folder.join("libnccl.so.2").display().to_string();
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    run(&built("c++", "layout.cc", &folder.join("layout"), &["-std=c++17", &library, &rpath]), "x", &[]);
}

#[test]
fn loading_does_nothing_and_another_nccl_is_refused() {
    let folder = with_library("loading");
    std::fs::create_dir(folder.join("other")).unwrap();
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"];
    let other = built("cc", "other.c", &folder.join("other/libnccl.so.2"), &shared);
    // As PyTorch: DT_RPATH, which comes before LD_LIBRARY_PATH, names the folder of the other one.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.join("other").display());
    let user = ["-shared", "-fPIC", &other.display().to_string(), &rpath];
    let user = built("cc", "user.c", &folder.join("libuser.so"), &user);
    let program = built("cc", "loading.c", &folder.join("loading"), &["-std=gnu11", "-ldl"]);
    // The loader prints the name by which it opened the file, and the kernel that of the file.
    let weft = std::fs::canonicalize(folder.join("libnccl.so.2")).unwrap().display().to_string();
    let libraries = format!("{weft} {} {}", other.display(), user.display());
    for mode in ["alone", "global", "local"] {
        run(&program, &format!("{mode} {libraries}"), &[]);
    }
    run(&program, &format!("preloaded {libraries}"), &[("LD_PRELOAD", &weft)]);
}
