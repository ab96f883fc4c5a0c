//! Right results, by running the schedule with sets of ranks.
//!
//! A value is the set of ranks whose contributions it holds. A fold unites its sources, and a contribution that is
//! in two of them is counted twice, which is wrong for every operator but minimum and maximum. One tile stands for
//! all: each tile of a chunk meets the same folds, and a slot is read by the fold its producer meant.

use super::Verdict;
use super::wiring::{FoldIndex, Wiring};
use crate::schedule::{Sink, Source};

/// What a fold produces.
#[derive(Clone, Copy, Default)]
struct Value {
    /// The ranks whose contributions it holds, as bits.
    ranks: u128,
    /// Whether it went through the fold that completes the reduction.
    finished: bool,
}

/// Checks values, outputs and `finish` marks; `order` is one in which the folds can run.
pub(super) fn check(wiring: &Wiring, order: &[FoldIndex]) -> Verdict {
    let chunks = wiring.schedule.chunks.len();
    let mut values = vec![Value::default(); wiring.places.len()];
    // outputs[rank * chunks + chunk]: the fold that wrote there.
    let mut outputs: Vec<Option<FoldIndex>> = vec![None; wiring.schedule.ranks * chunks];
    for &index in order {
        let fold = wiring.fold(index);
        let rank = wiring.places[index].rank;
        let slot = rank * chunks + fold.chunk.0 as usize;
        let value = combine(wiring, &values, outputs[slot], index)?;
        values[index] = value;
        if fold.sinks.contains(&Sink::Output) {
            if let Some(earlier) = outputs[slot].replace(index) {
                return Err(format!(
                    "{} writes an output that is already written by {}",
                    wiring.name(index),
                    wiring.name(earlier)
                ));
            }
            let missing = wiring.contributors(fold.chunk) & !value.ranks;
            if missing != 0 {
                return Err(format!(
                    "{} writes an output that lacks the contribution of {}",
                    wiring.name(index),
                    ranks_in_words(missing)
                ));
            }
        }
    }
    for (slot, writer) in outputs.iter().enumerate() {
        let (rank, chunk) = (slot / chunks, crate::schedule::ChunkId((slot % chunks) as u32));
        if writer.is_none() && wiring.has_output(rank, chunk) {
            let near = (0..wiring.places.len())
                .find(|&i| wiring.places[i].rank == rank && wiring.fold(i).chunk == chunk)
                .map_or("no fold of its workers is about it".to_owned(), |i| {
                    format!("the first fold about it is {}", wiring.name(i))
                });
            return Err(format!(
                "rank {rank} never writes {} of its output: {near}",
                wiring.chunk_name(chunk)
            ));
        }
    }
    Ok(())
}

/// The value a fold produces.
fn combine(wiring: &Wiring, values: &[Value], output: Option<FoldIndex>, index: FoldIndex) -> Verdict<Value> {
    let fold = wiring.fold(index);
    let rank = wiring.places[index].rank;
    let mut sum = Value::default();
    for (source, supplier) in fold.sources.iter().zip(&wiring.suppliers[index]) {
        let value = match source {
            Source::Input => Value { ranks: 1 << rank, finished: false },
            Source::Output => {
                let written = output.map(|o| values[o]);
                written
                    .ok_or_else(|| format!("{} reads an output before it is written", wiring.name(index)))?
            }
            Source::Link(_) | Source::Peer(_) => supplier.map(|s| values[s]).unwrap_or_default(),
        };
        let twice = sum.ranks & value.ranks;
        if twice != 0 {
            return Err(format!(
                "{} counts the contribution of {} twice",
                wiring.name(index),
                ranks_in_words(twice)
            ));
        }
        sum = Value { ranks: sum.ranks | value.ranks, finished: sum.finished | value.finished };
    }
    if wiring.schedule.collective.reduces() {
        let completes = sum.ranks == wiring.contributors(fold.chunk) && !sum.finished;
        if fold.finish != completes {
            let why = match (fold.finish, sum.finished) {
                (false, _) => "completes the reduction but is not marked finish".to_owned(),
                (true, true) => "is marked finish, but the reduction was complete before".to_owned(),
                (true, false) => format!(
                    "is marked finish, but the contribution of {} is still missing",
                    ranks_in_words(wiring.contributors(fold.chunk) & !sum.ranks)
                ),
            };
            return Err(format!("{} {why}", wiring.name(index)));
        }
        sum.finished |= completes;
    }
    Ok(sum)
}

/// `rank 3`, or `ranks 0, 2, 3 and 12 more`.
fn ranks_in_words(set: u128) -> String {
    const NAMED: usize = 6;
    let ranks: Vec<String> = (0..128).filter(|r| set >> r & 1 == 1).map(|r: u32| r.to_string()).collect();
    match ranks.len() {
        1 => format!("rank {}", ranks[0]),
        n if n <= NAMED => format!("ranks {}", ranks.join(", ")),
        n => format!("ranks {} and {} more", ranks[..NAMED].join(", "), n - NAMED),
    }
}
