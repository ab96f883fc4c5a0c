//! Exchanges: the collectives of one step, for small messages, done with packets.
//!
//! An exchange is the one-step member of its family of schedules: `one_shot` for all_reduce, `direct` for all_gather and
//! reduce_scatter, and for broadcast and reduce the schedule in which the root's peers are all one hop away. It has a
//! kernel of its own because at these sizes a program's few steps would cost more than the data.

use super::{abi, digest, scale};
use crate::engine::Call;
use crate::schedule::Encoding;
use crate::types::{Collective, ReduceOp};

/// The kernel parameter of one rank's part, without addresses of the communicator, and without the box.
pub(crate) fn operation(rank: usize, ranks: usize, call: &Call, input: u64, output: u64) -> abi::rl_exchange {
    let mut op = abi::rl_exchange {
        input,
        output,
        call: call.words(),
        digest: digest(call.words()),
        count: call.count as u64,
        rank: rank as u32,
        ranks: ranks as u32,
        ..Default::default()
    };
    let others = ((1u32 << ranks) - 1) & !(1 << rank);
    (op.sends, op.receives) = (others, others);
    match call.collective {
        Collective::AllReduce => {}
        Collective::ReduceScatter => op.flags |= abi::RL_EXCHANGE_BLOCKS,
        Collective::AllGather => op.flags |= abi::RL_EXCHANGE_GATHER,
        Collective::Broadcast { root } => {
            op.flags |= abi::RL_EXCHANGE_COPY;
            (op.sends, op.receives) = if rank == root { (others, 0) } else { (0, 1 << root) };
        }
        Collective::Reduce { root } => {
            (op.sends, op.receives) = if rank == root { (0, others) } else { (1 << root, 0) };
            if rank != root {
                op.flags |= abi::RL_EXCHANGE_SILENT;
            }
        }
    }
    if call.collective.reduces() {
        let (factor, flag) = scale(call.op, call.dtype);
        op.scale = factor;
        op.flags |= flag;
        if call.op == ReduceOp::Avg {
            op.flags |= abi::RL_OP_DIVIDE;
        }
    }
    op
}

/// Blocks that move a block of `bytes` at full speed, at most `most`.
pub(crate) fn blocks(encoding: Encoding, bytes: usize, most: u32) -> u32 {
    let threads = abi::RL_EXCHANGE_THREADS as usize;
    let per_block = match encoding {
        Encoding::Packet128 => threads / 8 * abi::RL_LINE_DATA as usize,
        _ => threads * 8,
    };
    bytes.div_ceil(per_block).clamp(1, most.max(1) as usize) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, Scalar};

    fn exchange(collective: Collective, rank: usize, op: ReduceOp) -> abi::rl_exchange {
        operation(rank, 4, &Call { collective, dtype: DataType::F16, op, count: 10 }, 64, 128)
    }

    #[test]
    fn everybody_knows_who_sends_to_whom() {
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root: 2 },
            Collective::Reduce { root: 3 },
        ] {
            for a in 0..4 {
                for b in 0..4 {
                    let sends = exchange(collective, a, ReduceOp::Sum).sends >> b & 1;
                    let receives = exchange(collective, b, ReduceOp::Sum).receives >> a & 1;
                    assert_eq!(sends, receives, "{collective} from {a} to {b}");
                }
            }
        }
    }

    #[test]
    fn only_reductions_scale() {
        let factor = ReduceOp::PreMulSum(Scalar::Float(0.5));
        let reduce = exchange(Collective::AllReduce, 0, factor);
        assert_eq!(
            (reduce.flags & abi::RL_OP_SCALE, reduce.scale),
            (abi::RL_OP_SCALE, 0.5f32.to_bits().into())
        );
        assert_eq!(exchange(Collective::AllGather, 0, factor).flags & abi::RL_OP_SCALE, 0);
        assert_ne!(exchange(Collective::ReduceScatter, 0, ReduceOp::Avg).flags & abi::RL_OP_DIVIDE, 0);
    }

    #[test]
    fn blocks_follow_the_bytes() {
        assert_eq!(blocks(Encoding::Packet16, 8, 64), 1);
        assert_eq!(blocks(Encoding::Packet16, 8192, 64), 2);
        assert_eq!(blocks(Encoding::Packet128, 1 << 20, 64), 64);
    }
}
