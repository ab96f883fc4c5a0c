//! Well-formed data, and who is connected to whom.

use super::Verdict;
use crate::schedule::{ChunkId, Fold, LinkId, MAX_RANKS, Schedule, Sink, Source};
use crate::types::Collective;

/// Index of a fold among all folds of the schedule, counted by rank, worker and position.
pub(in crate::schedule) type FoldIndex = usize;

/// Where a fold stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::schedule) struct Place {
    pub(in crate::schedule) rank: usize,
    pub(in crate::schedule) worker: usize,
    pub(in crate::schedule) fold: usize,
}

/// The folds that use a link, in the order in which they do.
#[derive(Clone, Debug, Default)]
pub(in crate::schedule) struct Uses {
    pub(in crate::schedule) fills: Vec<FoldIndex>,
    pub(in crate::schedule) drains: Vec<FoldIndex>,
}

/// A well-formed schedule with its folds numbered and its links resolved.
pub(in crate::schedule) struct Wiring<'a> {
    pub(in crate::schedule) schedule: &'a Schedule,
    pub(in crate::schedule) places: Vec<Place>,
    pub(in crate::schedule) uses: Vec<Uses>,
    /// For each fold and each of its sources the fold that fills the slot, if the source is a link.
    pub(in crate::schedule) suppliers: Vec<Vec<Option<FoldIndex>>>,
}

impl<'a> Wiring<'a> {
    /// Checks the data of a schedule, all that can be said without running it.
    pub(in crate::schedule) fn new(schedule: &'a Schedule) -> Verdict<Self> {
        check_frame(schedule)?;
        check_chunks(schedule)?;
        let mut wiring = Wiring {
            schedule,
            places: Vec::new(),
            uses: vec![Uses::default(); schedule.links.len()],
            suppliers: Vec::new(),
        };
        for (rank, workers) in schedule.workers.iter().enumerate() {
            for (worker, w) in workers.iter().enumerate() {
                if w.channel >= schedule.channels {
                    return Err(format!(
                        "rank {rank} worker {worker} is on channel {} of {}",
                        w.channel, schedule.channels
                    ));
                }
                wiring.places.extend((0..w.folds.len()).map(|fold| Place { rank, worker, fold }));
            }
        }
        for index in 0..wiring.places.len() {
            wiring.check_fold(index)?;
            wiring.note_uses(index)?;
        }
        for link in 0..schedule.links.len() {
            wiring.check_link(link)?;
        }
        wiring.resolve();
        Ok(wiring)
    }

