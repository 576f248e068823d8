//! Kernels by what they are specialised for: compiled by NVRTC or read from the cache, loaded once in a communicator.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Error;
use crate::cache::{self, Origin};
use crate::driver::{Context, Function, Module};
use crate::nvrtc::{Nvrtc, Program};
use crate::source::Specialisation;
use crate::window;

/// Threads of the largest block.
pub(crate) const THREADS_MAX: u32 = 512;

/// The kernels of a communicator.
#[derive(Debug)]
pub(crate) struct Kernels {
    context: Context,
    nvrtc: Option<Arc<Nvrtc>>,
    loaded: HashMap<Specialisation, Kernel>,
    window: Option<WindowKernels>,
}

/// The kernels of windows.
#[derive(Debug)]
pub(crate) struct WindowKernels {
    pub(crate) signal: Function,
    pub(crate) wait: Function,
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) function: Function,
    _module: Arc<Module>,
}

impl Kernels {
    pub(crate) fn new(context: &Context) -> Kernels {
        Kernels { context: context.clone(), nvrtc: None, loaded: HashMap::new(), window: None }
    }

    /// The kernel for a specialisation. The first takes long: up to seconds if it is not in the cache.
    pub(crate) fn get(&mut self, wanted: &Specialisation) -> Result<&Kernel, Error> {
        if !self.loaded.contains_key(wanted) {
            let kernel = self.load(wanted)?;
            self.loaded.insert(wanted.clone(), kernel);
        }
        Ok(&self.loaded[wanted])
    }

    /// The kernels of windows, loaded to be launched while others wait.
    pub(crate) fn window(&mut self) -> Result<&WindowKernels, Error> {
        let kernels = match self.window.take() {
            Some(kernels) => kernels,
            None => {
                let module = self.module(&window::KERNELS.concat(), "windows")?;
                let [signal, wait] = [module.function("weft_signal")?, module.function("weft_wait")?];
                // Drivers load a function at the first use, for which they may wait for kernels.
                signal.attributes()?;
                wait.attributes()?;
                WindowKernels { signal, wait }
            }
        };
        Ok(self.window.insert(kernels))
    }

    fn load(&mut self, wanted: &Specialisation) -> Result<Kernel, Error> {
        let what = format!("{:?} {:?}", wanted.data_type, wanted.reduction);
        let module = Arc::new(self.module(&wanted.source(), &what)?);
        let function = module.function("weft_run")?;
        Ok(Kernel { function, _module: module })
    }

    fn module(&mut self, source: &str, what: &str) -> Result<Module, Error> {
        let device = self.context.device();
        let nvrtc = match &self.nvrtc {
            Some(nvrtc) => Arc::clone(nvrtc),
            None => Arc::new(Nvrtc::find(device.architecture, device.driver().version().ok())?),
        };
        self.nvrtc = Some(Arc::clone(&nvrtc));
        let architecture = nvrtc.target_for(device.architecture).unwrap_or(device.architecture);
        let program = Program { name: "weft.cu", source, options: &[], architecture };
        let began = std::time::Instant::now();
        let (cubin, origin) = cache::cubin(&nvrtc, &program)?;
        let origin = if origin == Origin::Cache { "from the cache" } else { "compiled" };
        tracing::info!(target: "weft::plan", "kernel for {what}: {origin} in {:?}", began.elapsed());
        Module::load(&self.context, &cubin)
    }
}
