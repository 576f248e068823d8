//! NVRTC compiles for every architecture that Weft supports; `src/source.rs` tests the same of the real kernel. This needs NVRTC but no GPU
//! and no driver; `make cuda` downloads it and runs these tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use weftlink_cuda::cache::{Cache, Origin};
use weftlink_cuda::nvrtc::{Architecture, Nvrtc, Program};
use weftlink_cuda::{Error, WINDOW_H};

/// Each version of `crates/cuda/nvrtc.py`, and the architectures it has to compile for. 12.9 is the last for sm_70.
const COMPILED: [(&str, &[u32]); 2] = [("12.9.86", &[70]), ("13.0.88", &[75, 80, 86, 89, 90, 100, 103, 120])];

/// A kernel with what device code relies on: 16-byte accesses, scoped atomics, a barrier, assembly with acquire and release.
const KERNEL: &str = r#"
extern "C" __global__ void add_one(unsigned int *data, unsigned int count, unsigned int *flag) {
    __shared__ unsigned int seen;
    if (threadIdx.x == 0) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    }
    __syncthreads();
    for (unsigned int at = blockIdx.x * blockDim.x + threadIdx.x; at < count / 4; at += gridDim.x * blockDim.x) {
        uint4 four = reinterpret_cast<uint4 *>(data)[at];
        four.x += AMOUNT + seen; four.y += AMOUNT; four.z += AMOUNT; four.w += AMOUNT;
        reinterpret_cast<uint4 *>(data)[at] = four;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(flag), "r"(1u) : "memory");
    }
}
"#;

/// A kernel that sends to the next rank, from shared memory too.
const RING: &str = r#"
extern "C" __global__ void ring(weft::Window window, const float *from, float *into, unsigned long long bytes) {
    __shared__ float last[32];
    unsigned int next = (window.rank + 1) % window.ranks, before = (window.rank + window.ranks - 1) % window.ranks;
    weft::put(window, next, 0, from, bytes);
    last[threadIdx.x % 32] = (float)window.rank;
    __syncthreads();
    weft::put(window, next, bytes, last, sizeof last);
    weft::signal(window, next);
    if (!weft::wait(window, before)) return;
    weft::get(window, window.rank, 0, into, bytes);
    __syncthreads();
    into[0] += *(const float *)weft::peer_pointer(window, window.rank);
}
"#;

/// Kernels that use multicasts.
const SUMS: &str = r#"
extern "C" __global__ void sums(weft::Window window, const float *from, unsigned long long bytes) {
    weft::put_to_all(window, 0, from, bytes);
    weft::sum_to_all(window, 0, bytes, weft::multicast_sum_f32);
    weft::sum_to_all(window, 0, bytes, weft::multicast_sum_f16);
    weft::sum_to_all(window, 0, bytes, weft::multicast_sum_bf16);
}
"#;

/// What is compiled, by name.
const SOURCES: [(&str, &str, &[&str]); 1] = [("add_one", KERNEL, &["-DAMOUNT=1"])];

/// The library of a version.
fn nvrtc(version: &str) -> Nvrtc {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/nvrtc").join(version).join("nvidia");
    let parts = fs::read_dir(&folder).map(|parts| parts.map(|part| part.unwrap().path().join("lib")));
    let is_library = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libnvrtc.so.");
    let mut files = parts
        .into_iter()
        .flatten()
        .flat_map(|lib| fs::read_dir(lib).unwrap())
        .map(|file| file.unwrap().path());
    let file = files.find(is_library).unwrap_or_else(|| {
        panic!("there is no NVRTC {version} in {}: run `make cuda`, which downloads it", folder.display())
    });
    Nvrtc::open(&file).unwrap()
}

#[test]
#[ignore = "needs NVRTC, which `make cuda` downloads"]
fn nvrtc_compiles_for_every_architecture() {
    for (version, architectures) in COMPILED {
        let nvrtc = nvrtc(version);
        assert!(version.starts_with(&nvrtc.version().to_string()), "{version} is {}", nvrtc.version());
        for architecture in architectures.iter().map(|number| Architecture(*number)) {
            assert_eq!(nvrtc.target_for(architecture), Some(architecture));
            for (name, source, options) in SOURCES {
                let cubin = nvrtc.compile(&Program { name, source, options, architecture }).unwrap();
                let (elf, machine) =
                    (&cubin.bytes()[..4], u16::from_le_bytes([cubin.bytes()[18], cubin.bytes()[19]]));
                assert_eq!(
                    (elf, machine),
                    (b"\x7fELF".as_slice(), 190),
                    "{name} for {architecture} is a cubin"
                );
                let symbol = name.as_bytes();
                assert!(cubin.bytes().windows(symbol.len()).any(|part| part == symbol), "{name} is in it");
            }
        }
    }
    assert_eq!(nvrtc("13.0.88").target_for(Architecture(70)), None);
}

