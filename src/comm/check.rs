//! Checks of a call's arguments, before anything starts. The same for every engine.

use crate::error::{Error, Result};
use crate::types::{Collective, DataType, ReduceOp};

/// Who calls what: what an error needs to say.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// The method.
    pub(crate) call: &'static str,
    /// The calling rank.
    pub(crate) rank: usize,
    /// The number of ranks.
    pub(crate) ranks: usize,
}

impl Caller {
    fn refuse(&self, argument: &'static str, value: impl ToString, expected: impl ToString) -> Error {
        Error::InvalidArgument {
            call: self.call,
            rank: self.rank,
            argument,
            value: value.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Checks the root, and that the operator goes with the type.
    pub(crate) fn operation(&self, collective: Collective, dtype: DataType, op: ReduceOp) -> Result<()> {
        if let Some(root) = collective.root().filter(|&r| r >= self.ranks) {
            return Err(self.refuse("root", root, format_args!("a rank below {}", self.ranks)));
        }
        match op.check(dtype) {
            Err(Error::InvalidValue { value, expected, .. }) => Err(self.refuse("op", value, expected)),
            other => other,
        }
    }

    /// Checks the lengths of separate buffers and returns the number of elements in a block. `None` is a buffer that was
    /// left out, or that this rank does not use.
    pub(crate) fn separate(
        &self,
        collective: Collective,
        send: Option<usize>,
        recv: Option<usize>,
    ) -> Result<usize> {
        let n = self.ranks;
        let (send, recv) = match collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => {
                (self.given("send", send)?, self.given("recv", recv)?)
            }
            Collective::Broadcast { root } if root == self.rank => {
                (self.given("send", send)?, self.given("recv", recv)?)
            }
            Collective::Broadcast { .. } => return self.given("recv", recv),
            Collective::Reduce { root } if root == self.rank => {
                (self.given("send", send)?, self.given("recv", recv)?)
            }
            Collective::Reduce { .. } => return self.given("send", send),
        };
        let (argument, found, expected, count) = match collective {
            Collective::ReduceScatter => ("send", send, recv.checked_mul(n), recv),
            Collective::AllGather => ("recv", recv, send.checked_mul(n), send),
            _ => ("recv", recv, Some(send), send),
        };
        if Some(found) == expected {
            return Ok(count);
        }
        let expected = match collective {
            Collective::ReduceScatter => format!("{n} ranks times recv's {recv} elements"),
            Collective::AllGather => format!("{n} ranks times send's {send} elements"),
            _ => format!("{send} elements, as many as send"),
        };
        Err(self.refuse(argument, format_args!("{found} elements long"), expected))
    }

    /// Checks the length of the only buffer and returns the number of elements in a block.
    pub(crate) fn in_place(&self, collective: Collective, buffer: usize) -> Result<usize> {
        let blocks = collective.blocks(self.ranks);
        if !buffer.is_multiple_of(blocks) {
            let value = format_args!("{buffer} elements long").to_string();
            return Err(self.refuse("buffer", value, format_args!("a multiple of {blocks} ranks")));
        }
        Ok(buffer / blocks)
    }

    /// Checks device buffers that borrowing cannot: they may share memory only as an in-place call does. `bytes` is the
    /// size of a block; an address of 0 is a buffer that is not used.
    #[cfg(feature = "cuda")]
    pub(crate) fn overlap(&self, collective: Collective, bytes: usize, send: u64, recv: u64) -> Result<()> {
        if send == 0 || recv == 0 {
            return Ok(());
        }
        let (bytes, block) = (bytes as u64, (self.rank * bytes) as u64);
        let all = bytes * self.ranks as u64;
        let (send_len, recv_len, in_place) = match collective {
            Collective::AllGather => (bytes, all, send == recv + block),
            Collective::ReduceScatter => (all, bytes, recv == send + block),
            _ => (bytes, bytes, send == recv),
        };
        if in_place || send + send_len <= recv || recv + recv_len <= send {
            return Ok(());
        }
        let value = format!("{send_len} bytes at {send:#x}, which overlap recv's {recv_len} at {recv:#x}");
        Err(self.refuse("send", value, "memory apart from recv, or exactly where an in-place call has it"))
    }

    fn given(&self, argument: &'static str, len: Option<usize>) -> Result<usize> {
        len.ok_or_else(|| self.refuse(argument, "None", "a buffer on the root"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: Caller = Caller { call: "all_gather", rank: 1, ranks: 4 };

    #[test]
    fn errors_name_the_call_the_rank_and_both_lengths() {
        let e = CALLER.separate(Collective::AllGather, Some(3), Some(13)).unwrap_err().to_string();
        assert_eq!(
            e,
            "all_gather on rank 1: recv is 13 elements long, expected 4 ranks times send's 3 elements"
        );
        let e = CALLER.in_place(Collective::AllGather, 13).unwrap_err().to_string();
        assert!(e.contains("buffer is 13 elements long, expected a multiple of 4 ranks"), "{e}");
    }

    #[test]
    fn only_the_root_must_give_what_only_the_root_uses() {
        let (here, there) = (Collective::Broadcast { root: 1 }, Collective::Broadcast { root: 2 });
        assert!(CALLER.separate(here, None, Some(1)).is_err());
        assert_eq!(CALLER.separate(there, None, Some(7)), Ok(7));
        let (here, there) = (Collective::Reduce { root: 1 }, Collective::Reduce { root: 2 });
        assert!(CALLER.separate(here, Some(1), None).is_err());
        assert_eq!(CALLER.separate(there, Some(7), None), Ok(7));
        assert!(
            CALLER.operation(Collective::Reduce { root: 4 }, DataType::I8, ReduceOp::Sum).is_err(),
            "root 4 of 4"
        );
    }

    #[test]
    fn lengths_that_overflow_are_refused() {
        assert!(CALLER.separate(Collective::ReduceScatter, Some(0), Some(usize::MAX / 2 + 1)).is_err());
    }
}
