//! Engines run schedules: [`host`] on CPU ranks.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::schedule::Schedule;
use crate::types::{Collective, DataType, ReduceOp};

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod host;

/// A verified schedule together with how finely it is cut: what an engine runs.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// What to do.
    schedule: Arc<Schedule>,
    /// How many lanes run each worker.
    lanes: u32,
    /// Bytes of a tile: what a fold moves at once, and a slot holds. A multiple of 128.
    tile_bytes: usize,
    /// Slots of a link.
    depth: u32,
}

impl Launch {
    /// Verifies the schedule for FIFOs of `depth` slots.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] if the schedule does not pass, [`Error::InvalidValue`] for sizes no engine can run.
    pub(crate) fn new(schedule: Arc<Schedule>, lanes: u32, tile_bytes: usize, depth: u32) -> Result<Self> {
        if tile_bytes == 0 || !tile_bytes.is_multiple_of(crate::schedule::CHUNK_ALIGN) {
            let expected = format!("a positive multiple of {}", crate::schedule::CHUNK_ALIGN);
            return Err(Error::invalid_value("tile_bytes", tile_bytes.to_string(), expected));
        }
        if lanes == 0 || depth == 0 {
            return Err(Error::invalid_value("lanes, depth", format!("{lanes}, {depth}"), "at least 1 each"));
        }
        crate::schedule::verify(&schedule, depth)?;
        Ok(Launch { schedule, lanes, tile_bytes, depth })
    }

    /// The schedule.
    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// How many lanes run each worker.
    pub(crate) fn lanes(&self) -> u32 {
        self.lanes
    }

    /// Bytes of a tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }

    /// Slots of a link.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }
}

/// What a rank called: everything that must be the same on all ranks of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call {
    /// What is done with the message.
    pub(crate) collective: Collective,
    /// The type of its elements.
    pub(crate) dtype: DataType,
    /// How they are combined; the factor of a pre-multiplied sum is each rank's own. `Sum` where nothing is reduced.
    pub(crate) op: ReduceOp,
    /// Elements in one block.
    pub(crate) count: usize,
}

impl Call {
    /// The call as two words, equal exactly if the calls agree.
    pub(crate) fn words(&self) -> [u64; 2] {
        let collective = match self.collective {
            Collective::AllReduce => 0,
            Collective::ReduceScatter => 1,
            Collective::AllGather => 2,
            Collective::Broadcast { .. } => 3,
            Collective::Reduce { .. } => 4,
        };
        let op = match self.op {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Min => 2,
            ReduceOp::Max => 3,
            ReduceOp::Avg => 4,
            ReduceOp::PreMulSum(_) => 5,
        };
        let root = self.collective.root().unwrap_or(0) as u64;
        [collective | (self.dtype as u64) << 8 | op << 16 | root << 32, self.count as u64]
    }

    /// Puts words written by [`words`](Self::words) in words: `all_reduce f32 sum × 1024`.
    pub(crate) fn describe(words: [u64; 2]) -> String {
        let root = (words[0] >> 32) as usize;
        let byte = |shift: u32| (words[0] >> shift) as u8;
        let collective = match byte(0) {
            0 => Collective::AllReduce,
            1 => Collective::ReduceScatter,
            2 => Collective::AllGather,
            3 => Collective::Broadcast { root },
            _ => Collective::Reduce { root },
        };
        let dtype = DataType::ALL.get(byte(8) as usize).map_or("?", |t| t.name());
        let op = ["sum", "prod", "min", "max", "avg", "premulsum"].get(byte(16) as usize).unwrap_or(&"?");
        let op = if collective.reduces() { format!(" {op}") } else { String::new() };
        format!("{collective} {dtype}{op} × {}", words[1])
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Call::describe(self.words()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Scalar;

    #[test]
    fn a_call_survives_as_words() {
        let op = ReduceOp::PreMulSum(Scalar::Float(0.5));
        let call = Call {
            collective: Collective::Reduce { root: 127 },
            dtype: DataType::F8E5M2,
            op,
            count: 1 << 40,
        };
        assert_eq!(call.to_string(), format!("reduce from root 127 f8e5m2 premulsum × {}", 1u64 << 40));
        let gather =
            Call { collective: Collective::AllGather, dtype: DataType::I8, op: ReduceOp::Sum, count: 3 };
        assert_eq!(gather.to_string(), "all_gather i8 × 3");
    }
}
