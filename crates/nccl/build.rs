//! The names of the library: its own, and those that it exports.

fn main() {
    println!("cargo:rerun-if-changed=nccl.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Where another NCCL comes first, functions of this one still call each other, not those of the other one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // The compiler exports what has a Rust function. The weak names have none.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}/nccl.map", env!("CARGO_MANIFEST_DIR"));
}
