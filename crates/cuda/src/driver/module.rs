//! Modules (loaded cubins) and their functions.

use std::ffi::{CString, c_int};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};

use super::Context;
use crate::error::Error;
use crate::nvrtc::Cubin;

/// Kernels that are loaded into a context. Clones share them; the last one, functions included, unloads them.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
}

struct Loaded {
    context: Context,
    handle: CUmodule,
}

// SAFETY: the handle is a name for the driver, whose functions may be called with it from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p} in {:?}", self.handle, self.context)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let cu = self.context.driver().cu();
        // SAFETY: the module was loaded by `load`, and no function of it is left.
        self.context.release(|| unsafe { (cu.cuModuleUnload)(self.handle) }, || "unload a module".to_owned());
    }
}

impl Module {
    /// Loads a cubin. Drivers load lazily, so the first launch of a function may take longer.
    pub fn load(context: &Context, cubin: &Cubin) -> Result<Module, Error> {
        let _entered = context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the address is of a handle. A `Cubin` is what NVRTC made, so its headers give its true length; the driver copies it.
        let code = unsafe {
            (context.driver().cu().cuModuleLoadData)(&raw mut handle, cubin.bytes().as_ptr().cast())
        };
        context.check(code, || format!("load a cubin of {} bytes", cubin.bytes().len()))?;
        Ok(Module { loaded: Arc::new(Loaded { context: context.clone(), handle }) })
    }

    /// A kernel by its name, which the source declares `extern "C"`.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        let context = &self.loaded.context;
        let _entered = context.enter()?;
        let attempt = || format!("find kernel {name}");
        let symbol = CString::new(name)
            .map_err(|_| Error::Misuse { attempt: attempt(), why: "its name has a NUL byte".to_owned() })?;
        let mut handle = std::ptr::null_mut();
        let cu = context.driver().cu();
        // SAFETY: the address is of a handle, the module is loaded, and the name ends in NUL.
        let code = unsafe { (cu.cuModuleGetFunction)(&raw mut handle, self.loaded.handle, symbol.as_ptr()) };
        context.check(code, attempt)?;
        Ok(Function { module: self.clone(), handle, name: name.into() })
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    module: Module,
    handle: CUfunction,
    name: Arc<str>,
}

// SAFETY: the handle is a name for the driver, whose functions may be called with it from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// What a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Registers of a thread.
    pub registers: usize,
    /// Shared memory of a block, without what a launch adds.
    pub shared_bytes: usize,
    /// Local memory of a thread: what does not fit into registers.
    pub local_bytes: usize,
    /// Threads that a block can have.
    pub threads_per_block_max: usize,
    /// The architecture that it was compiled for, times ten: 90.
    pub binary_version: usize,
}

impl Function {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's handle.
    pub fn raw(&self) -> CUfunction {
        self.handle
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.module.loaded.context
    }

    /// What it needs.
    pub fn attributes(&self) -> Result<FunctionAttributes, Error> {
        use CUfunction_attribute as Attribute;
        let _entered = self.context().enter()?;
        let number = |attribute: Attribute| -> Result<usize, Error> {
            let mut value: c_int = 0;
            let cu = self.context().driver().cu();
            // SAFETY: the address is of an integer, attribute and function are valid.
            let code = unsafe { (cu.cuFuncGetAttribute)(&raw mut value, attribute, self.handle) };
            self.context().check(code, || format!("describe kernel {}", self.name))?;
            Ok(value.try_into().unwrap_or(0))
        };
        Ok(FunctionAttributes {
            registers: number(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: number(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: number(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            threads_per_block_max: number(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            binary_version: number(Attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        })
    }

    /// Allows launches with this much shared memory per block; above 48 KiB they fail without.
    pub fn allow_shared_bytes(&self, bytes: usize) -> Result<(), Error> {
        let _entered = self.context().enter()?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: attribute and function are valid.
        let code =
            unsafe { (self.context().driver().cu().cuFuncSetAttribute)(self.handle, attribute, value) };
        self.context().check(code, || format!("give kernel {} {bytes} bytes of shared memory", self.name))
    }

    /// Blocks of this shape that are resident on a multiprocessor at once.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: usize) -> Result<usize, Error> {
        let _entered = self.context().enter()?;
        let mut blocks: c_int = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let cu = self.context().driver().cu();
        // SAFETY: the address is of an integer, and the function is valid.
        let code = unsafe {
            (cu.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &raw mut blocks,
                self.handle,
                threads,
                shared_bytes,
            )
        };
        self.context().check(code, || format!("compute the occupancy of kernel {}", self.name))?;
        Ok(blocks.try_into().unwrap_or(0))
    }
}
