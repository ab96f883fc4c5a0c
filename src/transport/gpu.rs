//! Transports between ranks on GPUs: how a pair is reached, and the memory of its links.
//!
//! Each rank keeps one *region* for each peer (see `kernels/abi.h`): counters and FIFO slots that the peer writes. A
//! transport decides where that memory is: in the consumer's device memory for `P2P` and for ranks on one device, in
//! pinned host memory for `SHM`.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use crate::engine::cuda::abi;
use crate::engine::cuda::copies::{self, Words};
use crate::engine::cuda::driver::{self, DeviceMemory, HostMemory, Who};
use crate::error::{Error, Result};
use crate::topology::PathType;

/// One rank's place.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) who: Who,
    pub(crate) context: Arc<CudaContext>,
    /// `0000:06:00.0`.
    pub(crate) bus_id: String,
}

impl Endpoint {
    /// Whether both ranks run on one device.
    fn same_device(&self, other: &Endpoint) -> bool {
        self.bus_id == other.bus_id
    }

    /// The bus number that NCCL prints after a rank: `06` of `0000:06:00.0`, or the slot where every bus is 0.
    pub(crate) fn short_bus(&self) -> &str {
        let part = |i| self.bus_id.split([':', '.']).nth(i).unwrap_or("?");
        if part(1) == "00" { part(2) } else { part(1) }
    }
}

/// How data gets from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Both ranks are on one device.
    Local,
    /// Stores into the peer's memory over NVLink.
    P2pNvlink,
    /// Stores into the peer's memory over PCIe.
    P2pPci,
    /// Through pinned host memory.
    Shm,
}

impl Transport {
    /// Whether the peer's device memory can be written directly.
    pub(crate) fn reaches_memory(self) -> bool {
        self != Transport::Shm
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Local => "local",
            Transport::P2pNvlink => "P2P/NVL",
            Transport::P2pPci => "P2P/PCI",
            Transport::Shm => "SHM",
        })
    }
}

/// Which transports may be used.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    /// Not `NCCL_P2P_DISABLE`.
    pub(crate) p2p: bool,
    /// Not `NCCL_SHM_DISABLE`.
    pub(crate) shm: bool,
    /// The path from each rank to each, and the farthest type of path for P2P (`NCCL_P2P_LEVEL`).
    pub(crate) level: Option<(Vec<Vec<PathType>>, PathType)>,
}

impl Allowed {
    /// Why a rank may not write another's memory even if the devices can.
    fn forbids_p2p(&self, from: usize, to: usize) -> Option<String> {
        if !self.p2p {
            return Some("P2P is switched off (NCCL_P2P_DISABLE)".into());
        }
        let (paths, most) = self.level.as_ref()?;
        let path = paths[from][to];
        (path > *most).then(|| format!("their path is {path}, beyond NCCL_P2P_LEVEL={most}"))
    }
}

/// Chooses how `from` reaches `to`.
///
/// # Errors
/// [`Error::NoTransport`] saying why each way is closed.
pub(crate) fn choose(from: &Endpoint, to: &Endpoint, allowed: &Allowed) -> Result<Transport> {
    if from.same_device(to) {
        return Ok(Transport::Local);
    }
    let who = from.who;
    let can = driver::can_access_peer(who, &from.context, &to.context)?;
    let forbidden = allowed.forbids_p2p(who.rank, to.who.rank);
    if can && forbidden.is_none() {
        let nvlink = driver::native_atomics(who, &from.context, &to.context)?;
        return Ok(if nvlink { Transport::P2pNvlink } else { Transport::P2pPci });
    }
    if allowed.shm {
        return Ok(Transport::Shm);
    }
    let p2p = forbidden.filter(|_| can).unwrap_or_else(|| "the devices have no peer access".into());
    Err(Error::NoTransport {
        from: who.rank,
        to: to.who.rank,
        reason: format!("{p2p} and SHM is switched off (NCCL_SHM_DISABLE); allow one of them"),
    })
}

