//! The CUDA engine: lowers schedules to a small device program and launches it, one thread block a worker and lane.
//!
//! `kernels/abi.h` is the only thing shared with the kernels; [`abi`] is generated from it.

#[allow(missing_docs, non_camel_case_types, unreachable_pub, clippy::undocumented_unsafe_blocks, dead_code)]
pub(crate) mod abi;
pub(crate) mod copies;
pub(crate) mod driver;
pub(crate) mod exchange;
pub(crate) mod kernels;
pub(crate) mod lower;

use std::sync::Arc;

use self::lower::{Numbering, Program};
use crate::engine::Call;
use crate::error::{Error, Result};
use crate::schedule::{self, ChunkId, Schedule};
use crate::types::{Collective, DataType, ReduceOp};

/// A verified schedule lowered for every rank.
#[derive(Debug)]
pub(crate) struct Prepared {
    schedule: Arc<Schedule>,
    numbering: Numbering,
    programs: Vec<Program>,
    /// Slots that every link needs.
    min_depth: u32,
}

/// How a prepared schedule is cut for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Lanes of each worker.
    pub(crate) lanes: u32,
    /// Bytes of a tile, a multiple of a line.
    pub(crate) tile_bytes: u32,
    /// Slots of a link whose consumer has not lent its output.
    pub(crate) depth: u32,
    /// Slots of a link whose consumer has.
    pub(crate) depth_lent: u32,
}

/// Most slots of a link; more help nobody.
const MAX_DEPTH: u32 = 16;

impl Prepared {
    /// Verifies and lowers.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] or, if the device program cannot hold it, [`Error::NoPlan`].
    pub(crate) fn new(schedule: Arc<Schedule>) -> Result<Self> {
        // The fewest slots are what is proven: more only take waits away, and the proof of in-place safety holds for any
        // number. A ring needs two.
        let min_depth = if schedule::verify(&schedule, 1).is_ok() { 1 } else { 2 };
        schedule::verify(&schedule, min_depth)?;
        let numbering = Numbering::new(&schedule);
        let programs =
            (0..schedule.ranks).map(|r| lower::lower(&schedule, &numbering, r)).collect::<Result<_>>()?;
        Ok(Prepared { schedule, numbering, programs, min_depth })
    }

    /// Workers of the rank that has most.
    pub(crate) fn workers(&self) -> u32 {
        self.programs.iter().map(|p| p.workers).max().unwrap_or(1).max(1)
    }

    /// Workers of one rank.
    pub(crate) fn workers_of(&self, rank: usize) -> u32 {
        self.programs[rank].workers
    }

    /// What it carries out.
    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The least tile for a message of `bytes`: an operation's slots on one link must fit the low bits of its counter.
    pub(crate) fn least_tile(&self, bytes: usize, lanes: u32) -> u32 {
        let folds = self.schedule.workers.iter().flatten().map(|w| w.folds.len()).max().unwrap_or(1);
        let tiles = 1usize << (abi::RL_SLOT_BITS - 1);
        let least = (bytes as u128 * folds as u128 / u128::from(lanes) / tiles as u128) as usize;
        least.next_multiple_of(abi::RL_LINE as usize).min(1 << 24) as u32
    }

    /// Fits lanes and tile to the memory of a region: lanes are dropped, then the tile is halved, until every link has
    /// the slots it needs. All ranks get the same.
    pub(crate) fn cut(&self, lanes: u32, tile_bytes: u32, fifo_bytes: usize) -> Cut {
        let line = abi::RL_LINE;
        let most_lanes = (abi::RL_REGION_LINKS / self.numbering.links.max(1)).max(1);
        let mut lanes = lanes.clamp(1, most_lanes);
        let mut tile_bytes = (tile_bytes / line * line).max(line);
        let slots = |links: u32, lanes: u32, tile: u32| {
            let slot = u64::from(tile + line);
            (fifo_bytes as u64 / (u64::from(links.max(1)) * u64::from(lanes) * slot)).min(MAX_DEPTH.into())
                as u32
        };
        while slots(self.numbering.links, lanes, tile_bytes) < self.min_depth {
            if tile_bytes > 16 * 1024 {
                tile_bytes = tile_bytes / 2 / line * line;
            } else if lanes > 1 {
                lanes /= 2;
            } else if tile_bytes > line {
                tile_bytes = (tile_bytes / 2 / line * line).max(line);
            } else {
                break;
            }
        }
        Cut {
            lanes,
            tile_bytes,
            depth: slots(self.numbering.links, lanes, tile_bytes),
            depth_lent: slots(self.numbering.fifo_links, lanes, tile_bytes),
        }
    }

