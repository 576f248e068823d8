//! The errors of this crate.

use std::path::PathBuf;

use crate::nvrtc::{Architecture, Version};

/// Why something on a GPU, or its preparation, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no CUDA driver. Install it, or run where it is.
    #[error(
        "the CUDA driver (libcuda.so.1) cannot be loaded: {why}. Install the NVIDIA driver; a container needs access to the GPU \
         (`docker run --gpus all`)"
    )]
    NoDriver {
        /// The loader's message.
        why: String,
    },

    /// The driver lacks functions that Weft calls. Update it.
    #[error(
        "the CUDA driver is too old: it supports CUDA {}.{} and has no {missing}. Update it to CUDA 11.8 (driver 520) or later",
        version / 1000, version % 1000 / 10
    )]
    DriverTooOld {
        /// The version of CUDA that it supports, as 13000 for 13.0; 0 if it is unknown.
        version: u32,
        /// A function that it lacks.
        missing: &'static str,
    },

    /// A call of the driver failed.
    #[error("cannot {attempt}: {name} ({text}){}{advice}", if advice.is_empty() { "" } else { ". " })]
    Cuda {
        /// What was attempted, as a verb and its object.
        attempt: String,
        /// The number of the error.
        code: u32,
        /// Its name: `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's text.
        text: String,
        /// What to do; empty if nothing general is known.
        advice: &'static str,
    },

    /// The call does not fit the memory or device it names. Correct the call.
    #[error("cannot {attempt}: {why}")]
    Misuse {
        /// What was attempted, as a verb and its object.
        attempt: String,
        /// Why it is refused.
        why: String,
    },

    /// No NVRTC was found that suits the GPU and its driver. Install it.
    #[error(
        "NVRTC, which compiles kernels for {architecture}, was not found. Install it into the Python environment of the program: \
         `pip install {package}`; or set CUDA_HOME to a CUDA toolkit. Searched: {}{}{}",
        searched.join(", "), if unsuitable.is_empty() { "" } else { ". Unsuitable: " }, unsuitable.join(", ")
    )]
    NoNvrtc {
        /// The architecture to compile for.
        architecture: Architecture,
        /// The package of the Python registry that has a suitable one.
        package: &'static str,
        /// The places that were searched.
        searched: Vec<String>,
        /// The libraries that were found and cannot be used, each with the reason.
        unsuitable: Vec<String>,
    },

    /// A file is not a usable NVRTC.
    #[error("{} is not a usable NVRTC: {why}", path.display())]
    BadNvrtc {
        /// The file.
        path: PathBuf,
        /// The loader's message, or the function that is missing.
        why: String,
    },

    /// NVRTC refused a source. Report it as a bug, unless the source is your own.
    #[error("NVRTC {version} cannot compile {program} for {architecture}: {result}\n{log}")]
    Compile {
        /// The name of the source.
        program: String,
        /// The architecture.
        architecture: Architecture,
        /// The version of NVRTC.
        version: Version,
        /// NVRTC's name of the error.
        result: String,
        /// The compiler's messages.
        log: String,
    },

    /// The cache of compiled kernels cannot be used. Kernels are compiled each time until it can.
    #[error("cannot keep compiled kernels in {}: {why}. Set WEFT_CACHE to a folder that only you can write", folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// Why it is refused.
        why: String,
    },
}

impl Error {
    /// Whether the CUDA context is lost: every later call in this process fails, and only a new process can use the GPU.
    pub fn is_context_lost(&self) -> bool {
        // Illegal address, timeout, assertion, hardware errors, launch failure, contained and uncontained ECC errors, MPS.
        matches!(self, Error::Cuda { code: 214 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 806 | 810, .. })
    }