    pub(in crate::schedule) fn fold(&self, index: FoldIndex) -> &'a Fold {
        let p = self.places[index];
        &self.schedule.workers[p.rank][p.worker].folds[p.fold]
    }

    /// `rank 2 worker 0 fold 3 (copy chunk 1: input => link 0 (2->3))`.
    pub(in crate::schedule) fn name(&self, index: FoldIndex) -> String {
        let p = self.places[index];
        let words = self.schedule.describe_fold(self.fold(index));
        format!("rank {} worker {} fold {} ({words})", p.rank, p.worker, p.fold)
    }

    /// `chunk 3 (block 0 [1..2)/4)`.
    pub(in crate::schedule) fn chunk_name(&self, chunk: ChunkId) -> String {
        format!("chunk {} ({})", chunk.0, self.schedule.chunks[chunk.0 as usize])
    }

    /// The ranks whose contributions belong into a chunk's result, as a set of bits.
    pub(in crate::schedule) fn contributors(&self, chunk: ChunkId) -> u128 {
        match self.schedule.collective {
            Collective::AllGather => 1 << self.schedule.chunks[chunk.0 as usize].block,
            Collective::Broadcast { root } => 1 << root,
            _ => u128::MAX >> (MAX_RANKS - self.schedule.ranks),
        }
    }

    /// Whether the rank's input buffer has the chunk.
    pub(in crate::schedule) fn has_input(&self, rank: usize, chunk: ChunkId) -> bool {
        self.contributors(chunk) >> rank & 1 == 1
    }

    /// Whether the rank's output buffer has the chunk.
    pub(in crate::schedule) fn has_output(&self, rank: usize, chunk: ChunkId) -> bool {
        match self.schedule.collective {
            Collective::ReduceScatter => self.schedule.chunks[chunk.0 as usize].block as usize == rank,
            Collective::Reduce { root } => root == rank,
            _ => true,
        }
    }

    fn check_fold(&self, index: FoldIndex) -> Verdict {
        let fold = self.fold(index);
        let rank = self.places[index].rank;
        if fold.chunk.0 as usize >= self.schedule.chunks.len() {
            let p = self.places[index];
            return Err(format!(
                "rank {} worker {} fold {} works on chunk {}; there are {}",
                p.rank,
                p.worker,
                p.fold,
                fold.chunk.0,
                self.schedule.chunks.len()
            ));
        }
        let refuse = |why: String| Err(format!("{} {why}", self.name(index)));
        if fold.sources.is_empty() {
            return refuse("has no source".into());
        }
        if fold.sinks.is_empty() && fold.sources.iter().any(|s| s.link().is_none()) {
            return refuse("has no sink, which only a fold that drains links may".into());
        }
        let links =
            || fold.sources.iter().filter_map(|s| s.link()).chain(fold.sinks.iter().filter_map(|s| s.link()));
        if let Some(l) = links().find(|l| l.0 as usize >= self.schedule.links.len()) {
            return refuse(format!("uses link {}; there are {}", l.0, self.schedule.links.len()));
        }
        if repeats(&fold.sources) || repeats(&fold.sinks) {
            return refuse("has the same operand twice".into());
        }
        let mut all: Vec<LinkId> = links().collect();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|w| w[0] == w[1]) {
            return refuse(format!("uses {} twice", self.schedule.link_name(pair[0])));
        }
        if fold.sources.contains(&Source::Input) && !self.has_input(rank, fold.chunk) {
            return refuse(format!("reads an input that rank {rank} does not have there"));
        }
        let has_output = self.has_output(rank, fold.chunk);
        let writes = fold.sinks.contains(&Sink::Output);
        if !has_output && (writes || fold.sources.contains(&Source::Output)) {
            return refuse(format!("uses an output that rank {rank} does not have there"));
        }
        if fold.sources.iter().any(|s| matches!(s, Source::Peer(_))) && (fold.sources.len() > 1 || !writes) {
            return refuse(
                "has a peer source, so it may have no other source and must write the output".into(),
            );
        }
        if !self.schedule.collective.reduces() {
            if fold.sources.len() > 1 {
                return refuse(format!("combines sources, but {} reduces nothing", self.schedule.collective));
            }
            if fold.finish {
                return refuse(format!("is marked finish, but {} reduces nothing", self.schedule.collective));
            }
        }
        Ok(())
    }

    /// Enters a fold into the lists of the links it uses, which all have to be links of its worker.
    fn note_uses(&mut self, index: FoldIndex) -> Verdict {
        let fold = self.fold(index);
        let drained = fold.sources.iter().filter_map(|s| s.link()).map(|l| (l, true));
        let filled = fold.sinks.iter().filter_map(|s| s.link()).map(|l| (l, false));
        for (link, drain) in drained.chain(filled) {
            let schedule = self.schedule;
            let l = schedule.links[link.0 as usize];
            let uses = &mut self.uses[link.0 as usize];
            let (list, end, verb) = match drain {
                true => (&mut uses.drains, l.to, "drains"),
                false => (&mut uses.fills, l.from, "fills"),
            };
            let before = list.last().copied();
            list.push(index);
            let place = self.places[index];
            let channel = schedule.workers[place.rank][place.worker].channel;
            let name = schedule.link_name(link);
            if end != place.rank {
                return Err(format!("{} {verb} {name}, which is for rank {end} to do", self.name(index)));
            }
            if channel != l.channel {
                return Err(format!(
                    "{} {verb} {name} of channel {} from a worker of channel {channel}",
                    self.name(index),
                    l.channel
                ));
            }
            if let Some(b) = before.filter(|&b| self.places[b].worker != place.worker) {
                return Err(format!(
                    "{} {verb} {name}, which another worker does too: {}",
                    self.name(index),
                    self.name(b)
                ));
            }
        }
        Ok(())
    }

    /// Both ends use the link for the same chunks, in the same order, in the same way.
    fn check_link(&self, link: usize) -> Verdict {
        let id = LinkId(link as u32);
        let Uses { fills, drains } = &self.uses[link];
        let name = self.schedule.link_name(id);
        for (i, (&f, &d)) in fills.iter().zip(drains).enumerate() {
            let (producer, consumer) = (self.fold(f), self.fold(d));
            let number = i + 1;
            if producer.chunk != consumer.chunk {
                return Err(format!(
                    "use {number} of {name} is for chunk {} where it is filled but for chunk {} where it is drained: \
                     {} and {}",
                    producer.chunk.0,
                    consumer.chunk.0,
                    self.name(f),
                    self.name(d)
                ));
            }
            if producer.sinks.contains(&Sink::Peer(id)) != consumer.sources.contains(&Source::Peer(id)) {
                return Err(format!(
                    "use {number} of {name} is a peer operand at one end only: {} and {}",
                    self.name(f),
                    self.name(d)
                ));
            }
        }
        if let Some(&f) = fills.get(drains.len()) {
            return Err(format!("{} fills a slot of {name} that no fold drains", self.name(f)));
        }
        if let Some(&d) = drains.get(fills.len()) {
            return Err(format!("{} drains a slot of {name} that no fold fills", self.name(d)));
        }
        Ok(())
    }

    fn resolve(&mut self) {
        let mut next = vec![0; self.uses.len()];
        self.suppliers = (0..self.places.len())
            .map(|index| {
                let supplier = |s: &Source| {
                    let link = s.link()?.0 as usize;
                    next[link] += 1;
                    Some(self.uses[link].fills[next[link] - 1])
                };
                self.fold(index).sources.iter().map(supplier).collect()
            })
            .collect();
    }
}

