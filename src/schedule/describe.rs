//! Schedules as text: one line a fold, for snapshots, logs and people.

use std::fmt;

use super::{Chunk, Fold, LinkId, Schedule, Sink, Source};

impl fmt::Display for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.share;
        write!(f, "block {} [{}..{})/{}", self.block, s.begin, s.end, s.of)
    }
}

impl Schedule {
    /// `from->to#index` of a link.
    pub(crate) fn link_name(&self, link: LinkId) -> String {
        match self.links.get(link.0 as usize) {
            Some(l) => format!("link {} ({}->{})", link.0, l.from, l.to),
            None => format!("link {} (unknown)", link.0),
        }
    }

    /// A fold in words: `reduce chunk 1: link 3 (0->1) + input => output, peer link 4 (1->0)`.
    pub fn describe_fold(&self, fold: &Fold) -> String {
        let sources: Vec<_> = fold
            .sources
            .iter()
            .map(|s| match s {
                Source::Input => "input".to_owned(),
                Source::Output => "output".to_owned(),
                Source::Link(l) => self.link_name(*l),
                Source::Peer(l) => format!("peer {}", self.link_name(*l)),
            })
            .collect();
        let sinks: Vec<_> = fold
            .sinks
            .iter()
            .map(|s| match s {
                Sink::Output => "output".to_owned(),
                Sink::Link(l) => self.link_name(*l),
                Sink::Peer(l) => format!("peer {}", self.link_name(*l)),
            })
            .collect();
        let verb = match (fold.sources.len(), fold.finish) {
            (1, false) => "copy",
            (_, false) => "reduce",
            (_, true) => "finish",
        };
        format!("{verb} chunk {}: {} => {}", fold.chunk.0, sources.join(" + "), sinks.join(", "))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} channels", self.name(), self.channels)?;
        for (i, c) in self.chunks.iter().enumerate() {
            writeln!(f, "  chunk {i}: {c}")?;
        }
        for (rank, workers) in self.workers.iter().enumerate() {
            for (w, worker) in workers.iter().enumerate() {
                writeln!(f, "  rank {rank} worker {w} (channel {}, {:?})", worker.channel, worker.role)?;
                for fold in &worker.folds {
                    writeln!(f, "    {}", self.describe_fold(fold))?;
                }
            }
        }
        Ok(())
    }
}
