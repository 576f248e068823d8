//! Kernels by what they are specialised for: compiled by NVRTC or read from the cache, then loaded, once in a communicator.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Error;
use crate::cache::{self, Origin};
use crate::driver::{Context, Function, Module};
use crate::nvrtc::{Cubin, Nvrtc, Program};
use crate::source::Specialisation;
use crate::{messages, window};

/// Threads of the largest block.
pub(crate) const THREADS_MAX: u32 = 512;

/// The kernels of a communicator.
#[derive(Debug)]
pub(crate) struct Kernels {
    context: Context,
    nvrtc: Option<Arc<Nvrtc>>,
    compiled: HashMap<Specialisation, Cubin>,
    loaded: HashMap<Specialisation, Kernel>,
    window: Option<WindowKernels>,
    messages: Option<MessageKernels>,
}

/// The kernels of windows.
#[derive(Debug)]
pub(crate) struct WindowKernels {
    pub(crate) signal: Function,
    pub(crate) wait: Function,
}

/// The kernels of messages.
#[derive(Debug)]
pub(crate) struct MessageKernels {
    pub(crate) group: Function,
    pub(crate) table: Function,
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) function: Function,
    _module: Arc<Module>,
}

impl Kernels {
    pub(crate) fn new(context: &Context) -> Kernels {
        Kernels {
            context: context.clone(),
            nvrtc: None,
            compiled: HashMap::new(),
            loaded: HashMap::new(),
            window: None,
            messages: None,
        }
    }

    /// Compiles the kernel for a specialisation, unless there is one: up to seconds if it is not in the cache. Does not use the GPU.
    pub(crate) fn compile(&mut self, wanted: &Specialisation) -> Result<(), Error> {
        if !self.loaded.contains_key(wanted) && !self.compiled.contains_key(wanted) {
            let what = format!("{:?} {:?}", wanted.data_type, wanted.reduction);
            let cubin = self.cubin(&wanted.source(), &what)?;
            self.compiled.insert(wanted.clone(), cubin);
        }
        Ok(())
    }

    pub(crate) fn is_loaded(&self, wanted: &Specialisation) -> bool {
        self.loaded.contains_key(wanted)
    }

    /// The kernel for a specialisation. The first time, this waits for all kernels of the context.
    pub(crate) fn get(&mut self, wanted: &Specialisation) -> Result<&Kernel, Error> {
        if !self.loaded.contains_key(wanted) {
            self.compile(wanted)?;
            let module = Arc::new(Module::load(&self.context, &self.compiled[wanted])?);
            let function = module.function("weft_run")?;
            self.compiled.remove(wanted);
            self.loaded.insert(wanted.clone(), Kernel { function, _module: module });
        }
        Ok(&self.loaded[wanted])
    }

    /// The kernels of windows, loaded to be launched while others wait.
    pub(crate) fn window(&mut self) -> Result<&WindowKernels, Error> {
        let kernels = match self.window.take() {
            Some(kernels) => kernels,
            None => {
                let names = ["weft_signal", "weft_wait"];
                let [signal, wait] = self.functions(&window::KERNELS.concat(), "windows", names)?;
                WindowKernels { signal, wait }
            }
        };
        Ok(self.window.insert(kernels))
    }

    /// The kernels of messages, in the same way.
    pub(crate) fn messages(&mut self, is_one_gpu: bool) -> Result<&MessageKernels, Error> {
        let kernels = match self.messages.take() {
            Some(kernels) => kernels,
            None => {
                let names = ["weft_messages", "weft_messages_table"];
                let [group, table] = self.functions(&messages::kernels(is_one_gpu), "messages", names)?;
                MessageKernels { group, table }
            }
        };
        Ok(self.messages.insert(kernels))
    }

    fn functions(&mut self, source: &str, what: &str, names: [&str; 2]) -> Result<[Function; 2], Error> {
        let cubin = self.cubin(source, what)?;
        let module = Module::load(&self.context, &cubin)?;
        let function = |name| {
            let function = module.function(name)?;
            // Drivers load a function at the first use, for which they may wait for kernels.
            function.attributes().map(|_| function)
        };
        Ok([function(names[0])?, function(names[1])?])
    }

    fn cubin(&mut self, source: &str, what: &str) -> Result<Cubin, Error> {
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
        Ok(cubin)
    }
}
