//! The names of the library: its own, and those that it exports.

fn main() {
    println!("cargo:rerun-if-changed=nccl.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // The compiler exports what has a Rust function. The weak names have none.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}/nccl.map", env!("CARGO_MANIFEST_DIR"));
}
