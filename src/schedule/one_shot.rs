//! One-shot all_reduce: everybody sends everything to everybody, and each rank adds it all up by itself.
//!
//! One step instead of two, for `n/2` times the traffic of [`direct`](super::direct): the choice for small messages.
//! Each rank combines the inputs in rank order, so all ranks get the same bits.

use super::{Algorithm, Builder, Fold, Request, Role, Schedule, Share, Sink, Source};
use crate::types::Collective;

/// The one-shot algorithm; see the [module documentation](self).
#[derive(Clone, Copy, Debug)]
pub struct OneShot;

impl Algorithm for OneShot {
    fn name(&self) -> &'static str {
        "one_shot"
    }

    fn supports(&self, collective: Collective) -> bool {
        collective == Collective::AllReduce
    }

    fn build(&self, request: &Request) -> Schedule {
        let n = request.ranks;
        let mut s = Builder::new(self.name(), request);
        for channel in 0..request.orders.len() {
            let chunk = s.chunk(0, Share::part(channel as u32, request.orders.len() as u32));
            let mesh = s.links_all_pairs(channel);
            for rank in 0..n {
                let to_all: Vec<_> =
                    (1..n).filter_map(|i| mesh[rank][(rank + i) % n]).map(Sink::Link).collect();
                let from_all: Vec<_> =
                    (0..n).map(|p| mesh[p][rank].map_or(Source::Input, Source::Link)).collect();
                // One worker does both: in place, the input must have left before the output is written.
                let folds = vec![
                    Fold::copy(chunk, Source::Input, to_all),
                    Fold::reduce(chunk, from_all, [Sink::Output], true),
                ];
                s.worker(rank, channel, Role::Relay, folds);
            }
        }
        s.finish()
    }
}