/// The header of windows needs nothing else, and may come twice.
#[test]
#[ignore = "needs NVRTC, which `make cuda` downloads"]
fn kernels_that_use_windows_compile_for_every_architecture() {
    for (version, architectures) in COMPILED {
        let nvrtc = nvrtc(version);
        for architecture in architectures.iter().map(|number| Architecture(*number)) {
            // Multicasts need sm_90.
            let more = if architecture >= Architecture(90) { SUMS } else { "" };
            for (name, source) in
                [("window.h", WINDOW_H.to_owned()), ("ring", format!("{WINDOW_H}{WINDOW_H}{RING}{more}"))]
            {
                let program = Program { name, source: &source, options: &[], architecture };
                let cubin = nvrtc.compile(&program).unwrap_or_else(|why| panic!("{why}"));
                let has_ring = cubin.bytes().windows(4).any(|part| part == b"ring");
                assert!(has_ring || name == "window.h", "{architecture}");
            }
        }
    }
}

#[test]
#[ignore = "needs NVRTC, which `make cuda` downloads"]
fn an_error_in_a_source_shows_the_compiler_s_message() {
    let program = Program {
        name: "broken.cu",
        source: "extern \"C\" __global__ void f() { undeclared = 1; }",
        options: &[],
        architecture: Architecture(90),
    };
    let error = nvrtc("13.0.88").compile(&program).unwrap_err();
    assert!(matches!(error, Error::Compile { .. }));
    let text = error.to_string();
    assert!(
        text.starts_with("NVRTC 13.0 cannot compile broken.cu for sm_90: nvrtcCompileProgram: "),
        "{text}"
    );
    assert!(text.contains("identifier \"undeclared\" is undefined"), "{text}");
}

#[test]
#[ignore = "needs NVRTC, which `make cuda` downloads"]
fn the_second_time_comes_from_the_cache() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins");
    let _ = fs::remove_dir_all(&folder);
    let cache = Cache::at(&folder).unwrap();
    let nvrtc = nvrtc("13.0.88");
    let (name, source, options) = SOURCES[0];
    let program = Program { name, source, options, architecture: Architecture(90) };
    let (compiled, origin) = cache.cubin(&nvrtc, &program).unwrap();
    assert_eq!(origin, Origin::Compiler);
    let (cached, origin) = cache.cubin(&nvrtc, &program).unwrap();
    assert_eq!((cached, origin), (compiled, Origin::Cache));
    let other = Program { options: &["-DAMOUNT=2"], ..program };
    assert_eq!(cache.cubin(&nvrtc, &other).unwrap().1, Origin::Compiler);
}

/// Set in the process whose environment names the folders below.
const CHILD: &str = "WEFT_TEST_FIND_NVRTC";

#[test]
#[ignore = "needs NVRTC, which `make cuda` downloads"]
fn a_suitable_library_is_found_among_others() {
    if std::env::var_os(CHILD).is_none() {
        // A virtual environment with 13.0 and a toolkit with 12.9, in a process of its own: the environment is not changed for other tests.
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("environment");
        let _ = fs::remove_dir_all(&home);
        let packages = home.join("lib/python3.11/site-packages");
        fs::create_dir_all(&packages).unwrap();
        let folder = |version: &str| nvrtc(version).path().ancestors().nth(3).unwrap().to_owned();
        std::os::unix::fs::symlink(folder("13.0.88").canonicalize().unwrap(), packages.join("nvidia"))
            .unwrap();
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_suitable_library_is_found_among_others", "--nocapture", "--ignored"])
            .env_clear()
            .env(CHILD, "1")
            .env("VIRTUAL_ENV", &home)
            .env("CUDA_HOME", folder("12.9.86").join("cuda_nvrtc"))
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    for (architecture, driver, major) in [
        (90, Some(13_000), 13),
        // It is loaded now, and found as such.
        (90, None, 13),
        // A driver of CUDA 12 refuses what 13 compiles.
        (90, Some(12_040), 12),
        // 13 does not know sm_70.
        (70, Some(13_000), 12),
        // Neither knows sm_88, but what is compiled for sm_86 runs there.
        (88, Some(12_090), 12),
    ] {
        let found = Nvrtc::find(Architecture(architecture), driver).unwrap();
        assert_eq!(found.version().major, major, "sm_{architecture}, driver {driver:?}");
        assert!(found.path().is_file(), "{}", found.path().display());
        let target = found.target_for(Architecture(architecture)).unwrap();
        let (name, source, options) = SOURCES[0];
        found.compile(&Program { name, source, options, architecture: target }).unwrap();
    }
    let error = Nvrtc::find(Architecture(90), Some(11_080)).unwrap_err().to_string();
    assert!(error.contains("Unsuitable: "), "{error}");
    assert!(error.contains("(NVRTC 13.0 is later than CUDA 11, which the driver supports)"), "{error}");
}
