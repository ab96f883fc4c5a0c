//! The links between all ranks of a communicator, shared by every schedule that runs on it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::link::Counters;
use crate::sync::{Mutex, lock};
use crate::transport::local::Memory;

/// One link: counters, and slots once something has been put into one.
pub(crate) struct Link {
    pub(crate) counters: Counters,
    slots: OnceLock<Memory>,
    bytes: usize,
}

impl Link {
    /// The memory of the slots. The producer asks first, so it is the one that allocates.
    pub(crate) fn slots(&self) -> *mut u8 {
        self.slots.get_or_init(|| Memory::new(self.bytes)).start()
    }
}

/// Which link: schedules that use the same pair of ranks in the same way share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Number among the links of the pair.
    pub(crate) index: u32,
    pub(crate) lane: u32,
    /// Bytes of all slots.
    pub(crate) bytes: usize,
}

/// All links made so far.
#[derive(Default)]
pub(crate) struct Fabric {
    links: Mutex<HashMap<LinkKey, Arc<Link>>>,
}

impl Fabric {
    /// The link of that key.
    pub(crate) fn link(&self, key: LinkKey) -> Arc<Link> {
        let make = || Link { counters: Counters::new(), slots: OnceLock::new(), bytes: key.bytes };
        lock(&self.links).entry(key).or_insert_with(|| Arc::new(make())).clone()
    }

    /// Bytes of the links that end at a rank.
    pub(crate) fn memory_used(&self, rank: usize) -> usize {
        let links = lock(&self.links);
        let ending = links.iter().filter(|(key, _)| key.to == rank);
        ending.map(|(_, l)| size_of::<Link>() + l.slots.get().map_or(0, Memory::len)).sum()
    }
}
