//! GPUs and their memory, as measuring needs them: buffers by address, copies, timing by events.
//!
//! One of the few modules with `unsafe`. Its contract: a [`Memory`] is used by one rank, whose operations are all
//! enqueued on the stream of the memory's [`Gpu`]; it is freed only after that stream has become idle. [`View`]s are
//! checked to lie within the memory.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaGraph, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError,
    SyncOnDrop, result,
};

use super::memory::human;
use crate::comm::{Communicator, Window};
use crate::error::{Error, Result};
use crate::types::Element;

/// How long to wait for a stream before giving up: longer than any batch takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank's device with the stream all its work goes through.
#[derive(Clone, Debug)]
pub(super) struct Gpu {
    pub(super) rank: usize,
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
}

impl Gpu {
    /// Rank `rank` on device `ordinal`.
    pub(super) fn new(rank: usize, ordinal: usize) -> Result<Self> {
        let error = |call| move |e| cuda_error(call, rank, ordinal, e);
        let context = CudaContext::new(ordinal).map_err(error("cuDevicePrimaryCtxRetain"))?;
        let stream = context.new_stream().map_err(error("cuStreamCreate"))?;
        Ok(Gpu { rank, context, stream })
    }

    /// Turns the driver's refusal into an error of this rank.
    pub(super) fn error(&self, call: &'static str) -> impl Fn(DriverError) -> Error + use<> {
        let (rank, device) = (self.rank, self.context.ordinal());
        move |error| cuda_error(call, rank, device, error)
    }

    /// A refused allocation, with how much there is.
    fn too_little_memory(&self, bytes: usize, error: DriverError) -> Error {
        match (error.0, result::mem_get_info()) {
            (sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY, Ok((free, total))) => Error::Unavailable {
                what: format!("{} of memory on GPU {}", human(bytes as u64), self.context.ordinal()),
                reason: format!(
                    "{} of {} are free, and rank {} needs one such buffer for input and one for output; measure smaller \
                     messages",
                    human(free as u64),
                    human(total as u64),
                    self.rank
                ),
            },
            _ => self.error("cuMemAlloc")(error),
        }
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(self.error("cuCtxSetCurrent"))
    }

    /// `0000:06:00.0 NVIDIA H200`.
    pub(super) fn describe(&self) -> Result<String> {
        let get = |a| self.context.attribute(a).map_err(self.error("cuDeviceGetAttribute"));
        let domain = get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let slot = get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        let name = self.context.name().map_err(self.error("cuDeviceGetName"))?;
        Ok(format!("{domain:04x}:{bus:02x}:{slot:02x}.0 {name}"))
    }

    /// Whether everything enqueued has finished.
    fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            status => Err(self.error("cuStreamQuery")(DriverError(status))),
        }
    }

    /// Waits for everything enqueued, spinning, so that the end is seen at once.
    ///
    /// # Errors
    /// [`Error::Timeout`] after a minute.
    pub(super) fn wait(&self) -> Result<()> {
        let started = Instant::now();
        while !self.is_idle()? {
            if started.elapsed() > PATIENCE {
                let report = "the GPU has not finished what was enqueued for it".into();
                let milliseconds = PATIENCE.as_millis() as u64;
                return Err(Error::Timeout { operation: 0, rank: self.rank, milliseconds, report });
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Marks a point in the stream.
    pub(super) fn mark(&self) -> Result<CudaEvent> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.stream.record_event(flags).map_err(self.error("cuEventRecord"))
    }

    /// Seconds between two points that have passed.
    pub(super) fn between(&self, first: &CudaEvent, last: &CudaEvent) -> Result<f64> {
        let milliseconds = first.elapsed_ms(last).map_err(self.error("cuEventElapsedTime"))?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Begins to collect what is enqueued on the stream in a graph.
    pub(super) fn begin_capture(&self) -> Result<()> {
        // Relaxed: the first rank's graph is instantiated while the second rank's stream is still in capture.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.stream.begin_capture(mode).map_err(self.error("cuStreamBeginCapture"))
    }

    /// The graph of what was enqueued since.
    pub(super) fn end_capture(&self) -> Result<CudaGraph> {
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags).map_err(self.error("cuStreamEndCapture"))?;
        let graph = graph.ok_or_else(|| Error::Unavailable {
            what: "a CUDA graph of the calls".into(),
            reason: "the capture was given up; use stream mode".into(),
        })?;
        graph.upload().map_err(self.error("cuGraphUpload"))?;
        Ok(graph)
    }
}

fn cuda_error(call: &'static str, rank: usize, device: usize, error: DriverError) -> Error {
    let text = error.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let hint = match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => "; measure smaller messages",
        _ => "",
    };
    Error::Cuda { call, rank, device, reason: format!("{:?} ({text}){hint}", error.0) }
}

