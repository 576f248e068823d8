//! The errors of this crate.

use std::path::PathBuf;

use cudarc::driver::sys::CUresult::{self, *};

use crate::versions::{Architecture, Version};

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

    /// A call on the GPU failed, and with it the communicator. Drop it, and make a new one.
    #[error("{why}")]
    Failed {
        /// What happened, and on which rank.
        why: String,
    },

    /// The ranks could not set something up together.
    #[error("{why}")]
    Group {
        /// What happened.
        why: String,
    },

    /// The CUDA context of this process is lost, and with it the communicator and everything on the GPU. Restart the process.
    #[error("{}", context_lost(dead, error))]
    ContextLost {
        /// The ranks in other processes that died, or cannot be reached any more. Under MPS, a process that dies while its kernel runs
        /// destroys the contexts of all processes that use the daemon.
        dead: Vec<usize>,
        /// The driver's error.
        error: Box<Error>,
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
    pub fn needs_restart(&self) -> bool {
        match self {
            Error::ContextLost { .. } => true,
            error => error.code().is_some_and(is_context_lost),
        }
    }

    /// Whether a call that needs a context failed because there is none any more: also because the MPS server is gone.
    pub(crate) fn is_without_context(&self) -> bool {
        self.needs_restart() || self.code().is_some_and(|code| is_among(SERVER_LOST, code))
    }

    /// The number of the driver's error, if the driver refused a call.
    pub fn code(&self) -> Option<u32> {
        match self {
            Error::Cuda { code, .. } => Some(*code),
            Error::ContextLost { error, .. } => error.code(),
            _ => None,
        }
    }
}

/// Errors after which every later call in the process fails: according to the driver's documentation, the process must be restarted.
const CONTEXT_LOST: &[CUresult] = &[
    CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUDA_ERROR_CONTAINED,
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED,
    CUDA_ERROR_TENSOR_MEMORY_LEAK,
    CUDA_ERROR_MPS_RPC_FAILURE,
    CUDA_ERROR_MPS_CLIENT_TERMINATED,
    CUDA_ERROR_EXTERNAL_DEVICE,
];

/// In a process that has a context: its MPS server is gone. In others, the daemon has not started.
const SERVER_LOST: &[CUresult] = &[CUDA_ERROR_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_SERVER_NOT_READY];

const ADVICE: &[(&[CUresult], &str)] = &[
    (
        &[CUDA_ERROR_OUT_OF_MEMORY],
        "Free memory of the GPU (`nvidia-smi` lists its processes), or use smaller buffers",
    ),
    (
        &[CUDA_ERROR_NOT_INITIALIZED],
        "CUDA does not work in a process that was forked after CUDA was initialised: start ranks with spawn or exec",
    ),
    (&[CUDA_ERROR_DEINITIALIZED], "The process is exiting"),
    (
        &[CUDA_ERROR_STUB_LIBRARY],
        "The library that was loaded is the stub of the CUDA toolkit: remove its folder `stubs` from LD_LIBRARY_PATH",
    ),
    (
        &[CUDA_ERROR_DEVICE_UNAVAILABLE],
        "Another process has the GPU in exclusive mode: use MPS, or set the compute mode to default (`nvidia-smi -c 0`)",
    ),
    (&[CUDA_ERROR_NO_DEVICE], "No GPU is visible: check `nvidia-smi` and CUDA_VISIBLE_DEVICES"),
    (&[CUDA_ERROR_INVALID_DEVICE], "Check the device number against CUDA_VISIBLE_DEVICES"),
    (
        &[CUDA_ERROR_NO_BINARY_FOR_GPU],
        "The kernel was compiled for another architecture: report this as a bug",
    ),
    (
        &[CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_CONTAINED],
        "The hardware reported an error that cannot be corrected (`nvidia-smi -q -d ECC`, `nvidia-smi nvlink -e`): reset the GPU",
    ),
    (
        &[CUDA_ERROR_PEER_ACCESS_UNSUPPORTED],
        "The GPUs cannot reach each other's memory (`nvidia-smi topo -p2p r`): move data through host memory",
    ),
    (
        &[CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED],
        "The context is lost and the process must restart. Under MPS this also happens when another process that shares the GPU dies while \
         its kernel runs",
    ),
    (
        &[CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES],
        "The kernel needs more registers or shared memory than a block can have: launch fewer threads a block",
    ),
    (&[CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE], "The blocks do not fit the GPU at once: launch fewer"),
    (
        &[CUDA_ERROR_NOT_PERMITTED],
        "In a container, ranks that share memory need the same user and `--ipc=host`",
    ),
    (&[CUDA_ERROR_SYSTEM_NOT_READY], "The NVLink switches are not configured: start nvidia-fabricmanager"),
    (
        &[CUDA_ERROR_SYSTEM_DRIVER_MISMATCH],
        "The driver's library and kernel module have different versions: restart the machine, or update the container",
    ),
    (
        &[CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE],
        "Remove the CUDA compatibility libraries from LD_LIBRARY_PATH: this GPU does not support them",
    ),
    (
        &[CUDA_ERROR_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_SERVER_NOT_READY],
        "The MPS daemon does not answer: check CUDA_MPS_PIPE_DIRECTORY and `nvidia-cuda-mps-control`",
    ),
    (
        &[CUDA_ERROR_MPS_RPC_FAILURE, CUDA_ERROR_MPS_CLIENT_TERMINATED],
        "The MPS server ended this process's context: restart the process",
    ),
    (
        &[CUDA_ERROR_MPS_MAX_CLIENTS_REACHED],
        "MPS has no room for another process on this GPU: run fewer ranks on it",
    ),
    (
        &[CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED],
        "The MPS processes of this GPU use too many queues: lower CUDA_DEVICE_MAX_CONNECTIONS",
    ),
    (
        &[
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        ],
        "A stream is being captured into a graph: make this call before or after the capture",
    ),
    (&[CUDA_ERROR_UNKNOWN], "The kernel log may say more (`dmesg | grep -i -e nvrm -e xid`)"),
    // Last, for those without advice of their own.
    (CONTEXT_LOST, "The context is lost and the process must restart"),
];

