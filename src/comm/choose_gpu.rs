//! How a call on GPU ranks is carried out: as its plan says, or by a rule where there is no plan.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::config::{Config, Subsystem};
use super::log::Log;
use super::machine::{Machine, size_class};
use crate::engine::cuda::{Cut, Prepared, abi};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::schedule::{self, Encoding, Request, Schedule};
use crate::transport::gpu::Layout;
use crate::types::Collective;

/// Up to so many bytes of a block, packets of 16 bytes are quicker than lines of 128.
const PACKET16_BYTES: usize = 32 << 10;

/// Below so many bytes a lane, measured on two H200s, another lane costs more than it brings.
const BYTES_A_LANE: usize = 32 << 10;

/// Tiles are not made smaller than this for the sake of more slots.
const SMALL_TILE: u32 = 64 << 10;

/// Blocks that add at the speed at which copy engines bring: three bytes of memory for each on the wire.
const ADD_BLOCKS: u32 = 32;

/// What a wire moves in the time one more step takes: 1.3 µs at 365 GB/s.
const ONE_STEP_BYTES: usize = 474 << 10;

/// How the calls of one collective and class of sizes are carried out; the same on all ranks.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// By one exchange of packets.
    Exchange(Encoding),
    /// By a device program.
    Program(Arc<Prepared>, Cut),
}

/// A way, and the plan it follows, if it follows one.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) way: Way,
    plan: Option<Arc<Plan>>,
}

/// Chooses for one communicator, and remembers.
#[derive(Debug)]
pub(super) struct Chooser {
    pub(super) machine: Machine,
    pub(super) config: Config,
    pub(super) log: Log,
    /// How link memory is divided; `None` for one rank.
    pub(super) layout: Option<Layout>,
    /// Whether every path keeps 128-byte stores whole.
    pub(super) keeps_lines: bool,
    /// The ranks on each device.
    pub(super) crowds: Vec<Vec<usize>>,
    /// Blocks that all ranks of a device may have together.
    pub(super) device_blocks: u32,
    pub(super) known: Mutex<HashMap<(Collective, usize), Chosen>>,
    pub(super) prepared: Mutex<Vec<(Arc<Schedule>, Arc<Prepared>)>>,
}

impl Chooser {
    fn ranks(&self) -> usize {
        self.machine.gpus().len()
    }

    /// Lanes that a rank's worker may have, were it the only one.
    pub(super) fn blocks_per_rank(&self) -> u32 {
        let crowd = self.crowds.iter().map(Vec::len).max().unwrap_or(1).max(1) as u32;
        (self.device_blocks / crowd).max(1)
    }

    /// Chooses for a message of `bytes`.
    ///
    /// # Errors
    /// What [`Machine::plan`] and [`Prepared::new`] refuse.
    pub(super) fn choose(&self, collective: Collective, bytes: usize) -> Result<Chosen> {
        let key = (collective, size_class(bytes));
        if let Some(known) = self.known.lock().get(&key) {
            return Ok(known.clone());
        }
        let chosen = match self.config.channels {
            Some(channels) => self.by_rule(collective, key.1, channels)?,
            None => match self.by_plan(collective, key.1) {
                Err(Error::NoPlan { request, reason }) => {
                    self.log.warn([format!("no plan for {request}: {reason}; following a rule by size")]);
                    self.by_rule(collective, key.1, 1)?
                }
                chosen => chosen?,
            },
        };
        if let Some(plan) = &chosen.plan {
            self.log.info(Subsystem::Tuning, || [plan.summary()]);
        }
        self.known.lock().insert(key, chosen.clone());
        Ok(chosen)
    }

    /// Whether no two ranks share a device.
    pub(super) fn alone(&self) -> bool {
        self.crowds.iter().all(|crowd| crowd.len() == 1)
    }

    /// Blocks of the kernel that adds what copy engines have brought.
    pub(super) fn add_blocks(&self) -> u32 {
        ADD_BLOCKS.min(self.blocks_per_rank())
    }

    /// The plan that calls of this size follow.
    ///
    /// # Errors
    /// Those of planning; [`Error::Unavailable`] if they follow a rule.
    pub(super) fn explain(&self, collective: Collective, bytes: usize) -> Result<Arc<Plan>> {
        if let Some(plan) = self.choose(collective, bytes)?.plan {
            return Ok(plan);
        }
        // No plan is an error of its own.
        if self.config.channels.is_none() {
            self.machine.plan(collective, bytes)?;
        }
        Err(Error::Unavailable {
            what: format!("a plan for {} of {bytes} bytes", collective.name()),
            reason:
                "Config::channels (or RINGLEADER_CHANNELS) sets the schedule's shape by hand; leave it out"
                    .into(),
        })
    }