    /// The number of the driver's error, if the driver refused a call.
    pub fn code(&self) -> Option<u32> {
        match self {
            Error::Cuda { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// What to do about an error of the driver; empty if nothing general is known.
pub(crate) fn advice(code: u32) -> &'static str {
    match code {
        2 => "Free memory of the GPU (`nvidia-smi` lists its processes), or use smaller buffers",
        3 => {
            "CUDA does not work in a process that was forked after CUDA was initialised: start ranks with spawn or exec"
        }
        4 => "The process is exiting",
        34 => {
            "The library that was loaded is the stub of the CUDA toolkit: remove its folder `stubs` from LD_LIBRARY_PATH"
        }
        46 => {
            "Another process has the GPU in exclusive mode: use MPS, or set the compute mode to default (`nvidia-smi -c 0`)"
        }
        100 => "No GPU is visible: check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        101 => "Check the device number against CUDA_VISIBLE_DEVICES",
        209 => "The kernel was compiled for another architecture: report this as a bug",
        214 => "The memory of the GPU is damaged (`nvidia-smi -q -d ECC`): reset or replace the GPU",
        217 => {
            "The GPUs cannot reach each other's memory (`nvidia-smi topo -p2p r`): move data through host memory"
        }
        700 | 719 => {
            "The context is lost and the process must restart. Under MPS this also happens when another process that shares the GPU dies while its kernel runs"
        }
        702 | 709 | 710 | 714..=718 | 721 => "The context is lost and the process must restart",
        720 => "The blocks do not fit the GPU at once: launch fewer",
        800 => "In a container, ranks that share memory need the same user and `--ipc=host`",
        802 => "The NVLink switches are not configured: start nvidia-fabricmanager",
        803 => {
            "The driver's library and kernel module have different versions: restart the machine, or update the container"
        }
        804 => "Remove the CUDA compatibility libraries from LD_LIBRARY_PATH: this GPU does not support them",
        805 | 807 => {
            "The MPS daemon does not answer: check CUDA_MPS_PIPE_DIRECTORY and `nvidia-cuda-mps-control`"
        }
        806 | 810 => "The MPS server ended this process's context: restart the process",
        808 => "MPS has no room for another process on this GPU: run fewer ranks on it",
        809 => "The MPS processes of this GPU use too many queues: lower CUDA_DEVICE_MAX_CONNECTIONS",
        900..=908 => "The stream is being captured into a graph: make this call before or after the capture",
        999 => "The kernel log may say more (`dmesg | grep -i -e nvrm -e xid`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_to_do() {
        let error = |code: u32, name: &str, text: &str| Error::Cuda {
            attempt: "allocate 64 bytes of memory on GPU 1".to_owned(),
            code,
            name: name.to_owned(),
            text: text.to_owned(),
            advice: advice(code),
        };
        assert_eq!(
            error(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory").to_string(),
            "cannot allocate 64 bytes of memory on GPU 1: CUDA_ERROR_OUT_OF_MEMORY (out of memory). \
             Free memory of the GPU (`nvidia-smi` lists its processes), or use smaller buffers"
        );
        assert_eq!(
            error(1, "CUDA_ERROR_INVALID_VALUE", "invalid argument").to_string(),
            "cannot allocate 64 bytes of memory on GPU 1: CUDA_ERROR_INVALID_VALUE (invalid argument)"
        );
        assert!(error(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "").is_context_lost());
        assert!(!error(2, "CUDA_ERROR_OUT_OF_MEMORY", "").is_context_lost());
        let old = Error::DriverTooOld { version: 11040, missing: "cuLaunchKernelEx" }.to_string();
        assert!(old.contains("supports CUDA 11.4 and has no cuLaunchKernelEx. Update it"), "{old}");
    }

    #[test]
    fn the_missing_library_is_named_with_its_package() {
        let error = Error::NoNvrtc {
            architecture: Architecture(70),
            package: "nvidia-cuda-nvrtc-cu12",
            searched: vec!["/a/lib".to_owned(), "the loader's default path".to_owned()],
            unsuitable: Vec::new(),
        };
        let text = error.to_string();
        assert!(
            text.starts_with("NVRTC, which compiles kernels for sm_70, was not found. Install it"),
            "{text}"
        );
        assert!(text.contains("`pip install nvidia-cuda-nvrtc-cu12`"), "{text}");
        assert!(text.ends_with("Searched: /a/lib, the loader's default path"), "{text}");
    }
}