/// The CUDA version the driver knows: `13.0`.
pub(super) fn driver_version() -> String {
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    match status {
        sys::CUresult::CUDA_SUCCESS => format!("{}.{}", version / 1000, version % 1000 / 10),
        _ => "?".to_owned(),
    }
}

/// Gives memory back to whoever made it.
pub(super) type Free = Box<dyn FnOnce(u64) + Send + Sync>;

/// Device memory of one rank.
pub(super) struct Memory {
    gpu: Gpu,
    address: u64,
    bytes: usize,
    free: Option<Free>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({:#x}, {} bytes)", self.address, self.bytes)
    }
}

impl Memory {
    /// Allocates.
    pub(super) fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the context is current; the memory is freed once, when this is dropped.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }
            .map_err(|error| gpu.too_little_memory(bytes, error))?;
        let free: Free = Box::new(|address| {
            // SAFETY: allocated above and not freed before. A failure leaves nothing to do.
            let _ = unsafe { result::free_sync(address) };
        });
        Ok(Memory { gpu: gpu.clone(), address, bytes, free: Some(free) })
    }

    /// Memory that somebody else allocated.
    ///
    /// # Safety
    /// `bytes` bytes at `address` can be read and written by the device of `gpu` until `free` is called.
    pub(super) unsafe fn adopt(gpu: &Gpu, address: u64, bytes: usize, free: Free) -> Self {
        Memory { gpu: gpu.clone(), address, bytes, free: Some(free) }
    }

    /// How many bytes there are.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a byte that has so many bytes from it on.
    pub(super) fn place(&self, byte: usize, bytes: usize) -> u64 {
        self.check(byte, bytes);
        self.address + byte as u64
    }

    /// The stream that all work on it goes through.
    pub(super) fn stream(&self) -> &CudaStream {
        &self.gpu.stream
    }

    /// Elements from a byte on.
    pub(super) fn view<T: Element>(&self, byte: usize, len: usize) -> View<'_, T> {
        self.check(byte, len * size_of::<T>());
        View { memory: self, byte, len, element: PhantomData }
    }

    fn check(&self, byte: usize, bytes: usize) {
        assert!(byte.checked_add(bytes).is_some_and(|end| end <= self.bytes), "within the memory");
    }

    /// Copies elements to the device.
    pub(super) fn upload<T: Element>(&self, byte: usize, data: &[T]) -> Result<()> {
        self.check(byte, size_of_val(data));
        self.gpu.bind()?;
        let (to, stream) = (self.address + byte as u64, self.gpu.stream.cu_stream());
        // SAFETY: in bounds; `data` is borrowed until the stream is idle.
        unsafe { result::memcpy_htod_async(to, data, stream) }
            .map_err(self.gpu.error("cuMemcpyHtoDAsync"))?;
        self.gpu.wait()
    }

    /// Copies elements from the device.
    pub(super) fn download<T: Element>(&self, byte: usize, data: &mut [T]) -> Result<()> {
        self.check(byte, size_of_val(data));
        self.gpu.bind()?;
        let (from, stream) = (self.address + byte as u64, self.gpu.stream.cu_stream());
        // SAFETY: in bounds; `data` is borrowed until the stream is idle; elements are numbers, any bits are valid.
        unsafe { result::memcpy_dtoh_async(data, from, stream) }
            .map_err(self.gpu.error("cuMemcpyDtoHAsync"))?;
        self.gpu.wait()
    }

    /// Copies bytes from one place of this memory to another that does not overlap it; in stream order.
    pub(super) fn copy_within(&self, from: usize, to: usize, bytes: usize) -> Result<()> {
        self.check(from, bytes);
        self.check(to, bytes);
        assert!(from + bytes <= to || to + bytes <= from, "places that do not overlap");
        // SAFETY: in bounds, and freed only after the stream is idle.
        unsafe { copy(&self.gpu, self.address + from as u64, self.address + to as u64, bytes) }
    }

    /// Repeats the first `period` bytes from `byte` on until `bytes` are filled.
    pub(super) fn repeat(&self, byte: usize, period: usize, bytes: usize) -> Result<()> {
        let mut done = period;
        while done < bytes {
            // What is there is a whole number of periods, so it may be appended to itself.
            let n = done.min(bytes - done);
            self.copy_within(byte, byte + done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Sets bytes, in stream order.
    pub(super) fn set(&self, byte: usize, bytes: usize, value: u8) -> Result<()> {
        self.check(byte, bytes);
        self.gpu.bind()?;
        let (to, stream) = (self.address + byte as u64, self.gpu.stream.cu_stream());
        // SAFETY: in bounds, and freed only after the stream is idle.
        unsafe { result::memset_d8_async(to, value, bytes, stream) }
            .map_err(self.gpu.error("cuMemsetD8Async"))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Memory that a kernel may still use is kept for ever.
        if self.gpu.bind().is_ok()
            && self.gpu.wait().is_ok()
            && let Some(free) = self.free.take()
        {
            free(self.address);
        }
    }
}

/// Enqueues a copy on the stream of a rank.
///
/// # Safety
/// Both ranges are valid until the copy has run.
unsafe fn copy(gpu: &Gpu, from: u64, to: u64, bytes: usize) -> Result<()> {
    gpu.bind()?;
    // SAFETY: the caller vouches for the ranges.
    let done = unsafe { result::memcpy_dtod_async(to, from, bytes, gpu.stream.cu_stream()) };
    done.map_err(gpu.error("cuMemcpyDtoDAsync"))
}

/// Registers all of one memory of each rank. Whoever keeps the window drops it before them.
pub(super) fn register(ranks: &[Communicator], memories: &[&Memory]) -> Result<Window> {
    let all: Vec<View<'_, u8>> = memories.iter().map(|memory| memory.view(0, memory.bytes)).collect();
    // SAFETY: memory is freed only after its stream is idle, and the ranks' operations on it are in that stream.
    unsafe { Communicator::register(ranks, &all) }
}

/// A part of a [`Memory`] as a collective takes it. It tracks nothing: all work on the memory is on one stream.
pub(super) struct View<'a, T> {
    memory: &'a Memory,
    byte: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T> DeviceSlice<T> for View<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.memory.gpu.stream
    }
}

