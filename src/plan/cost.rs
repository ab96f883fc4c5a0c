//! What a candidate costs at a message size: tiles, blocks, encoding, and the time that the clock predicts.
//!
//! Bulk transfers are simulated. Packets are one step that every block does for itself, so their time is a formula.

use super::candidate::Candidate;
use super::machine::Machine;
use super::model::CostModel;
use super::planner::Limits;
use crate::Result;
use crate::schedule::Encoding;
use crate::schedule::simulate::{Placement, Setup, busy_times, simulate_placed};

/// The slots of a link: smaller ones cost bandwidth fast on real wires, larger ones take memory.
const LEAST_TILE: usize = 64 << 10;
const MOST_TILE: usize = 256 << 10;

/// Most lanes of a worker; more gain nothing on any link.
const MOST_LANES: u32 = 64;

/// A candidate that is cut for a size.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) encoding: Encoding,
    pub(crate) lanes: Vec<u32>,
    pub(crate) tile_bytes: usize,
    /// Thread blocks of the rank with most of them.
    pub(crate) blocks: u32,
    placement: Placement,
    setup: Setup,
    /// From the launch to the first byte, for what is simulated; the whole time for packets.
    start_us: f64,
    /// A rough time, in microseconds: the busiest wire or block, and what fills the pipeline.
    pub(crate) rough_us: f64,
}

/// The encodings that suit a candidate at a size.
pub(crate) fn encodings(
    machine: &Machine,
    candidate: &Candidate,
    bytes: usize,
    limits: &Limits,
) -> Vec<Encoding> {
    // Packets carry what is done in one step, by as many blocks as it takes: channels are of no use to them.
    let packets = candidate.steps == 1 && candidate.is_mesh() && candidate.schedule.channels == 1;
    let block = bytes / candidate.schedule.collective.blocks(candidate.schedule.ranks);
    let ranks = candidate.schedule.ranks;
    let fits = |encoding: &Encoding| match encoding {
        Encoding::Bulk => true,
        Encoding::Packet16 => packets && block <= limits.packet16_bytes(),
        Encoding::Packet128 => packets && block <= limits.packet128_bytes(ranks) && machine.nvlink_only,
    };
    let allowed = |encoding: &Encoding| limits.encodings.is_empty() || limits.encodings.contains(encoding);
    Encoding::ALL.into_iter().filter(fits).filter(allowed).collect()
}

/// A candidate in packets.
fn cut_packets(
    machine: &Machine,
    candidate: &Candidate,
    costs: &CostModel,
    bytes: usize,
    encoding: Encoding,
    limits: &Limits,
) -> Result<Cut> {
    let schedule = &candidate.schedule;
    let block = bytes / schedule.collective.blocks(schedule.ranks);
    let setup = Setup { wire_efficiency: encoding.efficiency() * costs.packet_share, ..Setup::new(bytes) };
    let placement = Placement { routes: candidate.routes.clone(), lanes: vec![1] };
    let wire_us = busy_times(schedule, &machine.network, &placement, &setup)?.into_iter().fold(0.0, f64::max);
    let base = if encoding == Encoding::Packet16 { costs.packet16_us } else { costs.packet128_us };
    // Beyond a few words the loads and stores of one thread no longer overlap completely.
    let filled = costs.packet_fill_us * (block as f64 / (block as f64 + 4096.0));
    let time_us = base + machine.longest_us() + filled + wire_us;
    let crowd = machine.ranks_on.iter().map(Vec::len).max().unwrap_or(1).max(1) as u32;
    let per_block = if encoding == Encoding::Packet16 { 4096 } else { 7680 };
    let blocks = (block.div_ceil(per_block) as u32).clamp(1, (limits.max_blocks / crowd).max(1));
    Ok(Cut {
        encoding,
        lanes: vec![1],
        tile_bytes: limits.tile_bytes.unwrap_or(4 << 10),
        blocks,
        placement,
        setup,
        start_us: time_us,
        rough_us: time_us,
    })
}

