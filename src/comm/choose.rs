//! Which schedule a CPU communicator uses for a call.

use super::config::Config;
use crate::schedule::ALGORITHMS;
use crate::types::Collective;

/// A schedule and how finely it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    /// The algorithm's name.
    pub(crate) algorithm: &'static str,
    /// Channels that share the message.
    pub(crate) channels: usize,
    /// Bytes of a tile.
    pub(crate) tile_bytes: usize,
    /// Slots of a link.
    pub(crate) depth: u32,
}

/// Up to so many bytes, counted over all ranks, every rank adds up everything by itself.
const ONE_SHOT_BYTES: usize = 16 << 10;

/// Slots small enough that a slot just written is still in the second-level cache when it is read.
const TILE_BYTES: usize = 64 << 10;

/// Enough for the producer to fill one slot while the consumer empties another, with some slack.
const DEPTH: u32 = 4;

/// Most tiles of a message: a link carries each at most twice, and counts up to four million slots in an operation.
const MAX_TILES: usize = 1 << 20;

/// Chooses by the collective and the bytes of its message: the same on all ranks.
pub(crate) fn choose(collective: Collective, bytes: usize, ranks: usize, config: &Config) -> Choice {
    let forced = config.algorithm.as_deref().and_then(|name| {
        ALGORITHMS.iter().find(|a| a.name() == name && a.supports(collective)).map(|a| a.name())
    });
    let algorithm = forced.unwrap_or(match collective {
        Collective::AllReduce if bytes * ranks <= ONE_SHOT_BYTES => "one_shot",
        Collective::Reduce { .. } => "ring",
        _ => "direct",
    });
    let mut tile_bytes = TILE_BYTES;
    while bytes / tile_bytes > MAX_TILES {
        tile_bytes *= 2;
    }
    // One thread runs all channels of a rank, so more of them gain nothing.
    Choice { algorithm, channels: config.channels.unwrap_or(1), tile_bytes, depth: DEPTH }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_messages_get_larger_tiles() {
        let choice = |bytes| choose(Collective::AllReduce, bytes, 4, &Config::new());
        assert_eq!(choice(1 << 30).tile_bytes, TILE_BYTES);
        assert!((1usize << 40) / choice(1 << 40).tile_bytes <= MAX_TILES);
        assert_eq!((choice(8).algorithm, choice(1 << 20).algorithm), ("one_shot", "direct"));
        assert_eq!(choose(Collective::AllReduce, 8, 4, &Config::new().algorithm("ring")).algorithm, "ring");
    }
}