impl<T> DevicePtr<T> for View<'_, T> {
    fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (self.memory.address + self.byte as u64, SyncOnDrop::Record(None))
    }
}

impl<T> DevicePtrMut<T> for View<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        (self.memory.address + self.byte as u64, SyncOnDrop::Record(None))
    }
}

/// What copy engines move from each memory to the next, all at once, in bytes a second: the best of a few batches.
/// `pairs` are the source of each GPU and its destination on another.
pub(super) fn copy_limit(pairs: &[(&Memory, &Memory)]) -> Result<f64> {
    const COPIES: usize = 4;
    let bytes = pairs.iter().map(|(from, to)| from.bytes.min(to.bytes)).min().unwrap_or(0);
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        let started = Instant::now();
        for _ in 0..COPIES {
            for (from, to) in pairs {
                // SAFETY: `bytes` is within both; both streams are waited for below, and by `Memory` before it is freed.
                unsafe { copy(&from.gpu, from.address, to.address, bytes) }?;
            }
        }
        for (from, _) in pairs {
            from.gpu.wait()?;
        }
        best = best.min(started.elapsed().as_secs_f64() / COPIES as f64);
    }
    Ok(bytes as f64 / best)
}

/// A matrix product of ours that keeps every multiprocessor of a device busy, on a stream of its own.
#[derive(Debug)]
pub(super) struct Product {
    pub(super) gpu: Gpu,
    module: sys::CUmodule,
    function: sys::CUfunction,
    /// Two factors and the result.
    matrices: [Memory; 3],
}

/// Rows and columns of the matrices: 137 billion operations, a few milliseconds of a large GPU.
const SIDE: u32 = 4096;

impl Product {
    /// Loads the kernel and allocates the matrices.
    pub(super) fn new(rank: usize, ordinal: usize, image: &'static [u8]) -> Result<Self> {
        let gpu = Gpu::new(rank, ordinal)?;
        gpu.bind()?;
        let bytes = (SIDE * SIDE) as usize * size_of::<f32>();
        let matrices = [Memory::new(&gpu, bytes)?, Memory::new(&gpu, bytes)?, Memory::new(&gpu, bytes)?];
        for matrix in &matrices {
            matrix.set(0, bytes, 0)?;
        }
        // SAFETY: the image is a complete fatbin that nvcc wrote; the context is current.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let module = module.map_err(gpu.error("cuModuleLoadData"))?;
        // SAFETY: the module was just loaded, and is unloaded when this is dropped.
        let function = unsafe { result::module::get_function(module, c"busy_product".into()) };
        let function = function.map_err(gpu.error("cuModuleGetFunction"))?;
        Ok(Product { gpu, module, function, matrices })
    }

    /// Enqueues so many products.
    pub(super) fn enqueue(&self, times: usize) -> Result<()> {
        self.gpu.bind()?;
        let [a, b, c] = &self.matrices;
        let (mut a, mut b, mut c, mut n) = (a.address, b.address, c.address, SIDE);
        let mut parameters: [*mut std::ffi::c_void; 4] =
            [(&raw mut a).cast(), (&raw mut b).cast(), (&raw mut c).cast(), (&raw mut n).cast()];
        let grid = (SIDE / 64, SIDE / 64, 1);
        for _ in 0..times {
            let stream = self.gpu.stream.cu_stream();
            // SAFETY: the kernel takes three matrices of n times n floats and n; they are freed after the stream is idle.
            unsafe { result::launch_kernel(self.function, grid, (256, 1, 1), 0, stream, &mut parameters) }
                .map_err(self.gpu.error("cuLaunchKernel"))?;
        }
        Ok(())
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() && self.gpu.wait().is_ok() {
            // SAFETY: loaded by `new`; nothing runs any more. A failure leaves nothing to do.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}
