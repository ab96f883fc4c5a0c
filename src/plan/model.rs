//! What a machine's operations cost beside the bytes on its wires.

use serde::{Deserialize, Serialize};

/// Constants that predictions are made of. Those that are built in were fitted to two H200s; older GPUs' blocks are slower.
///
/// Times are in microseconds and rates in GB/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CostModel {
    /// From the launch of a program in a graph to its first byte, and from its last byte to its end.
    pub bulk_us: f64,
    /// What a fold costs for each tile beside the bytes: waiting for it to be there, a fence, a counter.
    pub fold_us: f64,
    /// One block reads or writes so fast.
    pub lane_gbs: f64,
    /// What a wire loses to blocks that wait, for each part that one lane's work is of the wire's.
    pub lane_loss: f64,
    /// Bytes of a chunk for which another lane pays.
    pub bytes_a_lane: usize,
    /// An exchange of packets of 16 bytes in a graph, without bytes and the way.
    pub packet16_us: f64,
    /// An exchange of packets of 128 bytes.
    pub packet128_us: f64,
    /// What an exchange of more than a few words costs more.
    pub packet_fill_us: f64,
    /// The part of a wire that packets reach.
    pub packet_share: f64,
}

impl CostModel {
    /// Built-in constants for GPUs of a compute capability, 90 for 9.0.
    pub fn of(sm: Option<u32>) -> CostModel {
        CostModel {
            bulk_us: 6.0,
            fold_us: 0.8,
            lane_gbs: if sm.is_none_or(|sm| sm >= 90) { 40.0 } else { 25.0 },
            lane_loss: 0.18,
            bytes_a_lane: 32 << 10,
            packet16_us: 1.45,
            packet128_us: 1.6,
            packet_fill_us: 0.45,
            packet_share: 0.72,
        }
    }
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel::of(None)
    }
}
