//! The names of the library: its own, and those that it exports.

fn main() {
    println!("cargo::rerun-if-changed=tuner.map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl-tuner-weft.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}/tuner.map", env!("CARGO_MANIFEST_DIR"));
    // NCCL closes the library with its last communicator. It stays: other threads may be about to leave it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
