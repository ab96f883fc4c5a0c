//! Simulation: runs a schedule with a clock, to predict how long it takes.
//!
//! The machine is a [`Network`]: what stands between each ordered pair of ranks, as resources with a bandwidth that
//! everything on them shares, and a latency. A fold that has data and free slots takes its overhead, then moves its
//! tile to all of its link sinks at once; what moves at the same time shares each resource fairly (max-min: nobody
//! can get more without somebody who has less getting even less). When all of it has moved, the slots are published,
//! and arrive one latency later; the credits for the drained slots go back likewise. Everything else, the order of
//! folds, tiles, FIFO depth, is as executed.
//!
//! *Lanes* run side by side on parts of the same chunks and share the same wires, so they are not simulated one by
//! one: `L` lanes are one worker whose tiles are `L` times as large, whose own speed is `L` times as high, whose
//! overhead is an `L`-th after the first tile, as lanes drift apart, and whose transfers get `L` shares of a resource. Channels may have different numbers of lanes ([`Placement`]): that is how
//! trees that are to carry unequal parts of the message get unequal parts of a link.
//!
//! *Channels* run side by side too. Were they to start at the same moment, like channels would for ever move and wait at
//! the same times, which blocks on a device never do, and the wires would idle meanwhile. So in messages of many tiles
//! channels begin a little apart, all within the time that a fold may wait for: one latency and one fold's overhead.
//!
//! # Long messages
//!
//! A long message repeats itself tile after tile. When the clock has seen the same stretch twice, it skips as many
//! more repetitions as every chunk has room for, and goes on from there (`steady`). What it takes to find the result hardly
//! depends on the size of the message; on machines so uneven that nothing repeats itself, the result may be off by a
//! percent or two.
//!
//! # Bound
//!
//! Every byte on a resource takes its time there, so no schedule is faster than its busiest resource:
//! [`Prediction::bound_us`]. A prediction never falls below it.

mod clock;
mod sharing;
mod steady;

use super::verify::Wiring;
use super::{LinkId, Schedule};
use crate::error::{Error, Result};

/// Something with a bandwidth that concurrent transfers share: a link in one direction, a port, a bus.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Its name, for reports: `GPU 3 NVLink out`.
    pub name: String,
    /// Its bandwidth in GB/s.
    pub gbs: f64,
}

/// How bytes get from one rank to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path {
    /// Indices of the resources that each byte passes, in [`Network::resources`]; none if the way is free.
    pub resources: Vec<usize>,
    /// From the end of a transfer until the other side can see it, in microseconds.
    pub latency_us: f64,
}

/// The machine as a simulation sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// What transfers share.
    pub resources: Vec<Resource>,
    /// `paths[from][to]`; those from a rank to itself are not used.
    pub paths: Vec<Vec<Path>>,
}

impl Network {
    /// Ranks around one switch: each has a port of `gbs` GB/s in each direction.
    pub fn switch(ranks: usize, gbs: f64, latency_us: f64) -> Self {
        let port = |r: usize, way| Resource { name: format!("rank {r} {way}"), gbs };
        Network {
            resources: (0..ranks).flat_map(|r| [port(r, "out"), port(r, "in")]).collect(),
            paths: (0..ranks)
                .map(|from| {
                    let path = |to: usize| Path { resources: vec![2 * from, 2 * to + 1], latency_us };
                    (0..ranks).map(path).collect()
                })
                .collect(),
        }
    }

    /// Checks that the network connects so many ranks and that its figures can be computed with.
    fn check(&self, ranks: usize) -> Result<()> {
        if self.paths.len() != ranks || self.paths.iter().any(|row| row.len() != ranks) {
            let rows = self.paths.len();
            return Err(Error::invalid_value(
                "network paths",
                format!("{rows} rows"),
                format!("{ranks} × {ranks}"),
            ));
        }
        for r in &self.resources {
            if !(r.gbs > 0.0 && r.gbs.is_finite()) {
                return Err(Error::invalid_value(
                    format!("bandwidth of {}", r.name),
                    r.gbs.to_string(),
                    "GB/s above 0",
                ));
            }
        }
        for (from, row) in self.paths.iter().enumerate() {
            for (to, path) in row.iter().enumerate() {
                self.check_path(&format!("path from {from} to {to}"), path)?;
            }
        }
        Ok(())
    }

