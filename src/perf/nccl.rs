//! The system's NCCL, opened at run time.
//!
//! One of the few modules with `unsafe`: the C functions are declared here, from NCCL's documentation, and called
//! nowhere else. Its contract: handles are made once, used while [`Library`] is open, and destroyed when their owner is
//! dropped; buffers given to a call are [`Memory`](super::device::Memory) of the rank.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::case::Case;
use super::device::{Free, Gpu, Memory};
use crate::error::{Error, Result};
use crate::types::{Collective, DataType, ReduceOp};

type Comm = *mut c_void;
type Stream = *mut c_void;
type Window = *mut c_void;

/// Windows of which every rank registers one of the same size, at the same time.
const WIN_COLL_SYMMETRIC: c_int = 1;
/// The factor of an operator is read from the host during the call that makes it.
const SCALAR_HOST_IMMEDIATE: c_int = 1;

/// Declares the table of functions, and loads it.
macro_rules! functions {
    (
        required { $($name:ident = $symbol:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($opt:ident = $opt_symbol:literal: fn($($opt_arg:ty),*) -> $opt_ret:ty;)* }
    ) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $($opt: Option<unsafe extern "C" fn($($opt_arg),*) -> $opt_ret>,)*
        }

        impl Functions {
            /// # Safety
            /// The library is NCCL 2: its functions have the types declared here.
            unsafe fn load(library: &libloading::Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Functions {
                    // SAFETY: the caller vouches for the library.
                    $($name: *unsafe { library.get($symbol) }?,)*
                    // SAFETY: as above.
                    $($opt: unsafe { library.get($opt_symbol) }.ok().map(|f| *f),)*
                })
            }
        }
    };
}

functions! {
    required {
        get_version = b"ncclGetVersion\0": fn(*mut c_int) -> c_int;
        error_string = b"ncclGetErrorString\0": fn(c_int) -> *const c_char;
        comm_init_all = b"ncclCommInitAll\0": fn(*mut Comm, c_int, *const c_int) -> c_int;
        comm_destroy = b"ncclCommDestroy\0": fn(Comm) -> c_int;
        group_start = b"ncclGroupStart\0": fn() -> c_int;
        group_end = b"ncclGroupEnd\0": fn() -> c_int;
        all_reduce = b"ncclAllReduce\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        reduce_scatter = b"ncclReduceScatter\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        all_gather = b"ncclAllGather\0": fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int;
        broadcast = b"ncclBroadcast\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        reduce = b"ncclReduce\0": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int;
        op_create = b"ncclRedOpCreatePreMulSum\0": fn(*mut c_int, *mut c_void, c_int, c_int, Comm) -> c_int;
        op_destroy = b"ncclRedOpDestroy\0": fn(c_int, Comm) -> c_int;
    }
    optional {
        mem_alloc = b"ncclMemAlloc\0": fn(*mut *mut c_void, usize) -> c_int;
        mem_free = b"ncclMemFree\0": fn(*mut c_void) -> c_int;
        window_register = b"ncclCommWindowRegister\0": fn(Comm, *mut c_void, usize, *mut Window, c_int) -> c_int;
        window_deregister = b"ncclCommWindowDeregister\0": fn(Comm, Window) -> c_int;
    }
}

/// The opened library.
struct Library {
    functions: Functions,
    path: PathBuf,
    version: c_int,
    /// Never read, but the functions are only there while it is open.
    _library: libloading::Library,
}

impl Library {
    fn open() -> Result<Arc<Self>> {
        let mut tried = Vec::new();
        for path in candidates() {
            // SAFETY: loading NCCL runs its initialisers, which only set up its own state.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => return Self::from(library, path),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        Err(missing(format!("{}; install it, or set NCCL_LIB to libnccl.so.2", tried.join("; "))))
    }

    fn from(library: libloading::Library, path: PathBuf) -> Result<Arc<Self>> {
        // SAFETY: the file is named libnccl.so.2, or the user named it.
        let functions = unsafe { Functions::load(&library) };
        let functions = functions.map_err(|why| missing(format!("{}: {why}", path.display())))?;
        let mut opened = Library { functions, path, version: 0, _library: library };
        // SAFETY: the out-parameter outlives the call.
        let status = unsafe { (opened.functions.get_version)(&mut opened.version) };
        opened.check("ncclGetVersion", status)?;
        Ok(Arc::new(opened))
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: NCCL returns a static string for every status.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(status)) };
        let reason = format!("{} (status {status}); NCCL_DEBUG=WARN says more", text.to_string_lossy());
        Err(Error::System { action: format!("{call} of NCCL {}", self.version()), reason })
    }

    /// `2.28.9`.
    fn version(&self) -> String {
        let v = self.version;
        // Since 2.9 the major number counts ten thousands.
        if v >= 10_000 {
            format!("{}.{}.{}", v / 10_000, v % 10_000 / 100, v % 100)
        } else {
            format!("{}.{}.{}", v / 1000, v % 1000 / 100, v % 100)
        }
    }
}

