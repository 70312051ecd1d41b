//! One GPU: its context and its one stream, memory on it, copies, and the errors of its driver. All calls of the driver
//! but launches are here, so that what they rely on is said once.

use crate::{
    launch::Kernels,
    recorder::{Call, Recorder},
};
use cudarc::driver::{
    CudaContext, DriverError, result,
    sys::{self, CUdevice_attribute as Attribute, CUresult},
};
use kvas_backend::DeviceError;
use std::{
    ops::{Deref, DerefMut, Range},
    sync::{Arc, Mutex},
};

/// What errors call this device.
pub(crate) const NAME: &str = "cuda";

/// A failure in words.
pub(crate) fn failed(what: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: NAME.into(), what: what.into() }
}

/// A failure of the driver while it was asked to do `what`.
pub(crate) fn driver(what: &str) -> impl Fn(DriverError) -> DeviceError {
    let what = what.to_string();
    move |error| {
        let text = |text: Result<&std::ffi::CStr, DriverError>| {
            text.map_or_else(|_| "unknown error".to_string(), |text| text.to_string_lossy().into_owned())
        };
        failed(format!("{what}: {} ({})", text(error.error_string()), text(error.error_name())))
    }
}

/// An address in device memory. Only kernels and copies of this crate look there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ptr(pub(crate) u64);

impl Ptr {
    /// Given to kernels for what is not there.
    pub(crate) const NULL: Ptr = Ptr(0);

    /// `bytes` further on.
    pub(crate) const fn at(self, bytes: usize) -> Ptr {
        Ptr(self.0 + bytes as u64)
    }
}

/// A GPU that is ready for programs, with a stream of its own on it.
pub struct Device {
    gpu: Arc<Gpu>,
    stream: Stream,
    /// What waits for the end of a step to be run at once.
    pub(crate) recorder: Mutex<Recorder>,
}

/// What all streams on a GPU share: kernels are compiled and loaded once.
pub(crate) struct Gpu {
    context: Arc<CudaContext>,
    pub(crate) kernels: Mutex<Kernels>,
    name: String,
    capability: (u32, u32),
    multiprocessors: usize,
    shared_bytes: usize,
}

/// The stream everything is in order on.
struct Stream(sys::CUstream);

// SAFETY: a stream is a handle; the driver takes calls from any thread that has the context bound, and every method of
// `Device` binds it first.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, sm_{}{})", self.gpu.name, self.gpu.capability.0, self.gpu.capability.1)
    }
}

/// Whether the driver's library is on this machine.
pub fn has_driver() -> bool {
    // SAFETY: looks for a library and lets it go again.
    unsafe { sys::is_culib_present() }
}

/// Whether the driver is there and sees a GPU.
pub fn has_device() -> bool {
    has_driver() && CudaContext::device_count().is_ok_and(|count| count > 0)
}

