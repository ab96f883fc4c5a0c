//! What the engine needs of the CUDA driver and cudarc does not wrap: peer access, mapped host memory, memory pools,
//! launch attributes. One thin safe function for each, errors with the call's name.
//!
//! This is one of the few modules with `unsafe`: every call into the driver is made here.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

use crate::error::{Error, Result};

/// Whether the driver library is there at all.
pub(crate) fn present() -> bool {
    // SAFETY: only opens and closes the library.
    unsafe { sys::is_culib_present() }
}

/// On whose behalf a driver call is made: for error messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    /// The rank.
    pub(crate) rank: usize,
    /// The CUDA ordinal of its device.
    pub(crate) device: usize,
}

impl Who {
    /// Turns a driver status into a result.
    pub(crate) fn check(self, call: &'static str, status: sys::CUresult) -> Result<()> {
        if status == sys::CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let error = cudarc::driver::DriverError(status);
        Err(self.error(call, error))
    }

    /// Turns cudarc's error into ours.
    pub(crate) fn error(self, call: &'static str, error: cudarc::driver::DriverError) -> Error {
        let text = error.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let hint = match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => "; free memory on the device or use fewer ranks on it",
            sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "; build with RINGLEADER_CUDA_ARCH for this GPU",
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                "; not possible while a stream is captured: make one call of this kind before the capture"
            }
            _ => "",
        };
        Error::Cuda {
            call,
            rank: self.rank,
            device: self.device,
            reason: format!("{:?} ({text}){hint}", error.0),
        }
    }
}