fn missing(reason: String) -> Error {
    Error::Unavailable { what: "NCCL".into(), reason }
}

/// Where to look, in order: what `NCCL_LIB` names, where the dynamic linker looks, and beside a Python torch.
fn candidates() -> Vec<PathBuf> {
    const NAME: &str = "libnccl.so.2";
    if let Some(named) = std::env::var_os("NCCL_LIB").filter(|v| !v.is_empty()) {
        let named = PathBuf::from(named);
        return vec![if named.is_dir() { named.join(NAME) } else { named }];
    }
    let mut found = vec![PathBuf::from(NAME)];
    let python = Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    if let Ok(python) = python {
        let text = String::from_utf8_lossy(&python.stdout);
        let inside = text.lines().map(|folder| Path::new(folder).join("nvidia/nccl/lib").join(NAME));
        found.extend(inside.filter(|path| path.is_file()));
    }
    found
}

/// An NCCL communicator with one rank on each device.
pub(super) struct Nccl {
    library: Arc<Library>,
    comms: Vec<Comm>,
    windows: Vec<(Comm, Window)>,
}

// SAFETY: NCCL's handles may be used from any thread; one thread at a time uses a rank's, as NCCL asks.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl({}, {} ranks)", self.library.version(), self.comms.len())
    }
}

/// An operator as NCCL knows it, for every rank's communicator.
pub(super) struct Operators<'a> {
    nccl: &'a Nccl,
    ops: Vec<c_int>,
    made: bool,
}

impl Nccl {
    /// Opens the library and makes a communicator.
    pub(super) fn new(gpus: &[Gpu]) -> Result<Self> {
        let library = Library::open()?;
        let devices: Vec<c_int> = gpus.iter().map(|g| g.context.ordinal() as c_int).collect();
        let mut comms = vec![std::ptr::null_mut(); gpus.len()];
        // SAFETY: both arrays have as many entries as there are devices.
        let status = unsafe {
            (library.functions.comm_init_all)(comms.as_mut_ptr(), devices.len() as c_int, devices.as_ptr())
        };
        library.check("ncclCommInitAll", status)?;
        Ok(Nccl { library, comms, windows: Vec::new() })
    }

    /// Version and place of the library.
    pub(super) fn version(&self) -> String {
        format!("{} ({})", self.library.version(), self.library.path.display())
    }

    /// Allocates memory for every rank, and registers it as a symmetric window.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the library is older than 2.27, or makes no windows on this machine.
    pub(super) fn windows(&mut self, gpus: &[Gpu], bytes: usize) -> Result<Vec<Memory>> {
        let f = &self.library.functions;
        let (Some(alloc), Some(free)) = (f.mem_alloc, f.mem_free) else {
            return Err(self.no_windows("ncclMemAlloc"));
        };
        let mut memory = Vec::new();
        for gpu in gpus {
            gpu.bind()?;
            let mut pointer = std::ptr::null_mut();
            // SAFETY: the out-parameter outlives the call; the device is current.
            self.library.check("ncclMemAlloc", unsafe { alloc(&mut pointer, bytes) })?;
            let library = self.library.clone();
            let give_back: Free = Box::new(move |address| {
                // SAFETY: allocated above by the same library, which is still open.
                let _ = unsafe { free(address as *mut c_void) };
                drop(library);
            });
            // SAFETY: NCCL has just allocated so many bytes on this device.
            memory.push(unsafe { Memory::adopt(gpu, pointer as u64, bytes, give_back) });
        }
        let addresses: Vec<u64> = memory.iter().map(|memory| memory.place(0, bytes)).collect();
        // SAFETY: `GpuRanks` frees the memory after it has dropped this, and with it the windows.
        unsafe { self.register(&addresses, bytes) }?;
        Ok(memory)
    }