impl Device {
    /// Opens GPU number `ordinal`.
    ///
    /// # Errors
    /// [`DeviceError::Failed`], in one line: no driver, a driver that is too old, no such GPU, or one that is.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, DeviceError> {
        const LEAST: (u32, u32) = (8, 0);
        if !has_driver() {
            return Err(failed("no CUDA driver on this machine (libcuda was not found)"));
        }
        check_driver()?;
        let count = CudaContext::device_count().map_err(driver("looking for a GPU"))?;
        if ordinal as i64 >= i64::from(count) {
            return Err(failed(format!("there is no GPU number {ordinal}; the driver sees {count}")));
        }
        let context = CudaContext::new(ordinal).map_err(driver("opening the GPU"))?;
        let name = context.name().map_err(driver("asking for the name of the GPU"))?;
        let (major, minor) = context.compute_capability().map_err(driver("asking for the compute capability"))?;
        let capability = (major as u32, minor as u32);
        if capability < LEAST {
            return Err(failed(format!("{name} has compute capability {major}.{minor}, at least 8.0 is needed")));
        }
        let attribute = |which| context.attribute(which).map_err(driver("asking for an attribute of the GPU"));
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let shared_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        let kernels = Mutex::new(Kernels::new(capability));
        Self::on(Arc::new(Gpu { context, kernels, name, capability, multiprocessors, shared_bytes }))
    }

    fn on(gpu: Arc<Gpu>) -> Result<Arc<Self>, DeviceError> {
        gpu.context.bind_to_thread().map_err(driver("binding the context"))?;
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = Stream(result::stream::create(kind).map_err(driver("making a stream"))?);
        Ok(Arc::new(Self { gpu, stream, recorder: Mutex::default() }))
    }

    /// The same GPU with another stream: what two programs do is in no order.
    pub(crate) fn with_own_stream(&self) -> Result<Arc<Self>, DeviceError> {
        Self::on(self.gpu.clone())
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The name the driver gives it.
    pub fn name(&self) -> &str {
        &self.gpu.name
    }

    /// Compute capability: `(9, 0)`.
    pub fn capability(&self) -> (u32, u32) {
        self.gpu.capability
    }

    /// Multiprocessors: grids are sized by them.
    pub fn multiprocessors(&self) -> usize {
        self.gpu.multiprocessors
    }

    /// Most shared memory of a block, in bytes.
    pub fn shared_bytes(&self) -> usize {
        self.gpu.shared_bytes
    }

    /// Bytes that are free now, and all there are.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let (free, total) = self.gpu.context.mem_get_info().map_err(driver("asking for free memory"))?;
        Ok((free as u64, total as u64))
    }

    /// Makes the context that of the calling thread.
    pub(crate) fn bind(&self) -> Result<(), DeviceError> {
        self.gpu.context.bind_to_thread().map_err(driver("binding the context"))
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream.0
    }

    /// Waits for everything that was asked for.
    ///
    /// # Errors
    /// What went wrong in any of it.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.run_recorded()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream.0) }.map_err(driver("running kernels"))
    }

    /// Overwrites device memory by `values`, in order with everything else. They are taken before this returns.
    pub(crate) fn upload<T: bytemuck::NoUninit>(&self, to: Ptr, values: &[T]) -> Result<(), DeviceError> {
        if values.is_empty() {
            return Ok(());
        }
        self.run_recorded()?;
        // SAFETY: the caller owns the memory at `to`; of memory that is not pinned the driver takes a copy at once.
        unsafe { result::memcpy_htod_async(to.0, values, self.stream.0) }.map_err(driver("copying to the GPU"))
    }

    /// As [`Device::upload`] from a part of pinned memory, which the GPU reads later: it is lent until then.
    pub(crate) fn upload_pinned(
        &self,
        to: Ptr,
        (pinned, until): (Pinned, Event),
        part: Range<usize>,
    ) -> Result<Lent, DeviceError> {
        self.upload(to, &pinned[part])?;
        self.record(&until)?;
        Ok(Lent { pinned, until })
    }

    /// Reads device memory, after everything that was asked for before.
    pub(crate) fn download<T: bytemuck::Pod>(&self, from: Ptr, out: &mut [T]) -> Result<(), DeviceError> {
        if !out.is_empty() {
            self.run_recorded()?;
            // SAFETY: the caller owns the memory at `from`; `out` outlives the copy, which is waited for.
            let copied = unsafe { result::memcpy_dtoh_async(out, from.0, self.stream.0) };
            copied.map_err(driver("copying from the GPU"))?;
        }
        self.synchronize()
    }

    /// Copies within device memory, in order.
    pub(crate) fn copy(&self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 { Ok(()) } else { self.call(Call::Copy { from, to, bytes }) }
    }

    /// Sets every byte, in order.
    pub(crate) fn fill(&self, at: Ptr, byte: u8, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 { Ok(()) } else { self.call(Call::Fill { at, byte, bytes }) }
    }

    /// Puts a copy into the stream.
    pub(crate) fn copy_now(&self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: whoever asked for the copy owns both places, which do not overlap.
        let copied = unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream.0) };
        copied.map_err(driver("copying on the GPU"))
    }

    /// Puts a fill into the stream.
    pub(crate) fn fill_now(&self, at: Ptr, byte: u8, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: whoever asked for it owns the memory.
        unsafe { result::memset_d8_async(at.0, byte, bytes, self.stream.0) }.map_err(driver("filling memory"))
    }

    /// Takes memory for `what`; a request of 0 bytes takes none.
    pub(crate) fn take(self: &Arc<Self>, what: &str, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        self.bind()?;
        let mut memory = DeviceMemory { device: self.clone(), at: Ptr::NULL, bytes: 0 };
        if bytes > 0 {
            // SAFETY: the address is kept in `DeviceMemory`, which gives it back once.
            let taken = unsafe { result::malloc_sync(bytes) };
            let at = taken.map_err(|error| self.no_memory(what, bytes, error))?;
            (memory.at, memory.bytes) = (Ptr(at), bytes);
        }
        Ok(memory)
    }

    fn no_memory(&self, what: &str, bytes: usize, error: DriverError) -> DeviceError {
        let available = self.memory().map_or(0, |(free, _)| free);
        if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let (device, what) = (format!("{NAME}: {}", self.gpu.name), what.to_string());
            return DeviceError::Memory { device, what, needed: bytes as u64, available };
        }
        driver("taking memory")(error)
    }

    /// Marks now in the order of the stream.
    pub(crate) fn event(&self) -> Result<Event, DeviceError> {
        self.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(driver("making an event"))?;
        let event = Event(event, self.gpu.clone());
        self.record(&event)?;
        Ok(event)
    }

    /// Marks now with an event that was made before.
    pub(crate) fn record(&self, event: &Event) -> Result<(), DeviceError> {
        self.run_recorded()?;
        // SAFETY: both handles are alive.
        unsafe { result::event::record(event.0, self.stream.0) }.map_err(driver("recording an event"))
    }

    /// Waits until everything before the event is done.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(event.0) }.map_err(driver("waiting for the GPU"))
    }

    /// Seconds between two events; waits for the later one.
    pub(crate) fn seconds(&self, from: &Event, to: &Event) -> Result<f64, DeviceError> {
        self.wait(to)?;
        // SAFETY: both events are of this stream and recorded.
        let elapsed = unsafe { result::event::elapsed(from.0, to.0) };
        Ok(f64::from(elapsed.map_err(driver("measuring time"))?) / 1e3)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: nobody else has the stream. A failure leaves nothing to be done.
            let _ = unsafe { result::stream::destroy(self.stream.0) };
        }
    }
}