/// Device memory, zeroed, freed on drop.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<CudaContext>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates with `cuMemAlloc` and clears.
    pub(crate) fn zeroed(who: Who, context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        context.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
        let mut address = 0;
        // SAFETY: `address` outlives the call; the context is current.
        who.check("cuMemAlloc_v2", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        let memory = DeviceMemory { context: context.clone(), address, bytes };
        // SAFETY: the range was just allocated and nobody else knows it.
        who.check("cuMemsetD8_v2", unsafe { sys::cuMemsetD8_v2(address, 0, bytes) })?;
        Ok(memory)
    }

    /// Writes a plain structure. Nothing may run on the memory yet.
    pub(crate) fn write<T: Copy>(&self, who: Who, byte: usize, value: &T) -> Result<()> {
        assert!(byte + size_of::<T>() <= self.bytes, "within the memory");
        self.context.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
        let to = self.address + byte as u64;
        // SAFETY: the destination holds as many bytes as the source; nobody else uses it.
        let status = unsafe { sys::cuMemcpyHtoD_v2(to, (&raw const *value).cast(), size_of::<T>()) };
        who.check("cuMemcpyHtoD_v2", status)
    }

    /// Writes one word over and over. Nothing may run on the memory yet.
    pub(crate) fn fill(&self, who: Who, byte: usize, word: u32, words: usize) -> Result<()> {
        assert!(byte.is_multiple_of(4) && byte + 4 * words <= self.bytes, "within the memory");
        self.context.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
        // SAFETY: aligned and in bounds; nobody else uses it.
        who.check("cuMemsetD32_v2", unsafe { sys::cuMemsetD32_v2(self.address + byte as u64, word, words) })
    }

    /// The first byte, in the unified address space.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `zeroed`; whoever drops this has made sure no kernel uses it. A failure (the driver
            // is shutting down) leaves nothing to do.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Pinned host memory that every device maps at its host address; zeroed, freed on drop.
#[derive(Debug)]
pub(crate) struct HostMemory {
    context: Arc<CudaContext>,
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory; all access is through atomics or volatile reads below.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates portable, mapped host memory.
    pub(crate) fn zeroed(who: Who, context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        context.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
        let mut pointer = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `pointer` outlives the call; the context is current.
        who.check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut pointer, bytes, flags) })?;
        let memory = HostMemory { context: context.clone(), pointer: pointer.cast(), bytes };
        // SAFETY: `bytes` bytes were just allocated at `pointer`.
        unsafe { memory.pointer.write_bytes(0, bytes) };
        Ok(memory)
    }

    /// The address, the same for the host and, with unified addressing, for every device.
    pub(crate) fn address(&self) -> u64 {
        self.pointer as u64
    }

    /// The size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A 32-bit word in it, shared with kernels.
    pub(crate) fn word(&self, byte: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(byte.is_multiple_of(4) && byte + 4 <= self.bytes, "a word lies within the memory");
        // SAFETY: aligned and in bounds; the memory lives as long as `self`; kernels access it with system-scope
        // accesses of the same size.
        unsafe { &*self.pointer.add(byte).cast() }
    }

    /// Writes a plain structure. Nothing may run on the memory yet.
    pub(crate) fn write<T: Copy>(&self, byte: usize, value: &T) {
        assert!(
            byte.is_multiple_of(align_of::<T>()) && byte + size_of::<T>() <= self.bytes,
            "within the memory"
        );
        // SAFETY: aligned and in bounds; nobody else uses it.
        unsafe { self.pointer.add(byte).cast::<T>().write(*value) }
    }

    /// Writes one word over and over. Nothing may run on the memory yet.
    pub(crate) fn fill(&self, byte: usize, word: u32, words: usize) {
        assert!(byte.is_multiple_of(4) && byte + 4 * words <= self.bytes, "within the memory");
        // SAFETY: aligned and in bounds; nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(byte).cast::<u32>(), words) }.fill(word);
    }

    /// Copies a plain structure out of it.
    pub(crate) fn read<T: Copy>(&self, byte: usize) -> T {
        assert!(
            byte.is_multiple_of(align_of::<T>()) && byte + size_of::<T>() <= self.bytes,
            "within the memory"
        );
        // SAFETY: aligned and in bounds; `T` is a plain structure of integers from abi.rs, any bits are valid.
        unsafe { self.pointer.add(byte).cast::<T>().read_volatile() }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `zeroed`; whoever drops this has made sure no kernel uses it.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// Whether `from`'s device can reach `to`'s memory.
pub(crate) fn can_access_peer(who: Who, from: &CudaContext, to: &CudaContext) -> Result<bool> {
    let mut can = 0;
    // SAFETY: `can` outlives the call.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, from.cu_device(), to.cu_device()) };
    who.check("cuDeviceCanAccessPeer", status)?;
    Ok(can != 0)
}

/// Lets `from` access the memory of `to`: ordinary allocations and those of the default stream-ordered pool.
pub(crate) fn enable_peer(who: Who, from: &CudaContext, to: &CudaContext) -> Result<()> {
    from.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
    // SAFETY: both contexts are alive; `from` is current.
    let status = unsafe { sys::cuCtxEnablePeerAccess(to.cu_ctx(), 0) };
    if status != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        who.check("cuCtxEnablePeerAccess", status)?;
    }
    if !to.has_async_alloc() {
        return Ok(());
    }
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` outlives the call.
    let status = unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, to.cu_device()) };
    who.check("cuDeviceGetDefaultMemPool", status)?;
    let access = sys::CUmemAccessDesc {
        location: location(from),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: one descriptor is passed and one is read.
    who.check("cuMemPoolSetAccess", unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) })
}

fn location(context: &CudaContext) -> sys::CUmemLocation {
    // SAFETY: a plain C structure of an enum with a zero variant and integers.
    let mut location: sys::CUmemLocation = unsafe { MaybeUninit::zeroed().assume_init() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = context.cu_device();
    location
}

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointer {
    /// The memory pool it was allocated from, or null.
    pool: sys::CUmemoryPool,
    /// Whether `cuMemAlloc` made it: then peer access to the context covers it.
    legacy: bool,
}

/// Asks the driver about an address. `None` if it knows nothing.
pub(crate) fn describe_pointer(address: u64) -> Option<Pointer> {
    let mut pool: sys::CUmemoryPool = std::ptr::null_mut();
    let mut legacy = 0u32;
    let mut attributes = [
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    ];
    let mut data: [*mut c_void; 2] = [(&raw mut pool).cast(), (&raw mut legacy).cast()];
    // SAFETY: two attributes, two destinations of the types the driver documents for them.
    let status =
        unsafe { sys::cuPointerGetAttributes(2, attributes.as_mut_ptr(), data.as_mut_ptr(), address) };
    (status == sys::CUresult::CUDA_SUCCESS).then_some(Pointer { pool, legacy: legacy != 0 })
}

impl Pointer {
    /// Whether the device of `context` may write this memory, peer access being enabled.
    pub(crate) fn writable_by(&self, context: &CudaContext) -> bool {
        if self.pool.is_null() {
            return self.legacy;
        }
        let mut flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let mut location = location(context);
        // SAFETY: the pool belongs to live memory; the out-parameters outlive the call.
        let status = unsafe { sys::cuMemPoolGetAccess(&mut flags, self.pool, &mut location) };
        status == sys::CUresult::CUDA_SUCCESS
            && flags == sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    }
}

/// A kernel launch.
pub(crate) struct KernelLaunch<'a, P> {
    /// The kernel; its one parameter is a `P`.
    pub(crate) function: &'a Function,
    /// Blocks of the grid.
    pub(crate) blocks: u32,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Programmatic stream serialization: start before the previous kernel of the stream has finished. The kernel
    /// must wait for it by itself.
    pub(crate) early: bool,
    /// The parameter.
    pub(crate) parameter: &'a P,
}

impl<P> KernelLaunch<'_, P> {
    /// Enqueues the kernel.
    ///
    /// # Safety
    /// `function` is a kernel whose one parameter is a `P` with the same layout, loaded in the stream's context; every
    /// address in the parameter is valid until the kernel has finished.
    pub(crate) unsafe fn enqueue(self, who: Who, stream: &CudaStream) -> Result<()> {
        // SAFETY: a plain C structure; zero is a valid value of every field.
        let mut attribute: sys::CUlaunchAttribute = unsafe { MaybeUninit::zeroed().assume_init() };
        attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: self.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.cu_stream(),
            attrs: &mut attribute,
            numAttrs: u32::from(self.early),
        };
        let mut parameters = [(&raw const *self.parameter).cast_mut().cast::<c_void>()];
        // SAFETY: the caller vouches for the kernel and its parameter; the driver copies the parameter before it returns.
        let status = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                self.function.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        who.check("cuLaunchKernelEx", status)
    }
}

/// A loaded module, unloaded on drop.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
}

// SAFETY: module handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Module {}

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    function: sys::CUfunction,
    _module: Arc<Module>,
}

// SAFETY: function handles may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads a fatbin.
    pub(crate) fn load(who: Who, context: &Arc<CudaContext>, image: &'static [u8]) -> Result<Arc<Self>> {
        context.bind_to_thread().map_err(|e| who.error("cuCtxSetCurrent", e))?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a complete fatbin that nvcc wrote; the context is current.
        who.check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
        Ok(Arc::new(Module { context: context.clone(), module }))
    }

    /// Finds a kernel and loads its code now rather than at its first launch, which could wait for kernels that wait
    /// for us.
    pub(crate) fn function(self: &Arc<Self>, who: Who, name: &std::ffi::CStr) -> Result<Function> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name is a C string.
        let status = unsafe { sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr()) };
        who.check("cuModuleGetFunction", status)?;
        // SAFETY: the function was just found in a module of the current context.
        who.check("cuFuncLoad", unsafe { sys::cuFuncLoad(function) })?;
        Ok(Function { function, _module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: every function holds the module, so none is left. A failure leaves nothing to do.
            let _ = unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// Whether the stream is being captured into a graph.
pub(crate) fn is_capturing(who: Who, stream: &CudaStream) -> Result<bool> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` outlives the call.
    who.check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut status) })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// While it lives, this thread may make calls that do not touch the captured stream.