/// Cuts a candidate for a size; `None` where it needs more blocks or workers than there may be.
pub(crate) fn cut(
    machine: &Machine,
    candidate: &Candidate,
    costs: &CostModel,
    bytes: usize,
    encoding: Encoding,
    limits: &Limits,
) -> Result<Option<Cut>> {
    if encoding != Encoding::Bulk {
        return cut_packets(machine, candidate, costs, bytes, encoding, limits).map(Some);
    }
    let schedule = &candidate.schedule;
    let most_workers = schedule.workers.iter().map(Vec::len).max().unwrap_or(0);
    if limits.max_workers.is_some_and(|most| most_workers > most)
        || limits.max_channels.is_some_and(|most| schedule.channels as usize > most)
    {
        return Ok(None);
    }
    let fold_us = costs.fold_us;
    let mut setup = Setup {
        depth: limits.depth,
        fold_us,
        lane_gbs: costs.lane_gbs,
        lent: limits.p2p,
        ..Setup::new(bytes)
    };
    let mut placement = Placement { routes: candidate.routes.clone(), lanes: Vec::new() };
    let wire_us = busy_times(schedule, &machine.network, &placement, &setup)?.into_iter().fold(0.0, f64::max);
    let block = bytes / schedule.collective.blocks(schedule.ranks);
    let length: Vec<usize> = schedule.chunks.iter().map(|chunk| chunk.range(block, 1).len()).collect();

    // What each channel's busiest worker has to move by itself, and the longest chunk.
    let mut work_us = vec![0.0f64; schedule.channels as usize];
    let mut longest = vec![0usize; schedule.channels as usize];
    let mut folds = 1;
    for worker in schedule.workers.iter().flatten() {
        let channel = worker.channel as usize;
        let moved = |f: &crate::schedule::Fold| {
            length[f.chunk.0 as usize] as f64 * f.sources.len().max(f.sinks.len()) as f64
        };
        let work = worker.folds.iter().map(moved).sum::<f64>() / setup.lane_gbs / 1e3;
        work_us[channel] = work_us[channel].max(work);
        let chunks = worker.folds.iter().map(|f| length[f.chunk.0 as usize]).max().unwrap_or(0);
        longest[channel] = longest[channel].max(chunks);
        folds = folds.max(worker.folds.len());
    }
    let Some(lanes) = choose_lanes(machine, candidate, costs, &work_us, &longest, wire_us, limits) else {
        return Ok(None);
    };

    let busiest =
        work_us.iter().zip(&lanes).map(|(work, &lanes)| work / f64::from(lanes)).fold(wire_us, f64::max);
    // The first tile passes all steps before the last rank has it, and each tile costs its folds' overhead: the number of
    // tiles at which both together are least.
    // While one lane of a worker pays the overhead, the others have the wire.
    let overhead_us = fold_us / f64::from(lanes.iter().copied().min().unwrap_or(1));
    let tiles = ((candidate.steps as f64 * busiest.max(1e-3) / overhead_us).sqrt() / folds as f64).max(1.0);
    let longest = longest
        .iter()
        .zip(&lanes)
        .map(|(&bytes, &lanes)| bytes as f64 / f64::from(lanes))
        .fold(0.0, f64::max);
    let tile = (longest / tiles).ceil() as usize;
    setup.tile_bytes = limits.tile_bytes.unwrap_or(tile.next_multiple_of(128).clamp(LEAST_TILE, MOST_TILE));
    placement.lanes = lanes.clone();
    let steps_us = (candidate.steps + 1) as f64 * fold_us + candidate.steps as f64 * machine.longest_us();
    // At the best number of tiles the filling of the pipeline and the overheads take as long; the channels hide the latter.
    let filling_us = (candidate.steps.saturating_sub(1) as f64 * busiest * overhead_us).sqrt();
    Ok(Some(Cut {
        blocks: most_blocks(machine, candidate, &lanes).1,
        tile_bytes: setup.tile_bytes,
        start_us: costs.bulk_us,
        rough_us: costs.bulk_us + steps_us.max(busiest + filling_us),
        encoding,
        lanes,
        placement,
        setup,
    }))
}

