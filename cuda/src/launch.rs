//! Kernels of a device, and how they are launched: by name, with a grid, a block and typed arguments.
//!
//! ```ignore
//! device.kernel("norm", "norm_rows")?.grid(rows, groups, 1).block(256).arg(x).arg(columns as u32).launch()
//! ```

use crate::{
    compile::{Unit, architecture, unit},
    device::{Device, Ptr, driver, failed},
    eviction::EvictionStateView,
    ops::{
        attention::{AttentionView, PartsView},
        conv::ConvView,
        evict::MovingView,
        fusion::FusionView,
        read_memory::ReadMemoryView,
        recurrence::{FoldView, PromptView, RecurrenceView},
        rope_store::HeadNormsView,
        scan::ScanView,
        segments::SegmentView,
        slake::{LossesView, WindowView},
    },
    pages::PagesView,
    recorder::Call,
    step::StepView,
};
use cudarc::driver::{result, sys};
use kvas_backend::DeviceError;
use std::{
    collections::HashMap,
    ffi::{CString, c_void},
};

/// Modules that were loaded and functions that were looked up.
pub(crate) struct Kernels {
    arch: String,
    modules: HashMap<&'static str, Module>,
    functions: HashMap<String, Function>,
}

struct Module(sys::CUmodule);

/// Blocks of a cluster that every GPU with clusters has.
pub(crate) const USUAL_CLUSTER: usize = 8;

/// A function, the dynamic shared memory it may ask for so far, how many of its clusters run at once with that, once
/// somebody has asked, and whether it may have clusters of more blocks than [`USUAL_CLUSTER`].
#[derive(Clone, Copy)]
struct Function {
    handle: sys::CUfunction,
    shared: usize,
    clusters: Option<usize>,
    has_large_clusters: bool,
}

// SAFETY: handles of the driver, used with the context bound and behind a mutex.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Kernels {
    /// None yet.
    pub(crate) fn new(capability: (u32, u32)) -> Self {
        Self { arch: architecture(capability), modules: HashMap::new(), functions: HashMap::new() }
    }

    fn load(&mut self, unit: Unit, code: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: a cubin is a whole file that says how long it is.
        let loaded = unsafe { result::module::load_data(code.as_ptr().cast()) };
        let module = loaded.map_err(|error| {
            unit.forget(&self.arch);
            driver(&format!("loading the kernels of {}.cu for sm_{}", unit.name, self.arch))(error)
        })?;
        self.modules.insert(unit.name, Module(module));
        Ok(())
    }

    fn function(&mut self, in_unit: &'static str, name: &str) -> Result<Function, DeviceError> {
        if let Some(function) = self.functions.get(name) {
            return Ok(*function);
        }
        if !self.modules.contains_key(in_unit) {
            let unit = unit(in_unit);
            self.load(unit, &unit.machine_code(&self.arch)?)?;
        }
        let text = CString::new(name).map_err(|_| failed(format!("{name}: not a name")))?;
        // SAFETY: the module is loaded and never unloaded while the device lives.
        let found = unsafe { result::module::get_function(self.modules[in_unit].0, text) };
        let handle = found.map_err(driver(&format!("looking for the kernel {name} in {in_unit}.cu")))?;
        // What a kernel has statically counts as well, so that even little has to be allowed.
        let function = Function { handle, shared: 0, clusters: None, has_large_clusters: false };
        self.functions.insert(name.to_string(), function);
        Ok(function)
    }

    /// Lets a function ask for so much dynamic shared memory.
    fn allow(&mut self, name: &str, bytes: usize) -> Result<(), DeviceError> {
        let Some(function) = self.functions.get_mut(name) else { return Ok(()) };
        if bytes > function.shared {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is of a loaded module.
            unsafe { result::function::set_function_attribute(function.handle, attribute, bytes as i32) }
                .map_err(driver(&format!("{name}: asking for {bytes} bytes of shared memory")))?;
            function.shared = bytes;
            function.clusters = None;
        }
        Ok(())
    }

    /// Lets a function have clusters of more blocks than every GPU with clusters has.
    fn allow_large_clusters(&mut self, name: &str) -> Result<(), DeviceError> {
        let Some(function) = self.functions.get_mut(name) else { return Ok(()) };
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function is of a loaded module.
        unsafe { result::function::set_function_attribute(function.handle, attribute, 1) }
            .map_err(driver(&format!("{name}: asking for clusters of more than {USUAL_CLUSTER} blocks")))?;
        function.has_large_clusters = true;
        Ok(())
    }

    /// Clusters of a function that run at once, of so many blocks and threads of a block, with all the shared memory that it was
    /// allowed. Those of eight blocks leave some multiprocessors alone.
    fn clusters_at_once(&mut self, name: &str, [blocks, threads]: [usize; 2]) -> Result<usize, DeviceError> {
        let Some(function) = self.functions.get_mut(name) else { return Ok(1) };
        if let Some(clusters) = function.clusters {
            return Ok(clusters);
        }
        let config = sys::CUlaunchConfig {
            gridDimX: blocks as u32,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: function.shared as u32,
            hStream: std::ptr::null_mut(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        let mut clusters = 0;
        // SAFETY: the function is of a loaded module; the driver writes one number.
        let found = unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function.handle, &raw const config) };
        found.result().map_err(driver(&format!("{name}: asking how many clusters run at once")))?;
        let clusters = usize::try_from(clusters).unwrap_or(0).max(1);
        function.clusters = Some(clusters);
        Ok(clusters)
    }
}