    fn by_plan(&self, collective: Collective, bytes: usize) -> Result<Chosen> {
        let plan = self.machine.plan(collective, bytes)?;
        if plan.encoding != Encoding::Bulk
            && self.fits(plan.encoding, bytes / collective.blocks(self.ranks()))
        {
            return Ok(Chosen { way: Way::Exchange(plan.encoding), plan: Some(plan) });
        }
        let plan = match plan.encoding {
            Encoding::Bulk => plan,
            // The planner knows no transports: where one breaks lines up, or boxes are small, bulk is what is left.
            _ => {
                let limits =
                    crate::plan::Limits { encodings: vec![Encoding::Bulk], ..self.machine.limits().clone() };
                self.machine.plan_within(collective, bytes, limits)?
            }
        };
        let (prepared, repeats, lanes) = self.fit(&plan)?;
        // One rank copies, or scales: the plan of a machine has nothing to say about that.
        let lanes = if self.ranks() == 1 { bytes.div_ceil(BYTES_A_LANE) as u32 } else { lanes };
        let lanes = self.config.lanes.unwrap_or(lanes);
        let mut cut = self.cut(&prepared, lanes, plan.tile_bytes, bytes)?;
        // Plans count on a few slots a link; there is memory for so many of smaller ones.
        while self.config.tile_bytes.is_none()
            && cut.depth_lent < plan.depth
            && cut.tile_bytes > SMALL_TILE
            && self.layout.is_some()
        {
            cut = self.cut(&prepared, lanes, cut.tile_bytes as usize / 2, bytes)?;
        }
        // What is explained is what runs.
        let mut plan = Plan::clone(&plan);
        plan.lanes = repeats.iter().map(|repeat| repeat * cut.lanes).collect();
        plan.blocks = prepared.workers() * cut.lanes;
        (plan.tile_bytes, plan.depth) = (cut.tile_bytes as usize, cut.depth);
        Ok(Chosen { way: Way::Program(prepared, cut), plan: Some(Arc::new(plan)) })
    }

    /// The plan's schedule for an engine whose workers all have as many lanes: channels with more than others are repeated.
    fn fit(&self, plan: &Plan) -> Result<(Arc<Prepared>, Vec<u32>, u32)> {
        let mut refused = None;
        for most in [32, 16, 8, 4, 2, 1] {
            let (repeats, lanes) = share_out(&plan.lanes, most);
            if repeats.iter().sum::<u32>() > abi::RL_MAX_WORKERS && most > 1 {
                continue;
            }
            let schedule = match repeats.iter().all(|&repeat| repeat == 1) {
                true => plan.schedule.clone(),
                false => Arc::new(plan.schedule.widened(&repeats)?),
            };
            match self.prepare(schedule) {
                Ok(prepared) => return Ok((prepared, repeats, lanes)),
                Err(why @ Error::NoPlan { .. }) => refused = Some(why),
                Err(why) => return Err(why),
            }
        }
        Err(refused.unwrap_or_else(|| Error::NoPlan {
            request: plan.schedule.name(),
            reason: "it has no channels".into(),
        }))
    }

    fn prepare(&self, schedule: Arc<Schedule>) -> Result<Arc<Prepared>> {
        let mut prepared = self.prepared.lock();
        if let Some((_, known)) = prepared.iter().find(|(known, _)| *known == schedule) {
            return Ok(known.clone());
        }
        let new = Arc::new(Prepared::new(schedule.clone())?);
        prepared.push((schedule, new.clone()));
        Ok(new)
    }

    /// Cuts for a message so that the blocks of all ranks of a device are resident together, and the links' slots fit.
    fn cut(&self, prepared: &Prepared, lanes: u32, tile_bytes: usize, bytes: usize) -> Result<Cut> {
        let workers = |ranks: &Vec<usize>| ranks.iter().map(|&rank| prepared.workers_of(rank)).sum::<u32>();
        let most_workers = self.crowds.iter().map(workers).max().unwrap_or(1).max(1);
        if most_workers > self.device_blocks {
            return Err(Error::NoPlan {
                request: prepared.schedule().name(),
                reason: format!(
                    "a device's ranks would need {most_workers} blocks, it has room for {}",
                    self.device_blocks
                ),
            });
        }
        let lanes = lanes.clamp(1, self.device_blocks / most_workers);
        let tile = (tile_bytes as u32).max(prepared.least_tile(bytes, lanes));
        Ok(prepared.cut(lanes, tile, self.layout.as_ref().map_or(0, |layout| layout.fifo)))
    }

