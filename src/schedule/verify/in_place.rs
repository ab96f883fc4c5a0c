//! Safety of the buffers: in place, with lent outputs, or neither.
//!
//! In place, a rank's input and output are the same memory at the same message coordinates. (A reduce_scatter
//! reduces into its block of the input, and an all_gather starts from its block of the output.) Where the output is
//! lent, peers write it. In each case the accesses to one rank's copy of one chunk have to be ordered:
//!
//! * the output is written after every read of the input, or by the very fold that reads it (which reads each
//!   element before it writes that element);
//! * the output is read after it was written.
//!
//! That it is written only once is checked with the [results](super::results).
//!
//! # What counts as an order
//!
//! A fold is ordered after the folds before it in its worker, and after those that filled the slots it drains. Only
//! folds *of the same chunk* are followed on the way. A schedule could be ordered by way of another chunk, but that
//! chunk may be shorter, even empty, and its folds skipped; and a fold of another tile is about other memory. Credits
//! (a slot can be filled because it was drained) are not followed either: a lent output gives none. So what is
//! proven here holds at every depth, length and tile size.

use std::collections::HashMap;

use super::Verdict;
use super::wiring::{FoldIndex, Wiring};
use crate::schedule::{Sink, Source};

/// What happens to one rank's copy of a chunk. Folds are numbered within the chunk.
#[derive(Default)]
struct Accesses {
    input_reads: Vec<usize>,
    output_reads: Vec<usize>,
    /// The rank's own folds that write the output, whatever is lent.
    own_writes: Vec<usize>,
    /// The rank's own folds that write the output unless it is lent.
    unless_lent: Vec<usize>,
    /// The folds of peers that write the output if it is lent.
    if_lent: Vec<usize>,
}

/// Checks every rank's copy of every chunk; `order` is one in which the folds can run.
pub(super) fn check(wiring: &Wiring, order: &[FoldIndex]) -> Verdict {
    let mut by_chunk = vec![Vec::new(); wiring.schedule.chunks.len()];
    for &index in order {
        by_chunk[wiring.fold(index).chunk.0 as usize].push(index);
    }
    by_chunk.iter().try_for_each(|folds| check_chunk(wiring, folds))
}

/// Checks one chunk, given its folds in an order in which they can run.
fn check_chunk(wiring: &Wiring, folds: &[FoldIndex]) -> Verdict {
    let before = Before::new(wiring, folds);
    let mut ranks: Vec<Accesses> = Vec::new();
    ranks.resize_with(wiring.schedule.ranks, Accesses::default);
    for (number, &index) in folds.iter().enumerate() {
        let rank = wiring.places[index].rank;
        let fold = wiring.fold(index);
        let takes_peer = fold.sources.iter().any(|s| matches!(s, Source::Peer(_)));
        for source in &fold.sources {
            match source {
                Source::Input => ranks[rank].input_reads.push(number),
                Source::Output => ranks[rank].output_reads.push(number),
                Source::Link(_) | Source::Peer(_) => {}
            }
        }
        for sink in &fold.sinks {
            match sink {
                Sink::Output if takes_peer => ranks[rank].unless_lent.push(number),
                Sink::Output => ranks[rank].own_writes.push(number),
                Sink::Peer(l) => ranks[wiring.schedule.links[l.0 as usize].to].if_lent.push(number),
                Sink::Link(_) => {}
            }
        }
    }
    for (rank, a) in ranks.iter().enumerate() {
        for (how, writes) in [("", &a.own_writes), ("", &a.unless_lent), (" lent", &a.if_lent)] {
            for &write in writes {
                let name = |number: usize| wiring.name(folds[number]);
                if let Some(&read) = a.input_reads.iter().find(|&&r| r != write && !before.holds(r, write)) {
                    return Err(format!(
                        "not safe in place: {} may write the{how} output of rank {rank} before {} has read the input there",
                        name(write),
                        name(read)
                    ));
                }
                if let Some(&read) = a.output_reads.iter().find(|&&r| !before.holds(write, r)) {
                    return Err(format!(
                        "{} may read the output before {} has written it",
                        name(read),
                        name(write)
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Which folds of a chunk are certain to have run before which.
struct Before {
    /// Row `b` has a bit for each fold that runs before fold `b`.
    rows: Vec<u64>,
    words: usize,
}

impl Before {
    fn new(wiring: &Wiring, folds: &[FoldIndex]) -> Self {
        let words = folds.len().div_ceil(64);
        let mut before = Before { rows: vec![0; words * folds.len()], words };
        let numbers: HashMap<FoldIndex, usize> = folds.iter().enumerate().map(|(n, &i)| (i, n)).collect();
        let mut last_of_worker = HashMap::new();
        for (number, &index) in folds.iter().enumerate() {
            let place = wiring.places[index];
            if let Some(previous) = last_of_worker.insert((place.rank, place.worker), number) {
                before.follow(previous, number);
            }
            for supplier in wiring.suppliers[index].iter().flatten() {
                before.follow(numbers[supplier], number);
            }
        }
        before
    }

    /// Notes that `number` runs after `earlier`, and after all that `earlier` runs after.
    fn follow(&mut self, earlier: usize, number: usize) {
        let (head, tail) = self.rows.split_at_mut(number * self.words);
        for (to, from) in tail.iter_mut().zip(&head[earlier * self.words..(earlier + 1) * self.words]) {
            *to |= from;
        }
        tail[earlier / 64] |= 1 << (earlier % 64);
    }

    fn holds(&self, earlier: usize, later: usize) -> bool {
        self.rows[later * self.words + earlier / 64] >> (earlier % 64) & 1 == 1
    }
}