impl Device {
    /// Compiles, or finds in the cache, and loads some units, those that are missing several at a time.
    pub(crate) fn load_units(&self, names: &[&'static str]) -> Result<(), DeviceError> {
        self.bind()?;
        let mut kernels = self.gpu().kernels.lock().map_err(|_| failed("a thread panicked while it loaded kernels"))?;
        let wanted: Vec<Unit> =
            names.iter().filter(|name| !kernels.modules.contains_key(*name)).map(|name| unit(name)).collect();
        let arch = kernels.arch.clone();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for some in wanted.chunks(threads) {
            let codes: Vec<_> = std::thread::scope(|scope| {
                let started: Vec<_> = some.iter().map(|unit| scope.spawn(|| unit.machine_code(&arch))).collect();
                started.into_iter().map(|thread| thread.join()).collect()
            });
            for (unit, code) in some.iter().zip(codes) {
                let code =
                    code.map_err(|_| failed(format!("a thread panicked while it compiled {}.cu", unit.name)))??;
                kernels.load(*unit, &code)?;
            }
        }
        Ok(())
    }

    /// The kernel `name` of `kernels/UNIT.cu`.
    pub(crate) fn kernel<'a>(&'a self, unit: &'static str, name: &'a str) -> Result<Launch<'a>, DeviceError> {
        self.bind()?;
        let mut kernels = self.gpu().kernels.lock().map_err(|_| failed("a thread panicked while it loaded kernels"))?;
        let function = kernels.function(unit, name)?;
        let (grid, block) = ([1; 3], [1; 3]);
        Ok(Launch {
            device: self,
            name,
            function,
            grid,
            block,
            cluster: None,
            shared: 0,
            is_early: false,
            arguments: Arguments::new(),
        })
    }
}

/// Arguments of a kernel: their words, and at which word each one begins.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Arguments {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Arguments {
    /// None, with room for those of most kernels.
    fn new() -> Self {
        Self { words: Vec::with_capacity(32), starts: Vec::with_capacity(24) }
    }
}

/// What a kernel can be given.
pub(crate) trait Argument {
    /// Appends it as it is in memory, in whole words.
    fn push(self, words: &mut Vec<u64>);
}

macro_rules! arguments {
    ($($type:ty: $value:ident => $word:expr;)*) => {
        $(impl Argument for $type {
            fn push(self, words: &mut Vec<u64>) {
                let $value = self;
                words.push($word);
            }
        })*
    };
}

arguments! {
    u32: value => u64::from(value);
    i32: value => u64::from(value.cast_unsigned());
    u64: value => value;
    f32: value => u64::from(value.to_bits());
    Ptr: value => value.0;
}

macro_rules! views {
    ($($type:ty)*) => {
        $(impl Argument for $type {
            fn push(self, words: &mut Vec<u64>) {
                words.extend(bytemuck::cast::<_, [u64; size_of::<$type>() / 8]>(self));
            }
        })*
    };
}

views!(
    StepView PagesView AttentionView PartsView ConvView RecurrenceView FoldView PromptView ScanView EvictionStateView WindowView
    LossesView MovingView SegmentView ReadMemoryView HeadNormsView FusionView
);

/// A launch in the making.
#[must_use = "nothing runs before `launch`"]
pub(crate) struct Launch<'a> {
    device: &'a Device,
    name: &'a str,
    function: Function,
    grid: [usize; 3],
    block: [usize; 3],
    /// Blocks of a cluster in the first dimension of the grid, or what the kernel itself says.
    cluster: Option<usize>,
    shared: usize,
    is_early: bool,
    arguments: Arguments,
}