#[derive(Debug)]
pub(crate) struct RelaxedCapture {
    previous: sys::CUstreamCaptureMode,
}

impl RelaxedCapture {
    /// Relaxes the thread's capture mode.
    pub(crate) fn enter() -> Self {
        let mut previous = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges a thread-local setting with `previous`, which outlives the call.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut previous) };
        RelaxedCapture { previous }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: puts back what `enter` found.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.previous) };
    }
}

/// Whether everything enqueued on the stream has finished. Errors count as finished: nothing runs any more.
pub(crate) fn is_idle(stream: &CudaStream) -> bool {
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamQuery(stream.cu_stream()) != sys::CUresult::CUDA_ERROR_NOT_READY }
}

/// Enqueues a copy between buffers of the unified address space.
///
/// # Safety
/// Both ranges are valid until the copy has run.
pub(crate) unsafe fn copy(who: Who, stream: &CudaStream, to: u64, from: u64, bytes: usize) -> Result<()> {
    // SAFETY: the caller vouches for the ranges.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.cu_stream()) };
    who.check("cuMemcpyDtoDAsync_v2", status)
}

/// What a stream does with a 32-bit word of device-visible memory, in order with its other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordOp {
    /// Waits until the word at this address is 1 or more.
    Wait(u64),
    /// Writes 1, after everything before it in the stream is visible.
    Raise(u64),
    /// Writes 0.
    Lower(u64),
}