/// The time that is predicted, in microseconds.
pub(crate) fn predict(machine: &Machine, candidate: &Candidate, cut: &Cut) -> Result<f64> {
    if cut.encoding != Encoding::Bulk {
        return Ok(cut.start_us);
    }
    let simulated = simulate_placed(&candidate.schedule, &machine.network, &cut.placement, &cut.setup)?;
    Ok(cut.start_us + simulated.time_us)
}

/// The most blocks of a GPU, and of a rank.
fn most_blocks(machine: &Machine, candidate: &Candidate, lanes: &[u32]) -> (u32, u32) {
    let of_rank = |rank: usize| -> u32 {
        candidate.schedule.workers[rank].iter().map(|w| lanes[w.channel as usize]).sum()
    };
    // Where all ranks share one GPU the graph has a node for each, but there is one GPU all the same.
    let on_one = machine.is_one_gpu();
    let of_gpus: Vec<u32> =
        machine.ranks_on.iter().map(|ranks| ranks.iter().map(|&r| of_rank(r)).sum()).collect();
    let of_gpu = if on_one { of_gpus.iter().sum() } else { of_gpus.into_iter().max().unwrap_or(0) };
    (of_gpu, (0..machine.ranks()).map(of_rank).max().unwrap_or(0))
}

/// Lanes for each channel: enough that blocks keep up with the wires, and in proportion to what channels carry, so
/// that each gets its part of a shared link. As few as come near both.
fn choose_lanes(
    machine: &Machine,
    candidate: &Candidate,
    costs: &CostModel,
    work_us: &[f64],
    longest: &[usize],
    wire_us: f64,
    limits: &Limits,
) -> Option<Vec<u32>> {
    let weights = &candidate.weights;
    let useful: Vec<u32> = longest
        .iter()
        .map(|&bytes| (bytes / costs.bytes_a_lane).clamp(1, MOST_LANES as usize) as u32)
        .collect();
    let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
    let heaviest = weights.iter().copied().max().map_or(1.0, f64::from);
    let mut best: Option<(f64, Vec<u32>)> = None;
    for most in 1..=MOST_LANES {
        let lanes: Vec<u32> = weights
            .iter()
            .zip(&useful)
            .map(|(&w, &useful)| {
                ((f64::from(w) / heaviest * f64::from(most)).round() as u32).clamp(1, useful)
            })
            .collect();
        if most_blocks(machine, candidate, &lanes).0 > limits.max_blocks {
            break;
        }
        if best.as_ref().is_some_and(|(_, known)| *known == lanes) {
            continue;
        }
        let sum: f64 = lanes.iter().map(|&l| f64::from(l)).sum();
        // The part of its due that the worst served channel gets.
        let fair = lanes
            .iter()
            .zip(weights)
            .map(|(&l, &w)| f64::from(l) / sum / (f64::from(w) / total))
            .fold(1.0, f64::min);
        let slow = work_us.iter().zip(&lanes).map(|(work, &l)| work / f64::from(l)).fold(0.0, f64::max);
        // More blocks than keep up still gain a little, for they do not all wait at once.
        let keeps_up = if wire_us > 0.0 { 1.0 / (1.0 + costs.lane_loss * slow / wire_us) } else { 1.0 };
        let score = fair * keeps_up;
        // A block more has to gain something.
        if best.as_ref().is_none_or(|(known, before)| {
            score
                > known + 4e-4 * (sum - f64::from(before.iter().sum::<u32>())).max(1.0) / before.len() as f64
        }) {
            best = Some((score, lanes));
        }
        if score > 0.995 {
            break;
        }
    }
    let (_, mut lanes) = best?;
    if let Some(least) = limits.min_blocks {
        while most_blocks(machine, candidate, &lanes).1 < least {
            let more: Vec<u32> = lanes.iter().map(|lanes| lanes + 1).collect();
            if most_blocks(machine, candidate, &more).0 > limits.max_blocks {
                break;
            }
            lanes = more;
        }
    }
    Some(lanes)
}

/// What predicting a candidate costs, in no particular unit.
pub(crate) fn effort(candidate: &Candidate) -> usize {
    candidate.schedule.workers.iter().flatten().map(|worker| worker.folds.len()).sum()
}