impl Launch<'_> {
    /// Blocks. Nothing is launched if there are none.
    pub(crate) fn grid(mut self, x: usize, y: usize, z: usize) -> Self {
        self.grid = [x, y, z];
        self
    }

    /// Threads of a block, in one dimension.
    pub(crate) fn block(self, threads: usize) -> Self {
        self.blocks(threads, 1, 1)
    }

    /// Threads of a block.
    pub(crate) fn blocks(mut self, x: usize, y: usize, z: usize) -> Self {
        self.block = [x, y, z];
        self
    }

    /// Clusters of so many blocks, in the first dimension of the grid.
    pub(crate) fn clusters_of(mut self, blocks: usize) -> Self {
        self.cluster = Some(blocks);
        self
    }

    /// Bytes of dynamic shared memory.
    pub(crate) fn shared(mut self, bytes: usize) -> Self {
        self.shared = bytes;
        self
    }

    /// How many clusters of so many blocks are at work at once: all that is ahead ends, and what comes behind begins only when all
    /// blocks have.
    pub(crate) fn clusters_at_once(&self, blocks: usize) -> Result<usize, DeviceError> {
        let mut kernels = self.device.gpu().kernels.lock().map_err(|_| failed("a thread panicked in a launch"))?;
        kernels.allow(self.name, self.shared)?;
        kernels.clusters_at_once(self.name, [blocks, self.block[0]])
    }

    /// One dimension of clusters of so many blocks, `wanted` of them or as many as run at once with those of the grid's second
    /// dimension: for kernels that stay until all is done. The grid, threads and shared memory are known.
    pub(crate) fn clusters(self, blocks: usize, wanted: usize) -> Result<Self, DeviceError> {
        let (at_once, rows) = (self.clusters_at_once(blocks)?, self.grid[1]);
        Ok(self.grid(blocks * wanted.min((at_once / rows.max(1)).max(1)), rows, 1))
    }

    /// Lets it begin before what is ahead of it has ended: the kernel calls `wait_for_inputs` of
    /// `kernels/common/order.cuh`.
    pub(crate) fn early(mut self) -> Self {
        self.is_early = self.device.capability() >= (9, 0);
        self
    }

    /// The next argument.
    pub(crate) fn arg(mut self, argument: impl Argument) -> Self {
        self.arguments.starts.push(self.arguments.words.len());
        argument.push(&mut self.arguments.words);
        self
    }

    /// Puts the kernel into the stream.
    ///
    /// # Errors
    /// The driver refuses it, or a kernel before it failed.
    pub(crate) fn launch(self) -> Result<(), DeviceError> {
        if self.grid.contains(&0) {
            return Ok(());
        }
        let is_large = self.cluster.is_some_and(|blocks| blocks > USUAL_CLUSTER);
        let wants_large = is_large && !self.function.has_large_clusters;
        if self.shared > self.function.shared || wants_large {
            let mut kernels = self.device.gpu().kernels.lock().map_err(|_| failed("a thread panicked in a launch"))?;
            kernels.allow(self.name, self.shared)?;
            if wants_large {
                kernels.allow_large_clusters(self.name)?;
            }
        }
        let Self { device, name, function, grid, block, cluster, shared, is_early, arguments } = self;
        let launched = Launched { function: function.handle, grid, block, cluster, shared, is_early, arguments };
        device.call(Call::Kernel(launched)).map_err(|error| {
            failed(format!("launching {name} (grid {grid:?} block {block:?} shared {shared}): {error}"))
        })
    }
}

/// A launch that is complete.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Launched {
    function: sys::CUfunction,
    grid: [usize; 3],
    block: [usize; 3],
    cluster: Option<usize>,
    shared: usize,
    is_early: bool,
    arguments: Arguments,
}

// SAFETY: a handle of a function and plain numbers.
unsafe impl Send for Launched {}
// SAFETY: as above; nobody changes it.
unsafe impl Sync for Launched {}

impl Launched {
    /// Puts it into the stream.
    pub(crate) fn now(&self, device: &Device) -> Result<(), DeviceError> {
        let words = &self.arguments.words;
        let pointers = self.arguments.starts.iter().map(|start| (&raw const words[*start]).cast_mut().cast());
        let mut pointers: Vec<*mut c_void> = pointers.collect();
        let [grid, block] = [self.grid, self.block].map(|sizes| sizes.map(|size| size as u32));
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let early = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        );
        let dimensions =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: self.cluster.unwrap_or(1) as u32, y: 1, z: 1 };
        let cluster = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            sys::CUlaunchAttributeValue { clusterDim: dimensions },
        );
        let mut all = [early, cluster];
        let attributes = &mut all[usize::from(!self.is_early)..1 + usize::from(self.cluster.is_some())];
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: self.shared as u32,
            hStream: device.stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the driver copies the arguments before it returns, and writes none. That a kernel is given what it
        // takes, and that it stays within the memory it is given, is up to the op that launches it; the conformance
        // suite runs under the memory checker.
        let launched = unsafe {
            sys::cuLaunchKernelEx(&raw const config, self.function, pointers.as_mut_ptr(), std::ptr::null_mut())
        };
        launched.result().map_err(driver("a kernel was refused, or one before it failed"))
    }
}