/// Memory of one region.
#[derive(Debug)]
enum Memory {
    Device(DeviceMemory),
    Host(HostMemory),
}

impl Memory {
    fn write<T: Copy>(&self, who: Who, byte: usize, value: &T) -> Result<()> {
        match self {
            Memory::Device(m) => m.write(who, byte, value),
            Memory::Host(m) => {
                m.write(byte, value);
                Ok(())
            }
        }
    }

    fn fill(&self, who: Who, byte: usize, word: u32, words: usize) -> Result<()> {
        match self {
            Memory::Device(m) => m.fill(who, byte, word, words),
            Memory::Host(m) => {
                m.fill(byte, word, words);
                Ok(())
            }
        }
    }
}

/// How a region is divided; the same for all of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of one packet128 box.
    pub(crate) box128: usize,
    /// Bytes of FIFO slots.
    pub(crate) fifo: usize,
}

impl Layout {
    /// What a communicator of so many ranks gets: at most 32 MiB a rank for two ranks, 64 MiB for eight.
    pub(crate) fn for_ranks(ranks: usize) -> Self {
        const MIB: usize = 1 << 20;
        let peers = (ranks - 1).max(1);
        let box_data = if ranks == 2 { 4 * MIB } else { MIB / 2 };
        let box128 = box_data.div_ceil(abi::RL_LINE_DATA as usize) * abi::RL_LINE as usize;
        Layout { box128, fifo: (20 * MIB).min(44 * MIB / peers) }
    }

    /// Bytes from a region's beginning to its packet16 boxes.
    pub(crate) fn boxes16(&self) -> usize {
        abi::RL_REGION_BOXES as usize
    }

    /// Bytes from a region's beginning to its packet128 boxes.
    pub(crate) fn boxes128(&self) -> usize {
        self.boxes16() + 2 * abi::RL_BOX16_BYTES as usize
    }

    /// Bytes from a region's beginning to its FIFO slots.
    pub(crate) fn slots(&self) -> usize {
        self.boxes128() + 2 * self.box128
    }

    /// Bytes from a region's beginning to the words that order copies.
    pub(crate) fn words(&self) -> usize {
        self.slots() + self.fifo
    }

    /// Bytes of a region.
    fn bytes(&self) -> usize {
        self.words() + copies::WORD_BYTES
    }

    /// Data bytes that fit in a packet16 box.
    pub(crate) fn capacity16(&self) -> usize {
        abi::RL_BOX16_BYTES as usize / 2
    }

    /// Data bytes that fit in a packet128 box.
    pub(crate) fn capacity128(&self) -> usize {
        self.box128 / abi::RL_LINE as usize * abi::RL_LINE_DATA as usize
    }
}

/// All regions of a communicator, and the addresses each rank knows them by.
#[derive(Debug)]
pub(crate) struct Wiring {
    transports: Vec<Vec<Transport>>,
    /// `regions[owner][peer]`; none for the owner itself.
    regions: Vec<Vec<Option<Memory>>>,
    layout: Layout,
}

impl Wiring {
    /// Chooses transports, enables peer access, allocates every region and makes it look as it does after `operations`
    /// operations: headers say so, and no box holds a flag that could be taken for a coming one.
    pub(crate) fn new(
        ranks: &[Endpoint],
        allowed: &Allowed,
        layout: Layout,
        operations: u64,
    ) -> Result<Self> {
        let wiring = Self::allocate(ranks, allowed, layout)?;
        let header =
            abi::rl_header { ticket: operations << 32, output: operations << 48, ..Default::default() };
        for (owner, row) in ranks.iter().zip(&wiring.regions) {
            for memory in row.iter().flatten() {
                memory.write(owner.who, 0, &header)?;
                // Flags in the box of even operations are even.
                memory.fill(owner.who, layout.boxes16(), 1, abi::RL_BOX16_BYTES as usize / 4)?;
            }
        }
        Ok(wiring)
    }