    /// Registers so many bytes at every rank's address.
    ///
    /// # Safety
    /// The memory comes from `ncclMemAlloc`, and is freed only after `self` is dropped.
    unsafe fn register(&mut self, addresses: &[u64], bytes: usize) -> Result<()> {
        let Some(register) = self.library.functions.window_register else {
            return Err(self.no_windows("ncclCommWindowRegister"));
        };
        // Where this thread does it for all ranks, each waits for the others until the group ends.
        self.group_start()?;
        let mut windows = vec![std::ptr::null_mut(); addresses.len()];
        let registered =
            self.comms.iter().zip(addresses).zip(&mut windows).try_for_each(|((&comm, &at), window)| {
                // SAFETY: the caller vouches for the memory; the out-parameter lives until the group's end.
                let status = unsafe { register(comm, at as *mut c_void, bytes, window, WIN_COLL_SYMMETRIC) };
                self.library.check("ncclCommWindowRegister", status)
            });
        // Ended in any case: every later call would only be collected.
        let ended = self.group_end();
        registered.and(ended)?;
        let none = windows.iter().any(|window| window.is_null());
        self.windows.extend(self.comms.iter().copied().zip(windows).filter(|(_, window)| !window.is_null()));
        match none {
            false => Ok(()),
            // What NCCL does where it cannot, rather than refuse; its calls would be those without windows.
            true => Err(Error::Unavailable {
                what: "window registration".into(),
                reason: format!(
                    "NCCL {} made no window; it needs GPUs that reach each other over NVLink or PCIe, and its cuMem \
                     allocator (NCCL_CUMEM_ENABLE); NCCL_DEBUG=INFO says more",
                    self.library.version()
                ),
            }),
        }
    }

    fn no_windows(&self, symbol: &str) -> Error {
        let library = &self.library;
        let reason = format!(
            "NCCL {} in {} has no {symbol}; 2.27 and later do, set NCCL_LIB to one",
            library.version(),
            library.path.display()
        );
        Error::Unavailable { what: "window registration".into(), reason }
    }

    /// The operator of a case. `factor` is the pre-multiplication's, as an element.
    pub(super) fn operators<T>(&self, dtype: DataType, op: ReduceOp, mut factor: T) -> Result<Operators<'_>> {
        let built_in = match op {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Max => 2,
            ReduceOp::Min => 3,
            ReduceOp::Avg => 4,
            ReduceOp::PreMulSum(_) => -1,
        };
        let mut made = Operators { nccl: self, ops: Vec::new(), made: built_in < 0 };
        for &comm in &self.comms {
            let mut op = built_in;
            if made.made {
                let scalar = (&raw mut factor).cast();
                // SAFETY: the scalar is an element of the type, read during the call.
                let status = unsafe {
                    (self.library.functions.op_create)(
                        &mut op,
                        scalar,
                        dtype as c_int,
                        SCALAR_HOST_IMMEDIATE,
                        comm,
                    )
                };
                self.library.check("ncclRedOpCreatePreMulSum", status)?;
            }
            made.ops.push(op);
        }
        Ok(made)
    }

    /// Begins a group: calls for several ranks from one thread.
    pub(super) fn group_start(&self) -> Result<()> {
        // SAFETY: takes nothing.
        self.library.check("ncclGroupStart", unsafe { (self.library.functions.group_start)() })
    }

    /// Ends a group, and enqueues its calls.
    pub(super) fn group_end(&self) -> Result<()> {
        // SAFETY: takes nothing.
        self.library.check("ncclGroupEnd", unsafe { (self.library.functions.group_end)() })
    }

    /// Enqueues one rank's call on the stream of its buffers: `send` and `recv` are memory and the byte where input and
    /// output begin in it.
    pub(super) fn enqueue(
        &self,
        case: &Case,
        rank: usize,
        operators: &Operators<'_>,
        send: (&Memory, usize),
        recv: (&Memory, usize),
    ) -> Result<()> {
        let f = &self.library.functions;
        let (comm, op, dtype) = (self.comms[rank], operators.ops[rank], case.dtype as c_int);
        let (ranks, size) = (self.comms.len(), case.dtype.size());
        let (input, output) = (case.input(rank, ranks).len() * size, case.output(rank, ranks).len() * size);
        let stream = recv.0.stream().cu_stream().cast();
        let send = send.0.place(send.1, input) as *const c_void;
        let recv = recv.0.place(recv.1, output) as *mut c_void;
        let count = case.count(ranks);
        // SAFETY: the handles are alive; the buffers are as long as the call says, and `Memory` is freed only after its
        // stream has passed the call.
        let (call, status) = unsafe {
            match case.collective {
                Collective::AllReduce => {
                    ("ncclAllReduce", (f.all_reduce)(send, recv, count, dtype, op, comm, stream))
                }
                Collective::ReduceScatter => {
                    ("ncclReduceScatter", (f.reduce_scatter)(send, recv, count, dtype, op, comm, stream))
                }
                Collective::AllGather => {
                    ("ncclAllGather", (f.all_gather)(send, recv, count, dtype, comm, stream))
                }
                Collective::Broadcast { root } => {
                    ("ncclBroadcast", (f.broadcast)(send, recv, count, dtype, root as c_int, comm, stream))
                }
                Collective::Reduce { root } => {
                    ("ncclReduce", (f.reduce)(send, recv, count, dtype, op, root as c_int, comm, stream))
                }
            }
        };
        self.library.check(call, status)
    }
}

