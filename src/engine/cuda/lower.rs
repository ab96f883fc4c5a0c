//! From a schedule to the words a program kernel reads: one rank's workers, its link ends and folds.

use std::collections::HashMap;

use super::abi;
use crate::error::{Error, Result};
use crate::schedule::{Fold, LinkId, Schedule, Sink, Source};

/// One rank's part of a schedule as `kernels/abi.h` lays it out.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Where each worker begins in `words`.
    pub(crate) first_word: [u16; abi::RL_MAX_WORKERS as usize],
    /// The program.
    pub(crate) words: [u16; abi::RL_MAX_WORDS as usize],
    /// Workers of this rank.
    pub(crate) workers: u32,
}

/// What all ranks' programs have in common: how the links of each pair of ranks are numbered.
#[derive(Clone, Debug)]
pub(crate) struct Numbering {
    /// A link's number among those of its ordered pair. Links that need slots even if outputs are lent come first, so
    /// that the others take no memory.
    index: Vec<u32>,
    /// Whether every slot of a link is written by a peer sink.
    peer_only: Vec<bool>,
    /// Most links of an ordered pair.
    pub(crate) links: u32,
    /// Most links of an ordered pair that need slots even if outputs are lent.
    pub(crate) fifo_links: u32,
}

impl Numbering {
    /// Numbers the links of a schedule.
    pub(crate) fn new(schedule: &Schedule) -> Self {
        let mut peer_only = vec![true; schedule.links.len()];
        for sink in schedule.workers.iter().flatten().flat_map(|w| &w.folds).flat_map(|f| &f.sinks) {
            if let Sink::Link(l) = sink {
                peer_only[l.0 as usize] = false;
            }
        }
        let mut next: HashMap<(usize, usize), u32> = HashMap::new();
        let mut index = vec![0; schedule.links.len()];
        let mut number = |wanted: bool| {
            for (i, link) in schedule.links.iter().enumerate().filter(|&(i, _)| peer_only[i] == wanted) {
                let n = next.entry((link.from, link.to)).or_default();
                index[i] = *n;
                *n += 1;
            }
            next.values().copied().max().unwrap_or(0)
        };
        let fifo_links = number(false);
        let links = number(true);
        Numbering { index, peer_only, links, fifo_links }
    }
}

/// Lowers one rank's workers.
///
/// # Errors
/// [`Error::NoPlan`] if the program exceeds a limit of the device program.
pub(crate) fn lower(schedule: &Schedule, numbering: &Numbering, rank: usize) -> Result<Program> {
    let limit = |what: &str, have: usize, most: u32| {
        if have <= most as usize {
            return Ok(());
        }
        Err(Error::NoPlan {
            request: schedule.name(),
            reason: format!(
                "rank {rank} would need {have} {what}, the device program holds {most}; use fewer channels"
            ),
        })
    };
    let workers = &schedule.workers[rank];
    limit("workers", workers.len(), abi::RL_MAX_WORKERS)?;
    limit("chunks", schedule.chunks.len(), abi::RL_MAX_CHUNKS)?;
    limit("ranks", schedule.ranks, abi::RL_MAX_RANKS)?;
    let mut words: Vec<u16> = Vec::new();
    let mut first_word = [0; abi::RL_MAX_WORKERS as usize];
    for (w, worker) in workers.iter().enumerate() {
        first_word[w] = words.len() as u16;
        let ends = Ends::of(schedule, &worker.folds, rank);
        limit("link ends in one worker", ends.links.len(), abi::RL_MAX_ENDS)?;
        words.push(ends.links.len() as u16);
        words.extend(ends.links.iter().map(|&l| end_word(schedule, numbering, l, rank)));
        words.push(worker.folds.len() as u16);
        for fold in &worker.folds {
            limit("operands in one fold", fold.sources.len() + fold.sinks.len(), abi::RL_MAX_OPERANDS)?;
            fold_words(numbering, &ends, fold, &mut words);
        }
    }
    limit("words", words.len(), abi::RL_MAX_WORDS)?;
    let mut fixed = [0; abi::RL_MAX_WORDS as usize];
    fixed[..words.len()].copy_from_slice(&words);
    Ok(Program { first_word, words: fixed, workers: workers.len() as u32 })
}

/// The links a worker touches, in order of first use.
struct Ends {
    links: Vec<LinkId>,
}

impl Ends {
    fn of(schedule: &Schedule, folds: &[Fold], rank: usize) -> Self {
        let mut links = Vec::new();
        for link in folds.iter().flat_map(|f| {
            f.sources.iter().filter_map(|s| s.link()).chain(f.sinks.iter().filter_map(|s| s.link()))
        }) {
            debug_assert!({
                let l = schedule.links[link.0 as usize];
                l.from == rank || l.to == rank
            });
            if !links.contains(&link) {
                links.push(link);
            }
        }
        Ends { links }
    }

