//! Verification: proves that a schedule computes its collective, ends, and never spoils a buffer.
//!
//! No schedule runs unverified. [`verify`] executes the schedule with *sets of ranks* in the place of numbers, which
//! decides for every message length, tile size, operator and number of lanes at once. It has four parts, each a
//! module that says why what it checks is enough:
//!
//! 1. `wiring`: the data are well formed. Chunks cover the message; each link has one worker at each end, and both
//!    ends use it for the same chunks, in the same order and in the same way; buffers are touched only where the
//!    rank has them.
//! 2. `progress`: run on FIFOs of the real depth, every worker reaches its end.
//! 3. `results`: every output holds every contribution once, is written once, and `finish` marks the folds that
//!    complete a reduction.
//! 4. `in_place`: the same holds if the output buffer is the input buffer, and if outputs are lent to peers.
//!
//! One thing is left to the engines, and they guarantee it with the header that opens each link: a peer writes into
//! a lent output only after its owner has entered the operation. (The verifier's clock starts there.)

mod in_place;
mod progress;
mod results;
mod wiring;

use super::Schedule;
use crate::error::{Error, Result};
pub(super) use wiring::{FoldIndex, Wiring};

/// Proves a schedule right for links of `depth` slots; see the [module documentation](self).
///
/// A schedule that is right at some depth is right at every greater one. Not every schedule is right at depth 1: a
/// ring in which every rank has filled its only slot cannot turn.
///
/// ```
/// use ringleader::{Collective, schedule};
///
/// let request = schedule::Request::new(Collective::AllReduce, 4, 1);
/// let mut ring = schedule::build("ring", &request)?;
/// schedule::verify(&ring, 2)?;
///
/// ring.workers[2][0].folds.pop();
/// let message = schedule::verify(&ring, 2).unwrap_err().to_string();
/// assert!(message.contains("rank 1 worker 0 fold 5"), "{message}");
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidSchedule`] naming rank, worker and fold where it goes wrong, and how; [`Error::InvalidValue`] if
/// `depth` is 0.
pub fn verify(schedule: &Schedule, depth: u32) -> Result<()> {
    if depth == 0 {
        return Err(Error::invalid_value("depth", "0", "at least 1 slot"));
    }
    let prove = || {
        let wiring = Wiring::new(schedule)?;
        let order = progress::run(&wiring, depth)?;
        results::check(&wiring, &order)?;
        in_place::check(&wiring, &order)
    };
    prove().map_err(|reason| Error::InvalidSchedule { schedule: schedule.name(), reason })
}

/// What a part of the verifier finds: nothing, or the sentence that says what is wrong and where.
type Verdict<T = ()> = Result<T, String>;
