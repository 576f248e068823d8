#!/bin/bash
# Runs the kernels' tests for 64-bit ARM under qemu. Needs a compiler with that target's standard library (rustup's, or else Debian's), a
# linker for it and qemu-user. With `install`, installs missing Debian packages; otherwise names what is missing and runs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=aarch64-unknown-linux-gnu

compiler() {
    for candidate in rustc /usr/bin/rustc; do
        local folder
        if folder=$("$candidate" --print target-libdir --target $target 2>/dev/null) && compgen -G "$folder/libstd-*.rlib" >/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

missing() {
    compiler >/dev/null || echo "the standard library for $target"
    command -v aarch64-linux-gnu-gcc >/dev/null || echo "aarch64-linux-gnu-gcc"
    command -v qemu-aarch64 >/dev/null || echo "qemu-aarch64"
}

if [[ $(uname -m) == aarch64 ]]; then
    exec cargo test -p weftlink-kernels --lib --release --locked
fi
if [[ -n $(missing) && ${1:-} == install ]]; then
    echo "installing missing packages: apt-get install qemu-user gcc-aarch64-linux-gnu rustc-web libstd-rust-web-dev:arm64"
    root=
    if (( EUID != 0 )); then root=sudo; fi
    $root dpkg --add-architecture arm64
    $root apt-get update -q
    $root apt-get install -qy --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross \
        rustc-web libstd-rust-web-dev:arm64
fi
if [[ -n $(missing) ]]; then
    echo "NEON kernels not tested; missing:" $(missing | paste -sd, | sed 's/,/, /g')
    [[ ${1:-} != install ]] && exit 0 || exit 1
fi
RUSTC=$(compiler)
export RUSTC
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Prefer Debian's own libraries to the linker's: with the latter, threads never start under qemu 7.2.
libraries=/usr/aarch64-linux-gnu
if [[ -e /lib/ld-linux-aarch64.so.1 ]]; then libraries=/; fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L $libraries"
cargo test -p weftlink-kernels --lib --release --locked --target $target --target-dir target/neon