/// Refuses drivers that are older than the kernels can be.
fn check_driver() -> Result<(), DeviceError> {
    const LEAST: i32 = 12_000;
    result::init().map_err(driver("starting the CUDA driver"))?;
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(driver("asking for the driver's version"))?;
    if version < LEAST {
        let words = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(failed(format!("the driver is of CUDA {}, at least {} is needed", words(version), words(LEAST))));
    }
    Ok(())
}

/// A mark in the order of the stream. Holds the context that it is one of.
pub(crate) struct Event(sys::CUevent, Arc<Gpu>);

// SAFETY: a handle, used with the context bound.
unsafe impl Send for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        if self.1.context.bind_to_thread().is_err() {
            return;
        }
        // SAFETY: made once, destroyed once. A failure leaves nothing to be done.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Device memory, given back when dropped.
pub(crate) struct DeviceMemory {
    device: Arc<Device>,
    at: Ptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Where it begins.
    pub(crate) fn at(&self) -> Ptr {
        self.at
    }

    /// How much it is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.device.synchronize().is_ok() {
            // SAFETY: taken once, given back once, and nothing that uses it is still running.
            let _ = unsafe { result::free_sync(self.at.0) };
        }
    }
}

/// Host memory that the GPU copies from and to by itself.
pub(crate) struct Pinned {
    device: Arc<Device>,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that one value owns.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Takes `bytes` of zeros, at least one.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, DeviceError> {
        device.bind()?;
        let bytes = bytes.max(1);
        // SAFETY: the address is kept, and given back once.
        let at = unsafe { result::malloc_host(bytes, 0) }.map_err(driver("taking pinned memory"))?.cast::<u8>();
        // SAFETY: `bytes` bytes were taken.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Self { device: device.clone(), at, bytes })
    }
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.synchronize().is_ok() {
            // SAFETY: taken once, given back once, and no copy is under way.
            let _ = unsafe { result::free_host(self.at.cast()) };
        }
    }
}