    fn allocate(ranks: &[Endpoint], allowed: &Allowed, layout: Layout) -> Result<Self> {
        let n = ranks.len();
        let mut transports = vec![vec![Transport::Local; n]; n];
        for (i, from) in ranks.iter().enumerate() {
            for (j, to) in ranks.iter().enumerate().filter(|&(j, _)| j != i) {
                transports[i][j] = choose(from, to, allowed)?;
            }
        }
        let mut enabled: Vec<(&str, &str)> = Vec::new();
        let mut regions = Vec::with_capacity(n);
        for (i, owner) in ranks.iter().enumerate() {
            let mut row = Vec::with_capacity(n);
            for (j, peer) in ranks.iter().enumerate() {
                if i == j {
                    row.push(None);
                    continue;
                }
                let bytes = layout.bytes();
                // Both directions must agree: the peer writes this region, and reads nothing.
                row.push(Some(match transports[j][i] {
                    Transport::Shm => Memory::Host(HostMemory::zeroed(owner.who, &owner.context, bytes)?),
                    transport => {
                        let pair = (peer.bus_id.as_str(), owner.bus_id.as_str());
                        if transport != Transport::Local && !enabled.contains(&pair) {
                            driver::enable_peer(peer.who, &peer.context, &owner.context)?;
                            enabled.push(pair);
                        }
                        Memory::Device(DeviceMemory::zeroed(owner.who, &owner.context, bytes)?)
                    }
                }));
            }
            regions.push(row);
        }
        Ok(Wiring { transports, regions, layout })
    }

    /// How `from` reaches `to`.
    pub(crate) fn transport(&self, from: usize, to: usize) -> Transport {
        self.transports[from][to]
    }

    /// The addresses of both regions of each pair, as a rank's kernels use them.
    pub(crate) fn peers(&self, rank: usize) -> [abi::rl_peer; abi::RL_MAX_RANKS as usize] {
        let mut peers = [abi::rl_peer::default(); abi::RL_MAX_RANKS as usize];
        for (peer, pair) in peers.iter_mut().enumerate().take(self.regions.len()) {
            *pair = abi::rl_peer { local: self.address(rank, peer), remote: self.address(peer, rank) };
        }
        peers
    }

    /// The words of a rank and each peer that order copies.
    pub(crate) fn words(&self, rank: usize) -> Vec<Words> {
        let at = |owner, peer| self.address(owner, peer) + self.layout.words() as u64;
        (0..self.regions.len()).map(|peer| Words { own: at(rank, peer), peer: at(peer, rank) }).collect()
    }

    fn address(&self, owner: usize, peer: usize) -> u64 {
        match &self.regions[owner][peer] {
            None => 0,
            Some(Memory::Device(m)) => m.address(),
            Some(Memory::Host(m)) => m.address(),
        }
    }

    /// How regions are divided.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether every pair's path keeps 128-byte stores whole.
    pub(crate) fn keeps_lines(&self) -> bool {
        let n = self.transports.len();
        (0..n).all(|i| {
            (0..n).all(|j| i == j || matches!(self.transports[i][j], Transport::Local | Transport::P2pNvlink))
        })
    }

    /// Whether any two devices write each other's memory, or there is only one.
    pub(crate) fn maps_any_peer(&self) -> bool {
        let mut between = self.transports.iter().flatten().filter(|t| **t != Transport::Local).peekable();
        between.peek().is_none() || between.any(|t| t.reaches_memory())
    }

    /// Bytes of link memory that a rank owns.
    pub(crate) fn bytes(&self, rank: usize) -> usize {
        let size = |m: &Memory| match m {
            Memory::Device(m) => m.bytes(),
            Memory::Host(m) => m.bytes(),
        };
        self.regions[rank].iter().flatten().map(size).sum()
    }

    /// Whether every peer can write this rank's device memory.
    pub(crate) fn reachable_by_all(&self, rank: usize) -> bool {
        (0..self.transports.len()).filter(|&p| p != rank).all(|p| self.transports[p][rank].reaches_memory())
    }
}