    fn check_path(&self, name: &str, path: &Path) -> Result<()> {
        if let Some(r) = path.resources.iter().find(|&&r| r >= self.resources.len()) {
            let expected = format!("below {}", self.resources.len());
            return Err(Error::invalid_value(name, format!("resource {r}"), expected));
        }
        check_duration(name, path.latency_us)
    }
}

/// How one schedule lies on a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// The path of each link of the schedule; if empty, links take [`Network::paths`]. Trees that join the same two ranks
    /// over different wires need this.
    pub routes: Vec<Path>,
    /// The lanes of each channel; if empty, every channel has [`Setup::lanes`].
    pub lanes: Vec<u32>,
}

impl Placement {
    fn path<'a>(&'a self, schedule: &Schedule, network: &'a Network, link: LinkId) -> &'a Path {
        let l = schedule.links[link.0 as usize];
        self.routes.get(link.0 as usize).unwrap_or(&network.paths[l.from][l.to])
    }

    fn lanes_of(&self, channel: u32, setup: &Setup) -> u32 {
        self.lanes.get(channel as usize).copied().unwrap_or(setup.lanes)
    }

    fn check(&self, schedule: &Schedule, network: &Network) -> Result<()> {
        let sized = |name: &str, have: usize, want: usize| match have == 0 || have == want {
            true => Ok(()),
            false => Err(Error::invalid_value(name, format!("{have} entries"), format!("none or {want}"))),
        };
        sized("routes", self.routes.len(), schedule.links.len())?;
        sized("lanes of channels", self.lanes.len(), schedule.channels as usize)?;
        if self.lanes.contains(&0) {
            return Err(Error::invalid_value("lanes of channels", "0", "at least 1 for each"));
        }
        for (link, path) in self.routes.iter().enumerate() {
            network.check_path(&format!("route of link {link}"), path)?;
        }
        Ok(())
    }
}

/// How the schedule is executed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Bytes of the whole message.
    pub bytes: usize,
    /// Slots a link.
    pub depth: u32,
    /// Bytes of a slot: the tile of one lane.
    pub tile_bytes: usize,
    /// Lanes of each worker.
    pub lanes: u32,
    /// What each fold costs for every tile before it moves a byte, in microseconds.
    pub fold_us: f64,
    /// How fast one lane of a worker reads or writes one operand, in GB/s; infinite if only the wires count.
    pub lane_gbs: f64,
    /// Whether peers write outputs themselves, as they can where memory is mapped: then what a peer sink writes needs no slot,
    /// and a fold that would only take it out has nothing to do.
    pub lent: bool,
    /// Bytes of data for each byte on the wire: 1 for bulk, 1/2 for packet16, 120/128 for packet128.
    pub wire_efficiency: f64,
}

impl Setup {
    /// Bulk transfers of `bytes` with 4 slots of 512 KiB, one lane, and no cost but the wires'.
    pub fn new(bytes: usize) -> Self {
        Setup {
            bytes,
            depth: 4,
            tile_bytes: 512 << 10,
            lanes: 1,
            fold_us: 0.0,
            lane_gbs: f64::INFINITY,
            lent: false,
            wire_efficiency: 1.0,
        }
    }

    fn check(&self) -> Result<()> {
        let positive = |name: &str, value: f64| match value > 0.0 {
            true => Ok(()),
            false => Err(Error::invalid_value(name, value.to_string(), "above 0")),
        };
        positive("depth", f64::from(self.depth))?;
        positive("tile_bytes", self.tile_bytes as f64)?;
        positive("lanes", f64::from(self.lanes))?;
        positive("lane_gbs", self.lane_gbs)?;
        positive("wire_efficiency", self.wire_efficiency)?;
        check_duration("fold_us", self.fold_us)
    }
}

fn check_duration(name: &str, us: f64) -> Result<()> {
    match us >= 0.0 && us.is_finite() {
        true => Ok(()),
        false => Err(Error::invalid_value(name, format!("{us} µs"), "0 or more")),
    }
}

/// What a simulation finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// From the first fold's start to the last one's end, in microseconds.
    pub time_us: f64,
    /// The time its busiest resource needs for the bytes it has to carry: no execution can be faster.
    pub bound_us: f64,
    /// For each resource the share of the time it is busy.
    pub busy: Vec<f64>,
}

impl Prediction {
    /// Algorithm bandwidth in GB/s of a message of so many bytes; 0 for an empty one.
    pub fn algorithm_gbs(&self, bytes: usize) -> f64 {
        if self.time_us > 0.0 { bytes as f64 / self.time_us / 1e3 } else { 0.0 }
    }
}