/// Pinned memory that the GPU reads until it comes to an event. Nobody writes to it before that: there is no other way to it
/// than to wait.
pub(crate) struct Lent {
    pinned: Pinned,
    until: Event,
}

impl Lent {
    /// The memory, and an event for the next copy, once the GPU has read it.
    pub(crate) fn back(self) -> Result<(Pinned, Event), DeviceError> {
        let Self { pinned, until } = self;
        pinned.device.wait(&until)?;
        Ok((pinned, until))
    }
}

/// Pinned memory that the host never looks at: what a device puts there it fetches later. So nobody waits for a copy.
pub(crate) struct StagingBuffer(Pinned);

impl StagingBuffer {
    /// Takes `bytes`, at least one.
    pub(crate) fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, DeviceError> {
        Pinned::new(device, bytes).map(Self)
    }

    /// Reads device memory into a part of it, in order with everything else.
    pub(crate) fn put(&mut self, from: Ptr, part: Range<usize>) -> Result<(), DeviceError> {
        if part.is_empty() {
            return Ok(());
        }
        let device = self.0.device.clone();
        device.run_recorded()?;
        // SAFETY: the caller owns the memory at `from`; only copies of the same stream read or write the part, and it is given
        // back after everything that was asked of its device is done.
        unsafe { result::memcpy_dtoh_async(&mut self.0[part], from.0, device.stream.0) }
            .map_err(driver("copying from the GPU"))
    }

    /// Overwrites device memory by a part of it, in order with everything else.
    pub(crate) fn fetch(&self, to: Ptr, part: Range<usize>) -> Result<(), DeviceError> {
        self.0.device.upload(to, &self.0[part])
    }
}

/// Launches that were captured from a stream and can be put into it again at once. Holds the context that it is one of.
pub(crate) struct Graph(sys::CUgraphExec, Arc<Gpu>);

// SAFETY: a handle, used with the context bound.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `run` puts into the stream of `device`, which runs none of it, and has the graph brought to the device.
    pub(crate) fn capture(device: &Device, run: &dyn Fn() -> Result<(), DeviceError>) -> Result<Self, DeviceError> {
        device.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and nothing else captures it.
        unsafe { result::stream::begin_capture(device.stream.0, mode) }.map_err(driver("beginning a graph"))?;
        let put = run();
        // SAFETY: as above; ended also if something could not be put in.
        let graph = unsafe { result::stream::end_capture(device.stream.0) };
        put?;
        let graph = graph.map_err(driver("ending a graph"))?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph was captured just now; it is not needed any more afterwards.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        // SAFETY: as above.
        let destroyed = unsafe { result::graph::destroy(graph) };
        made.result().and(destroyed).map_err(driver("making a graph"))?;
        let made = Self(exec, device.gpu.clone());
        // So that it is there before it is launched for the first time.
        // SAFETY: both handles are alive.
        unsafe { result::graph::upload(exec, device.stream.0) }.map_err(driver("uploading a graph"))?;
        Ok(made)
    }

    /// Puts it into the stream.
    pub(crate) fn launch(&self, device: &Device) -> Result<(), DeviceError> {
        device.bind()?;
        // SAFETY: both handles are alive; the memory that the launches use belongs to the program that owns this graph.
        unsafe { result::graph::launch(self.0, device.stream.0) }.map_err(driver("launching a graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.1.context.bind_to_thread().is_err() {
            return;
        }
        // SAFETY: made once, destroyed once. A failure leaves nothing to be done.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}
