//! Skipping what repeats itself.
//!
//! Whenever one chosen worker finishes a tile, the state of all workers is noted: the fold each is at, since when, and
//! how many tiles it has done. If over two stretches of the same length each worker came back to the same state after
//! the same number of tiles, then the schedule runs in a period, and will until a chunk runs out. All workers that
//! share chunks must have advanced alike: otherwise a FIFO is still filling up, which cannot go on.
//!
//! Uneven machines may have very long periods. Then the average over many tiles has to do.

use super::clock::Progress;
use super::sharing::SAME_US;

/// Longest period looked for, in tiles of the chosen worker.
const LONGEST: usize = 12;

/// After so many tiles without a period the average over the later half is taken, if the first half had about the same, or
/// else after many more.
const PATIENCE: usize = 32;
const LONGEST_PATIENCE: usize = 96;

/// By what part the speeds of a group may differ.
const SETTLED: f64 = 5e-3;

/// Stretches count as equally long, and workers as standing where they stood, if they differ by less than this part of
/// the stretch: a schedule may take long to settle completely.
const EQUAL: f64 = 1e-3;

/// A stretch of time after which everything is as before, except that tiles were done.
pub(super) struct Period {
    pub(super) us: f64,
    /// For each group of workers that share chunks, how many tiles it does; whole numbers if the period is exact.
    pub(super) tiles: Vec<f64>,
}

struct Note {
    us: f64,
    workers: Vec<Progress>,
}

/// Watches for a period.
#[derive(Default)]
pub(super) struct Steady {
    notes: Vec<Note>,
}

impl Steady {
    /// Forgets everything: the schedule has changed its pace.
    pub(super) fn forget(&mut self) {
        self.notes.clear();
    }

    /// Notes the state at the end of a tile of the chosen worker, and says if there is a period now. `groups` has the
    /// group of each worker, out of `count`.
    pub(super) fn note(
        &mut self,
        us: f64,
        workers: Vec<Progress>,
        groups: &[usize],
        count: usize,
    ) -> Option<Period> {
        self.notes.push(Note { us, workers });
        let last = self.notes.len() - 1;
        for length in 1..=LONGEST.min(last / 2) {
            let [a, b, c] = [last - 2 * length, last - length, last].map(|i| &self.notes[i]);
            let (first, second) = (b.us - a.us, c.us - b.us);
            if (first - second).abs() > EQUAL * second {
                continue;
            }
            let Some(tiles) = exact_advance(b, c, groups, count) else { continue };
            if exact_advance(a, b, groups, count).is_some_and(|before| before == tiles) {
                return Some(Period { us: second, tiles });
            }
        }
        // Both halves of what was seen since the beginning, once in a while.
        if last < PATIENCE || !last.is_multiple_of(PATIENCE / 2) {
            return None;
        }
        let [a, b, c] = [0, last / 2, last].map(|i| &self.notes[i]);
        let [before, tiles] = [(a, b), (b, c)].map(|(from, to)| mean_advance(from, to, groups, count));
        let (first, second) = (b.us - a.us, c.us - b.us);
        let settled =
            before.iter().zip(&tiles).all(|(x, y)| (x / first - y / second).abs() <= SETTLED * y / second);
        (settled || last >= LONGEST_PATIENCE).then_some(Period { us: second, tiles })
    }
}

/// The tiles that each group has done between two notes, if all of its workers have done as many and stand as they
/// stood; those that had finished before do not count. A group without workers has done none.
fn exact_advance(a: &Note, b: &Note, groups: &[usize], count: usize) -> Option<Vec<f64>> {
    let mut tiles = vec![None; count];
    let age_slack = EQUAL * (b.us - a.us) + SAME_US;
    for ((a, b), &g) in a.workers.iter().zip(&b.workers).zip(groups) {
        if a.finished {
            continue;
        }
        let done = b.tile - a.tile;
        let same = !b.finished && (done == 0 || (a.fold == b.fold && (a.age - b.age).abs() <= age_slack));
        if !same || tiles[g].is_some_and(|t| t != done) {
            return None;
        }
        tiles[g] = Some(done);
    }
    Some(tiles.into_iter().map(|t| t.unwrap_or(0) as f64).collect())
}

/// The tiles, and parts of tiles, that the workers of each group have done between two notes, on average over those that
/// had not finished.
fn mean_advance(a: &Note, b: &Note, groups: &[usize], count: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0.0); count];
    for ((a, b), &g) in a.workers.iter().zip(&b.workers).zip(groups).filter(|((_, b), _)| !b.finished) {
        sums[g].0 += b.tiles() - a.tiles();
        sums[g].1 += 1.0;
    }
    sums.into_iter().map(|(sum, workers)| if workers > 0.0 { sum / workers } else { 0.0 }).collect()
}
