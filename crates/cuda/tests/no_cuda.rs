//! Where no CUDA is installed, every entry is an error that says what to do. Where it is, `crates/cuda/examples/device.rs` is the test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use weftlink_cuda::Error;
use weftlink_cuda::driver::Driver;
use weftlink_cuda::nvrtc::{Architecture, Nvrtc};

/// Set in the process that has an empty environment.
const CHILD: &str = "WEFT_TEST_NO_CUDA";

#[test]
fn a_machine_without_cuda_gets_errors_with_advice() {
    if std::env::var_os(CHILD).is_none() {
        // The search reads the environment, which a test must not change for others: it runs in a process of its own.
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_machine_without_cuda_gets_errors_with_advice", "--nocapture"])
            .env_clear()
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    match Driver::load() {
        Err(Error::NoDriver { .. }) => {}
        other => assert!(other.is_ok(), "{other:?}"),
    }
    for (architecture, driver, package) in [
        (70, Some(13_000), "nvidia-cuda-nvrtc-cu12"),
        (90, Some(12_040), "nvidia-cuda-nvrtc-cu12"),
        (90, Some(13_000), "nvidia-cuda-nvrtc"),
        (90, None, "nvidia-cuda-nvrtc"),
    ] {
        let error = Nvrtc::find(Architecture(architecture), driver).map(|nvrtc| nvrtc.path().to_owned());
        match error {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(&format!("`pip install {package}`")), "{text}");
                assert!(text.contains("Searched: this process, "), "{text}");
                assert!(text.contains("LD_LIBRARY_PATH and the loader's default folders"), "{text}");
            }
            // A toolkit in /usr/local/cuda is found without any variable.
            Ok(path) => assert!(path.is_absolute(), "{path:?}"),
        }
    }
}