/// The numbers that everything else is indexed with.
fn check_frame(s: &Schedule) -> Verdict {
    if s.ranks == 0 || s.ranks > MAX_RANKS {
        return Err(format!("it has {} ranks, expected 1 to {MAX_RANKS}", s.ranks));
    }
    if s.workers.len() != s.ranks {
        return Err(format!("it has workers for {} ranks of {}", s.workers.len(), s.ranks));
    }
    if let Some(root) = s.collective.root().filter(|&r| r >= s.ranks) {
        return Err(format!("its root is rank {root} of {}", s.ranks));
    }
    for (i, l) in s.links.iter().enumerate() {
        if l.from >= s.ranks || l.to >= s.ranks || l.from == l.to {
            return Err(format!("link {i} leads from rank {} to rank {} of {}", l.from, l.to, s.ranks));
        }
        if l.channel >= s.channels {
            return Err(format!("link {i} is on channel {} of {}", l.channel, s.channels));
        }
    }
    Ok(())
}

/// Chunks stand in message order and cover each block from its beginning to its end.
fn check_chunks(s: &Schedule) -> Verdict {
    let blocks = s.collective.blocks(s.ranks) as u32;
    // The block and the position in it, as a fraction, where the next chunk has to begin.
    let mut next = (0, (0, 1));
    for (i, c) in s.chunks.iter().enumerate() {
        let share = c.share;
        if share.begin >= share.end || share.end > share.of {
            return Err(format!("chunk {i} ({c}) is empty or ends beyond its block"));
        }
        let (block, at) = next;
        if c.block != block || !same_fraction((share.begin, share.of), at) {
            return Err(format!(
                "chunk {i} ({c}) does not begin at block {block} [{}/{}], where the chunk before it ends",
                at.0, at.1
            ));
        }
        next = if share.end == share.of { (block + 1, (0, 1)) } else { (block, (share.end, share.of)) };
    }
    if next != (blocks, (0, 1)) {
        return Err(format!(
            "its chunks end at block {} [{}/{}] of {blocks} blocks",
            next.0, next.1.0, next.1.1
        ));
    }
    Ok(())
}

fn same_fraction(a: (u32, u32), b: (u32, u32)) -> bool {
    u64::from(a.0) * u64::from(b.1) == u64::from(b.0) * u64::from(a.1)
}

fn repeats<T: PartialEq>(operands: &[T]) -> bool {
    operands.iter().enumerate().any(|(i, o)| operands[..i].contains(o))
}
