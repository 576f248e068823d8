//! Launches of kernels.

use std::ffi::c_void;

use cudarc::driver::sys::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig};

use super::{Function, Stream};
use crate::error::Error;

/// Bytes of parameters that a kernel can take on sm_70 and later with CUDA 12.1; before that 4,096.
const PARAMETER_BYTES_MAX: usize = 32_764;

/// The shape of a launch, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block besides what the kernel declares.
    pub shared_bytes: u32,
    /// Whether all blocks must be resident at once; the driver refuses a launch that does not fit. It counts this launch only.
    pub is_cooperative: bool,
}

/// The arguments of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Parameters<'a> {
    /// All of them as they lie in the kernel's parameter space: a C structure.
    Buffer(&'a [u8]),
    /// The address of each.
    Pointers(&'a [*const c_void]),
}

impl Function {
    /// Launches the kernel on a stream. The arguments are copied before it returns.
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, in number, size and alignment. The addresses among them are valid for what the
    /// kernel does with them until it has ended.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        launch: Launch,
        parameters: Parameters<'_>,
    ) -> Result<(), Error> {
        let context = self.context();
        let attempt = || {
            let Launch { blocks, threads, shared_bytes, .. } = launch;
            let name = self.name();
            format!(
                "launch kernel {name} with {blocks} blocks of {threads} threads and {shared_bytes} bytes of shared memory"
            )
        };
        if stream.context().raw() != context.raw() {
            let why = format!("the kernel is loaded in {context:?}, the stream is of {:?}", stream.context());
            return Err(Error::Misuse { attempt: attempt(), why });
        }
        let buffer = match parameters {
            Parameters::Buffer(bytes) => bytes,
            Parameters::Pointers(_) => &[],
        };
        let mut length = buffer.len();
        if length > PARAMETER_BYTES_MAX {
            let why = format!("{length} bytes of parameters are more than {PARAMETER_BYTES_MAX}");
            return Err(Error::Misuse { attempt: attempt(), why });
        }
        // The markers of cuda.h: 1 is the buffer, 2 the address of its size, 0 the end.
        let mut extra: [*mut c_void; 5] = [
            std::ptr::without_provenance_mut(1),
            buffer.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut length).cast(),
            std::ptr::null_mut(),
        ];
        let (pointers, extra): (*mut *mut c_void, *mut *mut c_void) = match parameters {
            Parameters::Pointers(pointers) => (pointers.as_ptr().cast_mut().cast(), std::ptr::null_mut()),
            Parameters::Buffer(_) => (std::ptr::null_mut(), extra.as_mut_ptr()),
        };
        let _entered = context.enter()?;
        let cu = context.driver().cu();
        let code = if launch.is_cooperative {
            let mut cooperative = CUlaunchAttribute {
                id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                pad: [0; 4],
                value: CUlaunchAttributeValue { pad: [0; 64] },
            };
            cooperative.value.cooperative = 1;
            let config = CUlaunchConfig {
                gridDimX: launch.blocks,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: launch.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: launch.shared_bytes,
                hStream: stream.raw(),
                attrs: &raw mut cooperative,
                numAttrs: 1,
            };
            // SAFETY: function and stream are valid and of the current context; the arguments are the caller's; the driver reads the
            // configuration and the buffer during the call only, and changes neither.
            unsafe { (cu.cuLaunchKernelEx)(&raw const config, self.raw(), pointers, extra) }
        } else {
            let Launch { blocks, threads, shared_bytes, .. } = launch;
            // SAFETY: as above.
            unsafe {
                (cu.cuLaunchKernel)(
                    self.raw(),
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    shared_bytes,
                    stream.raw(),
                    pointers,
                    extra,
                )
            }
        };
        context.check(code, attempt)
    }
}