/// Predicts the time of a verified schedule on a network.
///
/// ```
/// use ringleader::Collective;
/// use ringleader::schedule::{self, simulate};
///
/// let ring = schedule::build("ring", &schedule::Request::new(Collective::AllReduce, 4, 4))?;
/// let network = simulate::Network::switch(4, 100.0, 1.0);
/// let seen = simulate::simulate(&ring, &network, &simulate::Setup::new(1 << 30))?;
/// // A rank sends 3/2 of the message at 100 GB/s.
/// assert!((seen.bound_us - 1.5 * (1 << 30) as f64 / 100e3).abs() < 1.0);
/// assert!(seen.time_us >= seen.bound_us && seen.time_us < 1.05 * seen.bound_us);
/// # Ok::<(), ringleader::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidValue`] naming what is wrong in the network or the setup; [`Error::InvalidSchedule`] if the schedule
/// is malformed or stops before its end, which [`verify`](super::verify()) excludes.
pub fn simulate(schedule: &Schedule, network: &Network, setup: &Setup) -> Result<Prediction> {
    simulate_placed(schedule, network, &Placement::default(), setup)
}

/// As [`simulate`], with routes and lanes of the schedule's own.
///
/// # Errors
/// As [`simulate`]; [`Error::InvalidValue`] also for a placement that does not fit the schedule.
pub fn simulate_placed(
    schedule: &Schedule,
    network: &Network,
    placement: &Placement,
    setup: &Setup,
) -> Result<Prediction> {
    simulate_with(schedule, network, placement, setup, true)
}

/// How long each resource is busy with the bytes that the schedule sends over it, in microseconds, without
/// running it.
///
/// # Errors
/// As [`simulate_placed`].
pub fn busy_times(
    schedule: &Schedule,
    network: &Network,
    placement: &Placement,
    setup: &Setup,
) -> Result<Vec<f64>> {
    network.check(schedule.ranks)?;
    setup.check()?;
    placement.check(schedule, network)?;
    Ok(busy_us(schedule, network, placement, setup, &chunk_bytes(schedule, setup)))
}

fn chunk_bytes(schedule: &Schedule, setup: &Setup) -> Vec<usize> {
    let block = setup.bytes / schedule.collective.blocks(schedule.ranks);
    schedule.chunks.iter().map(|c| c.range(block, 1).len()).collect()
}

/// As [`simulate_placed`]; `skip` allows the clock to skip what repeats itself.
fn simulate_with(
    schedule: &Schedule,
    network: &Network,
    placement: &Placement,
    setup: &Setup,
    skip: bool,
) -> Result<Prediction> {
    network.check(schedule.ranks)?;
    setup.check()?;
    placement.check(schedule, network)?;
    let refuse = |reason| Error::InvalidSchedule { schedule: schedule.name(), reason };
    let wiring = Wiring::new(schedule).map_err(refuse)?;
    let bytes = chunk_bytes(schedule, setup);
    let busy_us = busy_us(schedule, network, placement, setup, &bytes);
    let bound_us = busy_us.iter().copied().fold(0.0, f64::max);
    let clock = clock::Clock::new(&wiring, network, placement, setup, &bytes);
    let stopped =
        |fold| refuse(format!("with {} slots a link it stops at {}", setup.depth, wiring.name(fold)));
    let time_us = clock.run(skip).map_err(stopped)?.max(bound_us);
    let busy = busy_us.iter().map(|b| if time_us > 0.0 { b / time_us } else { 0.0 }).collect();
    Ok(Prediction { time_us, bound_us, busy })
}

/// How long each resource needs for the bytes that the schedule sends over it.
fn busy_us(
    schedule: &Schedule,
    network: &Network,
    placement: &Placement,
    setup: &Setup,
    bytes: &[usize],
) -> Vec<f64> {
    let mut busy = vec![0.0; network.resources.len()];
    for fold in schedule.workers.iter().flatten().flat_map(|w| &w.folds) {
        let wire = bytes[fold.chunk.0 as usize] as f64 / setup.wire_efficiency;
        for link in fold.sinks.iter().filter_map(|s| s.link()) {
            for &r in &placement.path(schedule, network, link).resources {
                busy[r] += wire / (network.resources[r].gbs * 1e3);
            }
        }
    }
    busy
}

#[cfg(test)]
mod tests;