    /// The kernel parameter of one rank's part of an operation, without addresses of the communicator.
    pub(crate) fn operation(&self, rank: usize, call: &Call, cut: Cut, buffers: Buffers) -> Box<abi::rl_op> {
        let program = &self.programs[rank];
        let ranks = self.schedule.ranks;
        let size = call.dtype.size();
        let (factor, mut flags) = scale(call.op, call.dtype);
        if call.collective.reduces() && call.op == ReduceOp::Avg {
            flags |= abi::RL_OP_DIVIDE;
        }
        if !call.collective.reduces() {
            flags = 0;
        }
        if buffers.lent {
            flags |= abi::RL_OP_LENT;
        }
        // Message coordinates: an all_gather's input is block `rank`, a reduce_scatter's output too.
        let block = (rank * call.count * size) as u64;
        let (input, output) = match call.collective {
            Collective::AllGather => (buffers.input.wrapping_sub(block), buffers.output),
            Collective::ReduceScatter => (buffers.input, buffers.output.wrapping_sub(block)),
            _ => (buffers.input, buffers.output),
        };
        let mut op = Box::<abi::rl_op>::default();
        op.input = input;
        op.output = output;
        op.call = call.words();
        op.digest = digest(op.call);
        op.scale = factor;
        op.rank = rank as u32;
        op.ranks = ranks as u32;
        op.workers = program.workers;
        op.lanes = cut.lanes;
        op.tile = cut.tile_bytes / size as u32;
        op.slot = cut.tile_bytes + abi::RL_LINE;
        op.depth = cut.depth;
        op.depth_lent = cut.depth_lent;
        op.flags = flags;
        op.first_word = program.first_word;
        op.words = program.words;
        let chunks = self.schedule.chunks.len();
        for (i, bound) in op.bounds[..chunks].iter_mut().enumerate() {
            *bound = self.schedule.chunk_range(ChunkId(i as u32), call.count, size).start as u64;
        }
        op.bounds[chunks] = (call.collective.blocks(ranks) * call.count) as u64;
        op
    }

    /// Blocks that one rank launches.
    pub(crate) fn blocks(&self, rank: usize, cut: Cut) -> u32 {
        self.programs[rank].workers * cut.lanes
    }
}

/// A rank's buffers in one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    /// Address of the rank's input; 0 where it has none.
    pub(crate) input: u64,
    /// Address of the rank's output; 0 where it has none.
    pub(crate) output: u64,
    /// Whether peers may write the output.
    pub(crate) lent: bool,
}

/// Mixes a call's words into 32 bits (the finalizer of SplitMix64 over both): different calls differ but for one in four
/// billion.
fn digest(call: [u64; 2]) -> u32 {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    mix(call[0].wrapping_add(mix(call[1].wrapping_add(0x9e37_79b9_7f4a_7c15)))) as u32
}

/// The factor's bits in the accumulator's type, and the flag that says there is one.
fn scale(op: ReduceOp, dtype: DataType) -> (u64, u32) {
    let ReduceOp::PreMulSum(factor) = op else { return (0, 0) };
    let bits = match dtype {
        DataType::F64 => factor.as_f64().to_bits(),
        t if t.is_float() => u64::from((factor.as_f64() as f32).to_bits()),
        // Checked with the call's other arguments.
        _ => factor.as_bits().unwrap_or(1),
    };
    (bits, abi::RL_OP_SCALE)
}

/// Whether a GPU can be used: the driver is there, this build has kernels, a device answers.
///
/// # Errors
/// [`Error::Unavailable`] saying which of these is missing and what to do.
pub(crate) fn available() -> Result<usize> {
    let missing = |reason: String| Error::Unavailable { what: "the CUDA engine".into(), reason };
    if !driver::present() {
        return Err(missing("there is no CUDA driver (libcuda.so.1) on this machine".into()));
    }
    kernels::embedded()?;
    match cudarc::driver::CudaContext::device_count() {
        Ok(0) => Err(missing("the CUDA driver finds no device (is CUDA_VISIBLE_DEVICES empty?)".into())),
        Ok(n) => Ok(n as usize),
        Err(e) => Err(missing(format!("the CUDA driver does not start: {:?}", e.0))),
    }
}