    /// Whether a block of so many bytes can travel like this.
    fn fits(&self, encoding: Encoding, bytes: usize) -> bool {
        let Some(layout) = &self.layout else { return encoding == Encoding::Bulk };
        match encoding {
            Encoding::Bulk => true,
            Encoding::Packet16 => bytes <= layout.capacity16(),
            Encoding::Packet128 => bytes <= layout.capacity128() && self.keeps_lines,
        }
    }

    /// Chooses without a plan: a schedule of the shape that was asked for.
    fn by_rule(&self, collective: Collective, bytes: usize, channels: usize) -> Result<Chosen> {
        let encoding = self.encoding_by_rule(collective, bytes);
        if encoding != Encoding::Bulk {
            return Ok(Chosen { way: Way::Exchange(encoding), plan: None });
        }
        let able =
            |name: &str| schedule::ALGORITHMS.iter().find(|a| a.name() == name && a.supports(collective));
        let forced = self.config.algorithm.as_deref().and_then(able);
        let algorithm = forced.or_else(|| able("direct")).or_else(|| able("ring"));
        let algorithm = algorithm.expect("a ring can do every collective").name();
        let request = Request::new(collective, self.ranks(), channels);
        let prepared = self.prepare(Arc::new(schedule::build(algorithm, &request)?))?;
        // A ring's workers wait in turn: it gains nothing beyond 64.
        let most = if algorithm == "ring" { 64 } else { self.device_blocks };
        let lanes = (bytes / self.ranks() / BYTES_A_LANE).clamp(1, most.max(1) as usize) as u32;
        let tile = self.config.tile_bytes.unwrap_or(64 << 10);
        let cut = self.cut(&prepared, self.config.lanes.unwrap_or(lanes), tile, bytes)?;
        Ok(Chosen { way: Way::Program(prepared, cut), plan: None })
    }

    /// Packets for what fits their boxes and is small enough that one step beats two, or as the configuration says, where
    /// the message allows it.
    fn encoding_by_rule(&self, collective: Collective, bytes: usize) -> Encoding {
        let n = self.ranks();
        let block = bytes / collective.blocks(n);
        if n == 1 {
            return Encoding::Bulk;
        }
        if let Some(forced) = self.config.encoding {
            return if self.fits(forced, block) { forced } else { Encoding::Bulk };
        }
        if self.config.algorithm.as_deref().is_some_and(|a| a != "one_shot") {
            return Encoding::Bulk;
        }
        // One step moves (n-1) times the bytes where everybody, or the root, needs everything; beyond two ranks it wins
        // only while that costs less than a second step does.
        let whole = !matches!(collective, Collective::AllGather | Collective::ReduceScatter);
        let most = if whole && n > 2 { ONE_STEP_BYTES * n / ((n - 1) * (n - 2)) } else { usize::MAX };
        let wanted = if block <= PACKET16_BYTES { Encoding::Packet16 } else { Encoding::Packet128 };
        if block <= most && self.fits(wanted, block) { wanted } else { Encoding::Bulk }
    }
}

/// Lanes of channels as repeats of each, at most `most`, of so many lanes each: exactly where that is possible, else about.
fn share_out(lanes: &[u32], most: u32) -> (Vec<u32>, u32) {
    let divisor = lanes.iter().copied().fold(0, gcd).max(1);
    let heaviest = lanes.iter().copied().max().unwrap_or(1).max(1);
    if heaviest / divisor <= most {
        return (lanes.iter().map(|l| (l / divisor).max(1)).collect(), divisor);
    }
    let repeats: Vec<u32> = lanes.iter().map(|l| ((l * most + heaviest / 2) / heaviest).max(1)).collect();
    let lanes = lanes.iter().sum::<u32>() / repeats.iter().sum::<u32>();
    (repeats, lanes.max(1))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_become_repeats() {
        assert_eq!(share_out(&[8, 8], 32), (vec![1, 1], 8));
        assert_eq!(share_out(&[12, 8, 4], 32), (vec![3, 2, 1], 4));
        // Too fine for one repeat in three: about in proportion, and no more lanes than before.
        assert_eq!(share_out(&[31, 16, 1], 4), (vec![4, 2, 1], 6));
        assert_eq!(share_out(&[31, 16, 1], 1), (vec![1, 1, 1], 16));
    }
}