impl Drop for Operators<'_> {
    fn drop(&mut self) {
        for (&op, &comm) in self.ops.iter().zip(&self.nccl.comms).filter(|_| self.made) {
            // SAFETY: made for this communicator; calls that use it have finished. A failure leaves nothing to do.
            let _ = unsafe { (self.nccl.library.functions.op_destroy)(op, comm) };
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let f = &self.library.functions;
        for &(comm, window) in &self.windows {
            if let Some(deregister) = f.window_deregister {
                // SAFETY: registered with this communicator, and not used any more.
                let _ = unsafe { deregister(comm, window) };
            }
        }
        // In a group: each waits for the others.
        let _ = self.group_start();
        for &comm in &self.comms {
            // SAFETY: made by `new` and destroyed once.
            let _ = unsafe { (f.comm_destroy)(comm) };
        }
        let _ = self.group_end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without NCCL says where it looked, and what to do.
    #[test]
    fn a_missing_library_is_an_error_that_says_what_to_do() {
        match Library::open() {
            Ok(library) => assert!(library.version().starts_with("2.")),
            Err(why) => assert!(why.to_string().contains("NCCL_LIB"), "{why}"),
        }
    }

    #[test]
    fn a_library_that_is_not_nccl_is_refused() {
        // SAFETY: the C library is loaded already.
        let Ok(library) = (unsafe { libloading::Library::new("libc.so.6") }) else { return };
        let why = Library::from(library, "libc.so.6".into()).err().expect("no NCCL").to_string();
        assert!(why.contains("NCCL is not available") && why.contains("libc.so.6"), "{why}");
    }

    mod fake {
        //! An NCCL that notes groups and registrations, and does nothing.
        use super::super::*;
        use std::cell::Cell;

        thread_local! {
            pub(super) static OPEN_GROUPS: Cell<i32> = const { Cell::new(0) };
            pub(super) static DEREGISTERED: Cell<usize> = const { Cell::new(0) };
        }

        extern "C" fn version(out: *mut c_int) -> c_int {
            // SAFETY: the caller gives a place for a number.
            unsafe { *out = 22_703 };
            0
        }
        extern "C" fn text(_: c_int) -> *const c_char {
            c"refused".as_ptr()
        }
        extern "C" fn init_all(_: *mut Comm, _: c_int, _: *const c_int) -> c_int {
            0
        }
        extern "C" fn destroy(_: Comm) -> c_int {
            0
        }
        extern "C" fn start() -> c_int {
            OPEN_GROUPS.set(OPEN_GROUPS.get() + 1);
            0
        }
        extern "C" fn end() -> c_int {
            OPEN_GROUPS.set(OPEN_GROUPS.get() - 1);
            0
        }
        extern "C" fn deregister(_: Comm, window: Window) -> c_int {
            assert!(!window.is_null());
            DEREGISTERED.set(DEREGISTERED.get() + 1);
            0
        }
        pub(super) extern "C" fn makes_a_window(
            _: Comm,
            at: *mut c_void,
            _: usize,
            window: *mut Window,
            flags: c_int,
        ) -> c_int {
            assert_eq!((OPEN_GROUPS.get(), flags), (1, 1), "in a group, and symmetric");
            // SAFETY: the caller gives a place for a pointer.
            unsafe { *window = at };
            0
        }
        pub(super) extern "C" fn makes_none(
            _: Comm,
            _: *mut c_void,
            _: usize,
            _: *mut Window,
            _: c_int,
        ) -> c_int {
            0
        }
        pub(super) extern "C" fn refuses(
            _: Comm,
            _: *mut c_void,
            _: usize,
            _: *mut Window,
            _: c_int,
        ) -> c_int {
            4
        }
        extern "C" fn reduction(
            _: *const c_void,
            _: *mut c_void,
            _: usize,
            _: c_int,
            _: c_int,
            _: Comm,
            _: Stream,
        ) -> c_int {
            0
        }
        extern "C" fn gather(
            _: *const c_void,
            _: *mut c_void,
            _: usize,
            _: c_int,
            _: Comm,
            _: Stream,
        ) -> c_int {
            0
        }
        extern "C" fn reduce(
            _: *const c_void,
            _: *mut c_void,
            _: usize,
            _: c_int,
            _: c_int,
            _: c_int,
            _: Comm,
            _: Stream,
        ) -> c_int {
            0
        }
        extern "C" fn create(_: *mut c_int, _: *mut c_void, _: c_int, _: c_int, _: Comm) -> c_int {
            0
        }
        extern "C" fn destroy_op(_: c_int, _: Comm) -> c_int {
            0
        }

        type Register = unsafe extern "C" fn(Comm, *mut c_void, usize, *mut Window, c_int) -> c_int;

        /// Two ranks.
        pub(super) fn nccl(window_register: Option<Register>) -> Option<Nccl> {
            // SAFETY: the C library is loaded already; nothing of it is called.
            let library = unsafe { libloading::Library::new("libc.so.6") }.ok()?;
            let functions = Functions {
                get_version: version,
                error_string: text,
                comm_init_all: init_all,
                comm_destroy: destroy,
                group_start: start,
                group_end: end,
                all_reduce: reduction,
                reduce_scatter: reduction,
                all_gather: gather,
                broadcast: reduction,
                reduce,
                op_create: create,
                op_destroy: destroy_op,
                mem_alloc: None,
                mem_free: None,
                window_register,
                window_deregister: Some(deregister),
            };
            let library = Library { functions, path: "fake.so".into(), version: 22_703, _library: library };
            Some(Nccl {
                library: Arc::new(library),
                comms: vec![std::ptr::null_mut(); 2],
                windows: Vec::new(),
            })
        }
    }

    #[test]
    fn windows_are_made_in_a_group_that_ends_and_given_back() {
        let register = |function: Option<_>| {
            let mut nccl = fake::nccl(function)?;
            // SAFETY: nothing is done with the addresses.
            let registered = unsafe { nccl.register(&[4096, 8192], 64) };
            assert_eq!(fake::OPEN_GROUPS.get(), 0);
            let known = nccl.windows.len();
            drop(nccl);
            assert_eq!(fake::DEREGISTERED.replace(0), known);
            Some((known, registered.map_err(|why| why.to_string()).err().unwrap_or_default()))
        };
        // No C library by this name: not Linux.
        let Some(good) = register(Some(fake::makes_a_window)) else { return };
        assert_eq!(good, (2, String::new()));
        for (function, expected) in [
            (
                Some(fake::makes_none as unsafe extern "C" fn(_, _, _, _, _) -> _),
                "NCCL 2.27.3 made no window",
            ),
            (Some(fake::refuses), "ncclCommWindowRegister of NCCL 2.27.3: refused (status 4)"),
            (None, "has no ncclCommWindowRegister; 2.27 and later do"),
        ] {
            let (known, message) = register(function).expect("as before");
            assert!(known == 0 && message.contains(expected), "{message}");
        }
        let mut old = fake::nccl(None).expect("as before");
        let message = old.windows(&[], 64).unwrap_err().to_string();
        assert!(message.contains("NCCL 2.27.3 in fake.so has no ncclMemAlloc"), "{message}");
    }
}