    fn number(&self, link: LinkId) -> u16 {
        self.links.iter().position(|&l| l == link).expect("every link of the worker was collected") as u16
    }
}

fn end_word(schedule: &Schedule, numbering: &Numbering, link: LinkId, rank: usize) -> u16 {
    let l = schedule.links[link.0 as usize];
    let produces = l.from == rank;
    let peer = if produces { l.to } else { l.from } as u16;
    let direction = if produces { abi::RL_END_PRODUCES as u16 } else { 0 };
    direction | (numbering.index[link.0 as usize] as u16) << 8 | peer
}

fn fold_words(numbering: &Numbering, ends: &Ends, fold: &Fold, words: &mut Vec<u16>) {
    let operand = |kind: u32, link: Option<LinkId>| (kind as u16) << 8 | link.map_or(0, |l| ends.number(l));
    // The output goes last: it is left out where a peer has written it already, and the wire sets the alignment.
    let (outputs, links): (Vec<Sink>, Vec<Sink>) = fold.sinks.iter().partition(|s| matches!(s, Sink::Output));
    let mut head = fold.sources.len() as u16 | (fold.sinks.len() as u16) << 5;
    if fold.finish {
        head |= abi::RL_FOLD_FINISH as u16;
    }
    if let (Source::Peer(l), true) = (fold.sources[0], links.is_empty())
        && numbering.peer_only[l.0 as usize]
    {
        head |= abi::RL_FOLD_DEFER as u16;
    }
    words.push(head);
    words.push(fold.chunk.0 as u16);
    words.extend(fold.sources.iter().map(|&s| match s {
        Source::Input => operand(abi::RL_KIND_INPUT, None),
        Source::Output => operand(abi::RL_KIND_OUTPUT, None),
        Source::Link(l) => operand(abi::RL_KIND_LINK, Some(l)),
        Source::Peer(l) => operand(abi::RL_KIND_PEER, Some(l)),
    }));
    words.extend(links.iter().chain(&outputs).map(|&s| match s {
        Sink::Output => operand(abi::RL_KIND_OUTPUT, None),
        Sink::Link(l) => operand(abi::RL_KIND_LINK, Some(l)),
        Sink::Peer(l) => operand(abi::RL_KIND_PEER, Some(l)),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Request, build};
    use crate::types::Collective;

    fn program(algorithm: &str, ranks: usize, channels: usize, rank: usize) -> Result<Program> {
        let schedule = build(algorithm, &Request::new(Collective::AllReduce, ranks, channels)).unwrap();
        lower(&schedule, &Numbering::new(&schedule), rank)
    }

    #[test]
    fn direct_on_two_ranks_is_two_short_workers() {
        let p = program("direct", 2, 1, 0).unwrap();
        assert_eq!(p.workers, 2);
        let produces = abi::RL_END_PRODUCES as u16;
        let (link, peer) = ((abi::RL_KIND_LINK as u16) << 8, (abi::RL_KIND_PEER as u16) << 8);
        let output = (abi::RL_KIND_OUTPUT as u16) << 8;
        // The pusher: link 0 to rank 1, link 1 from it; push chunk 1, then receive it finished, deferred.
        let defer = abi::RL_FOLD_DEFER as u16;
        let pusher =
            [2, produces | 1, 1 << 8 | 1, 2, 1 | 1 << 5, 1, 0, link, 1 | 1 << 5 | defer, 1, peer | 1, output];
        assert_eq!(p.words[..pusher.len()], pusher);
        assert_eq!(p.first_word[1] as usize, pusher.len());
    }

    #[test]
    fn limits_are_errors_with_numbers() {
        let e = program("ring", 16, 32, 3).unwrap_err().to_string();
        assert!(e.contains("rank 3") && e.contains("fewer channels"), "{e}");
        assert!(program("ring", 8, 8, 0).is_ok());
        assert!(program("direct", 16, 1, 15).is_ok());
    }

    #[test]
    fn links_that_need_slots_are_numbered_first() {
        let schedule = build("direct", &Request::new(Collective::AllReduce, 3, 1)).unwrap();
        let n = Numbering::new(&schedule);
        assert_eq!((n.links, n.fifo_links), (2, 1));
        let gather = build("direct", &Request::new(Collective::AllGather, 3, 2)).unwrap();
        let n = Numbering::new(&gather);
        assert_eq!((n.links, n.fifo_links), (2, 0));
    }
}