/// Enqueues operations on words. No multiprocessor is held while one waits.
///
/// # Safety
/// Every address is of an aligned word that the stream's device can write, and stays valid until the stream has passed.
pub(crate) unsafe fn word_ops(who: Who, stream: &CudaStream, ops: &[WordOp]) -> Result<()> {
    let mut params: Vec<sys::CUstreamBatchMemOpParams> = ops.iter().map(WordOp::parameters).collect();
    // SAFETY: the array is as long as said, the driver copies it before it returns; the caller vouches for the addresses.
    let status = unsafe {
        sys::cuStreamBatchMemOp_v2(stream.cu_stream(), params.len() as u32, params.as_mut_ptr(), 0)
    };
    who.check("cuStreamBatchMemOp_v2", status)
}

impl WordOp {
    fn parameters(&self) -> sys::CUstreamBatchMemOpParams {
        // SAFETY: plain C structures and numbers; zero is a valid value of every field.
        let mut params: sys::CUstreamBatchMemOpParams = unsafe { MaybeUninit::zeroed().assume_init() };
        let write = |address, value| sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address,
            __bindgen_anon_1:
                sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 { value },
            flags: sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
            alias: 0,
        };
        match *self {
            WordOp::Wait(address) => {
                params.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
                    operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                    address,
                    __bindgen_anon_1:
                        sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
                            value: 1,
                        },
                    flags: sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32,
                    alias: 0,
                }
            }
            WordOp::Raise(address) => params.writeValue = write(address, 1),
            WordOp::Lower(address) => params.writeValue = write(address, 0),
        }
        params
    }
}

/// The PCI bus id of a context's device, as the driver writes it: `0000:06:00.0`.
pub(crate) fn bus_id(who: Who, context: &CudaContext) -> Result<String> {
    let mut text = [0i8; 32];
    // SAFETY: the buffer's length is passed along.
    let status =
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, context.cu_device()) };
    who.check("cuDeviceGetPCIBusId", status)?;
    Ok(text.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect::<String>().to_lowercase())
}

/// Whether the devices can do atomics on each other's memory natively: so far true of NVLink and C2C only, never of PCIe.
pub(crate) fn native_atomics(who: Who, from: &CudaContext, to: &CudaContext) -> Result<bool> {
    let mut supported = 0;
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: `supported` outlives the call.
    let status =
        unsafe { sys::cuDeviceGetP2PAttribute(&mut supported, attribute, from.cu_device(), to.cu_device()) };
    who.check("cuDeviceGetP2PAttribute", status)?;
    Ok(supported != 0)
}