/// What to do about an error of the driver; empty if nothing general is known.
pub(crate) fn advice(code: u32) -> &'static str {
    let advice = ADVICE.iter().find(|(errors, _)| is_among(errors, code));
    advice.map_or("", |(_, advice)| advice)
}

/// Whether every later call in the process fails.
pub(crate) fn is_context_lost(code: u32) -> bool {
    is_among(CONTEXT_LOST, code)
}

/// What a lost context says of itself.
fn context_lost(dead: &[usize], error: &Error) -> String {
    if dead.is_empty() {
        let advice = match error.needs_restart() {
            // The driver's error says so.
            true => "",
            false => "The context is lost and the process must restart. ",
        };
        return format!("{error}. {advice}No other rank is known to have died");
    }
    let short = match error {
        Error::Cuda { attempt, name, text, .. } => format!("cannot {attempt}: {name} ({text})"),
        error => error.to_string(),
    };
    format!(
        "{} died, and the CUDA context of this process was destroyed: MPS destroys the contexts of all processes when one dies while its \
         kernel runs. Restart this process, too ({short})",
        weftlink_bootstrap::list(dead)
    )
}

/// Compares numbers, because a driver may know errors that the enum does not.
fn is_among(errors: &[CUresult], code: u32) -> bool {
    errors.iter().any(|error| *error as u32 == code)
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
        assert!(error(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "").needs_restart());
        assert!(advice(700).contains("Under MPS") && advice(716).contains("the process must restart"));
        assert_eq!(advice(123_456), "", "a number that no version of CUDA has yet");
        assert!(!error(2, "CUDA_ERROR_OUT_OF_MEMORY", "").needs_restart());
        assert!(!error(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "").needs_restart());
        assert!(error(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "").is_without_context());
        let old = Error::DriverTooOld { version: 11040, missing: "cuLaunchKernelEx" }.to_string();
        assert!(old.contains("supports CUDA 11.4 and has no cuLaunchKernelEx. Update it"), "{old}");
    }

    #[test]
    fn a_lost_context_names_the_ranks_that_died() {
        let cuda = |code: u32, name: &str| Error::Cuda {
            attempt: "wait for a stream on GPU 0".to_owned(),
            code,
            name: name.to_owned(),
            text: "the text".to_owned(),
            advice: advice(code),
        };
        let lost =
            |dead: &[usize], error: Error| Error::ContextLost { dead: dead.to_vec(), error: Box::new(error) };
        let error = lost(&[2], cuda(700, "CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert!(error.needs_restart());
        assert_eq!(error.code(), Some(700));
        assert_eq!(
            error.to_string(),
            "rank 2 died, and the CUDA context of this process was destroyed: MPS destroys the contexts of all processes when one dies \
             while its kernel runs. Restart this process, too (cannot wait for a stream on GPU 0: CUDA_ERROR_ILLEGAL_ADDRESS (the text))"
        );
        assert!(
            lost(&[1, 2], cuda(719, "CUDA_ERROR_LAUNCH_FAILED"))
                .to_string()
                .starts_with("ranks 1 and 2 died")
        );
        for (code, restarts) in [(700, "the process must restart"), (805, "the process must restart")] {
            let text = lost(&[], cuda(code, "CUDA_ERROR")).to_string();
            assert!(text.starts_with("cannot wait for a stream on GPU 0: CUDA_ERROR (the text). "), "{text}");
            assert_eq!(text.matches(restarts).count(), 1, "{text}");
            assert!(text.ends_with(". No other rank is known to have died"), "{text}");
        }
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
