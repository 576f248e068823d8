//! Sets the SONAME of libweft: its number changes with the binary interface.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
}
