//! The transport between CPU ranks of one process: plain memory.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The name of this transport in the list of channels.
pub(crate) const NAME: &str = "local";

/// Memory is aligned to pages, so that no two links share one.
const ALIGN: usize = 4096;

/// A zeroed piece of memory that several threads use by address. It never moves.
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Memory` only owns an allocation; access goes through raw pointers, whose users say why they do not race.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` gives out nothing but the address and the length.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates at least one byte.
    pub(crate) fn new(bytes: usize) -> Self {
        let layout =
            Layout::from_size_align(bytes.max(1), ALIGN).expect("link memory fits the address space");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Memory { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// The address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
