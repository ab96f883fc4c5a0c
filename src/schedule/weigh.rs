//! Dividing a message unevenly among channels, and channels among copies of themselves.

use super::{Chunk, ChunkId, Link, LinkId, Schedule, Share, Sink, Source, Worker};
use crate::error::{Error, Result};

impl Schedule {
    /// The channel that works on each chunk; 0 for a chunk nobody works on.
    fn channel_of_chunks(&self) -> Vec<u32> {
        let mut channels = vec![0; self.chunks.len()];
        for worker in self.workers.iter().flatten() {
            worker.folds.iter().for_each(|f| channels[f.chunk.0 as usize] = worker.channel);
        }
        channels
    }

    /// The same schedule with the message divided among the channels in proportion to `weights`, where they had equal
    /// parts: rings on links of unequal bandwidth.
    ///
    /// ```
    /// use ringleader::{Collective, schedule};
    ///
    /// let rings = schedule::build("ring", &schedule::Request::new(Collective::AllReduce, 2, 2))?;
    /// let uneven = rings.weighted(&[3, 1])?;
    /// assert_eq!(uneven.chunk_range(schedule::ChunkId(1), 4096, 4), 1536..3072);
    /// schedule::verify(&uneven, 2)?;
    /// # Ok::<(), ringleader::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidValue`] unless there is a weight above 0 for each channel, of which each must have an equal part.
    pub fn weighted(mut self, weights: &[u32]) -> Result<Schedule> {
        let channels = self.channels;
        if weights.len() != channels as usize || weights.contains(&0) {
            let expected = format!("{channels} numbers above 0");
            return Err(Error::invalid_value("weights of channels", format!("{weights:?}"), expected));
        }
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let before: Vec<u64> =
            weights.iter().scan(0, |sum, &w| Some(std::mem::replace(sum, *sum + u64::from(w)))).collect();
        let owners = self.channel_of_chunks();
        for (chunk, owner) in self.chunks.iter_mut().zip(owners) {
            // A channel has `parts` parts; this chunk is some of those of its owner.
            let parts = chunk.share.of / channels;
            let first = owner * parts;
            let inside = chunk.share.begin >= first && chunk.share.end <= first + parts;
            if parts * channels != chunk.share.of || !inside {
                let expected = "a schedule whose channels have equal parts";
                return Err(Error::invalid_value("schedule", chunk.to_string(), expected));
            }
            let (parts, first, weight) = (u64::from(parts), u64::from(first), weights[owner as usize]);
            let at =
                |part: u32| before[owner as usize] * parts + (u64::from(part) - first) * u64::from(weight);
            chunk.share = share(at(chunk.share.begin), at(chunk.share.end), total * parts)?;
        }
        Ok(self)
    }

    /// The same schedule with each channel divided into so many equal ones that do the same side by side.
    ///
    /// Engines that run every worker on the same number of lanes run a plan this way whose channels have lanes in
    /// proportion to what they carry.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] unless there is a number above 0 for each channel.
    pub fn widened(&self, copies: &[u32]) -> Result<Schedule> {
        if copies.len() != self.channels as usize || copies.contains(&0) {
            let expected = format!("{} numbers above 0", self.channels);
            return Err(Error::invalid_value("copies of channels", format!("{copies:?}"), expected));
        }
        let first: Vec<u32> =
            copies.iter().scan(0, |sum, &c| Some(std::mem::replace(sum, *sum + c))).collect();
        let owners = self.channel_of_chunks();
        let mut wide = Schedule {
            channels: copies.iter().sum(),
            chunks: Vec::new(),
            links: Vec::new(),
            workers: vec![Vec::new(); self.ranks],
            ..self.clone()
        };
        // Copies of a chunk stand side by side, so chunks stay in message order.
        let mut first_chunk = Vec::new();
        for (chunk, &owner) in self.chunks.iter().zip(&owners) {
            first_chunk.push(wide.chunks.len() as u32);
            let (count, s) = (u64::from(copies[owner as usize]), chunk.share);
            let length = u64::from(s.end - s.begin);
            for copy in 0..count {
                let begin = u64::from(s.begin) * count + length * copy;
                let share = share(begin, begin + length, u64::from(s.of) * count)?;
                wide.chunks.push(Chunk { share, ..*chunk });
            }
        }
        let mut first_link = Vec::new();
        for link in &self.links {
            first_link.push(wide.links.len() as u32);
            let channel = link.channel as usize;
            wide.links.extend((0..copies[channel]).map(|i| Link { channel: first[channel] + i, ..*link }));
        }
        for (rank, worker) in
            self.workers.iter().enumerate().flat_map(|(r, ws)| ws.iter().map(move |w| (r, w)))
        {
            let channel = worker.channel as usize;
            for copy in 0..copies[channel] {
                let link = |l: LinkId| LinkId(first_link[l.0 as usize] + copy);
                let mut folds = worker.folds.clone();
                for fold in &mut folds {
                    fold.chunk = ChunkId(first_chunk[fold.chunk.0 as usize] + copy);
                    for source in &mut fold.sources {
                        match source {
                            Source::Link(l) | Source::Peer(l) => *l = link(*l),
                            Source::Input | Source::Output => {}
                        }
                    }
                    for sink in &mut fold.sinks {
                        match sink {
                            Sink::Link(l) | Sink::Peer(l) => *l = link(*l),
                            Sink::Output => {}
                        }
                    }
                }
                wide.workers[rank].push(Worker { channel: first[channel] + copy, role: worker.role, folds });
            }
        }
        Ok(wide)
    }
}

/// A share in lowest terms.
fn share(begin: u64, end: u64, of: u64) -> Result<Share> {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let common = gcd(gcd(begin, end), of).max(1);
    let narrow = |x: u64| u32::try_from(x / common);
    match (narrow(begin), narrow(end), narrow(of)) {
        (Ok(begin), Ok(end), Ok(of)) => Ok(Share { begin, end, of }),
        _ => {
            Err(Error::invalid_value("share of a channel", format!("{begin} of {of}"), "numbers below 2^32"))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::{ALGORITHMS, Request, build, verify};
    use crate::types::Collective;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn weighing_and_widening_keep_schedules_right(
            ranks in 2usize..5, which in 0usize..5,
            weights in prop::collection::vec((1u32..9, 1u32..4), 1..4), root in any::<prop::sample::Index>(),
        ) {
            let root = root.index(ranks);
            let collective = [
                Collective::AllReduce,
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Broadcast { root },
                Collective::Reduce { root },
            ][which];
            let (weights, copies): (Vec<_>, Vec<_>) = weights.into_iter().unzip();
            for algorithm in ALGORITHMS.iter().filter(|a| a.supports(collective)) {
                let s = build(algorithm.name(), &Request::new(collective, ranks, weights.len())).unwrap();
                let weighed = s.weighted(&weights).unwrap();
                verify(&weighed, 2).unwrap();
                let wide = weighed.widened(&copies).unwrap();
                prop_assert_eq!(wide.channels, copies.iter().sum::<u32>());
                verify(&wide, 2).unwrap();
            }
        }
    }

    #[test]
    fn weights_that_do_not_fit_are_refused() {
        let s = build("ring", &Request::new(Collective::AllReduce, 3, 2)).unwrap();
        assert!(s.clone().weighted(&[1]).is_err() && s.clone().weighted(&[1, 0]).is_err());
        assert!(s.widened(&[1]).is_err() && s.widened(&[0, 1]).is_err());
        assert!(s.weighted(&[1, 2]).unwrap().weighted(&[1, 1]).is_err());
    }
}
