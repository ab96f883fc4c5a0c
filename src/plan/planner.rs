//! The planner: tries what a machine allows, predicts, proves, and chooses.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::candidate::{Candidate, candidates};
use super::chosen::{Outlook, Plan};
use super::cost::{self, Cut};
use super::explain;
use super::machine::Machine;
use super::model::CostModel;
use crate::schedule::{self, Encoding, verify};
use crate::topology::{PathType, Topology};
use crate::{Collective, Error, Result};

/// What a plan may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Names of the algorithms to choose from; all if empty. Where none of them can do a collective, all may.
    pub algorithms: Vec<String>,
    /// The encodings to choose from; all if empty. Where none of them suits the message, it travels in bulk.
    pub encodings: Vec<Encoding>,
    /// Most thread blocks on one GPU, over all its ranks: all blocks of a plan have to be resident at once.
    pub max_blocks: u32,
    /// Blocks that a rank should at least have, where the others allow.
    pub min_blocks: Option<u32>,
    /// Most workers of one rank, before lanes; what an engine's program can hold.
    pub max_workers: Option<usize>,
    /// Most channels, before lanes.
    pub max_channels: Option<usize>,
    /// Bytes of a link's slot; chosen by size without.
    pub tile_bytes: Option<usize>,
    /// Most bytes of one rank's block in packets of 16 bytes; what the engine's boxes hold without.
    pub packet16_bytes: Option<usize>,
    /// The same in packets of 128 bytes.
    pub packet128_bytes: Option<usize>,
    /// Slots of a link, at least 2.
    pub depth: u32,
    /// Whether GPUs may write each other's memory. If not, data pass through host memory over PCIe, and NVLinks are not
    /// used.
    pub p2p: bool,
}

impl Default for Limits {
    /// Every algorithm and encoding, 128 blocks a GPU, 4 slots a link.
    fn default() -> Limits {
        Limits {
            algorithms: Vec::new(),
            encodings: Vec::new(),
            max_blocks: 128,
            min_blocks: None,
            max_workers: None,
            max_channels: None,
            tile_bytes: None,
            packet16_bytes: None,
            packet128_bytes: None,
            depth: 4,
            p2p: true,
        }
    }
}

impl Limits {
    pub(super) fn packet16_bytes(&self) -> usize {
        self.packet16_bytes.unwrap_or(64 << 10)
    }

    pub(super) fn packet128_bytes(&self, ranks: usize) -> usize {
        self.packet128_bytes.unwrap_or(if ranks == 2 { 4 << 20 } else { 512 << 10 })
    }

    fn check(&self) -> Result<()> {
        let known = || schedule::ALGORITHMS.iter().map(|a| a.name()).chain(["forest"]);
        for name in &self.algorithms {
            if !known().any(|known| known == name) {
                let all: Vec<&str> = known().collect();
                return Err(Error::invalid_value("algorithm", name, all.join(", ")));
            }
        }
        if self.max_blocks == 0 {
            return Err(Error::invalid_value("max_blocks", "0", "at least 1"));
        }
        if self.depth < 2 {
            return Err(Error::invalid_value("depth", self.depth.to_string(), "at least 2 slots a link"));
        }
        if let Some(bytes) = self.tile_bytes.filter(|bytes| !(128..=1 << 24).contains(bytes)) {
            return Err(Error::invalid_value("tile_bytes", bytes.to_string(), "128 to 16777216"));
        }
        Ok(())
    }
}

/// What is to be planned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanRequest {
    /// The collective; its root is a rank.
    pub collective: Collective,
    /// Bytes of the whole message: the output of all_gather, the input of reduce_scatter, the buffer of the others.
    pub bytes: usize,
    /// The GPU of each rank, by its index in the topology. Ranks may share a GPU. Empty: one rank on each GPU.
    pub ranks: Vec<usize>,
    /// What the plan may use.
    pub limits: Limits,
}

impl PlanRequest {
    /// A request for one rank on each GPU, without particular limits.
    pub fn new(collective: Collective, bytes: usize) -> PlanRequest {
        PlanRequest { collective, bytes, ranks: Vec::new(), limits: Limits::default() }
    }

    /// On these GPUs: rank `i` on GPU `ranks[i]`.
    pub fn on(mut self, ranks: impl Into<Vec<usize>>) -> PlanRequest {
        self.ranks = ranks.into();
        self
    }

    /// Within these limits.
    pub fn within(mut self, limits: Limits) -> PlanRequest {
        self.limits = limits;
        self
    }
}

/// Chooses schedules for one machine. What it has found out is kept, so a second request is quick; it can be shared
/// between threads.
///
/// ```
/// use ringleader::plan::{PlanRequest, Planner};
/// use ringleader::{Collective, topology::Topology};
///
/// let planner = Planner::new(&Topology::dgx1v());
/// let plan = planner.plan(&PlanRequest::new(Collective::AllReduce, 1 << 30))?;
/// assert!(plan.verified && plan.fraction_of_bound() > 0.95);
/// # Ok::<(), ringleader::Error>(())
/// ```
#[derive(Debug)]
pub struct Planner {
    topology: Topology,
    costs: CostModel,
    machines: Mutex<HashMap<(Vec<usize>, bool), Arc<Machine>>>,
    known: Mutex<HashMap<(Collective, Vec<usize>, bool), Arc<Vec<Candidate>>>>,
    plans: Mutex<HashMap<PlanRequest, Arc<Plan>>>,
}

/// Planners by the fingerprint of their topology: how many of them are kept.
const KEPT_PLANNERS: usize = 16;

/// Plans are forgotten when there are more.
const KEPT_PLANS: usize = 4096;

/// Candidates that roughly take so many times as long as the best are not looked at more closely.
const FAR: f64 = 1.4;

/// A candidate that is harder to predict than one known already has to promise to be this much faster.
const WORTH_IT: f64 = 0.98;

/// Predictions that differ by less than this are as good as each other.
const NEAR: f64 = 1.005;

/// Algorithms by the folds and hops they take.
const SIMPLEST_FIRST: [&str; 5] = ["one_shot", "direct", "ring", "tree", "forest"];

/// A candidate at a size, with its prediction.
struct Rated<'a> {
    candidate: &'a Candidate,
    cut: Cut,
    predicted_us: f64,
}

impl Planner {
    /// A planner for a machine, with built-in costs for its GPUs.
    pub fn new(topology: &Topology) -> Planner {
        Self::with_costs(topology, CostModel::of(topology.gpus().first().and_then(|gpu| gpu.sm)))
    }

    /// A planner for a machine whose costs are known.
    pub fn with_costs(topology: &Topology, costs: CostModel) -> Planner {
        Planner {
            topology: topology.clone(),
            costs,
            machines: Mutex::default(),
            known: Mutex::default(),
            plans: Mutex::default(),
        }
    }

    /// The planner that this process keeps for a machine; made now if there is none.
    pub fn shared(topology: &Topology) -> Arc<Planner> {
        static KEPT: OnceLock<Mutex<HashMap<u64, Arc<Planner>>>> = OnceLock::new();
        let mut hasher = DefaultHasher::new();
        format!("{topology:?}").hash(&mut hasher);
        let mut kept = KEPT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_PLANNERS {
            kept.clear();
        }
        kept.entry(hasher.finish()).or_insert_with(|| Arc::new(Planner::new(topology))).clone()
    }

    /// The machine.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The plan that is predicted to be fastest, proven right.
    ///
    /// # Errors
    /// [`Error::InvalidValue`] for a rank, root or limit that cannot be; [`Error::NoPlan`] where links do not join all
    /// ranks, or the limits leave nothing.
    pub fn plan(&self, request: &PlanRequest) -> Result<Arc<Plan>> {
        if let Some(known) = self.plans.lock().unwrap_or_else(PoisonError::into_inner).get(request) {
            return Ok(known.clone());
        }
        let plan = Arc::new(self.choose(request, false)?);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= KEPT_PLANS {
            plans.clear();
        }
        plans.insert(request.clone(), plan.clone());
        Ok(plan)
    }

    /// As [`plan`](Self::plan), with a prediction for every candidate in [`Plan::outlooks`], also for those that are far
    /// off.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn compare(&self, request: &PlanRequest) -> Result<Plan> {
        self.choose(request, true)
    }

    fn machine(&self, ranks: &[usize], p2p: bool) -> Result<Arc<Machine>> {
        let mut machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ranks.to_vec(), p2p);
        if let Some(known) = machines.get(&key) {
            return Ok(known.clone());
        }
        let machine = Arc::new(Machine::new(&self.topology, ranks, p2p)?);
        machines.insert(key, machine.clone());
        Ok(machine)
    }

    fn candidates(
        &self,
        machine: &Machine,
        collective: Collective,
        ranks: &[usize],
        p2p: bool,
    ) -> Arc<Vec<Candidate>> {
        let key = (collective, ranks.to_vec(), p2p);
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let found = Arc::new(candidates(machine, collective));
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        found
    }

    fn ranks(&self, request: &PlanRequest) -> Result<Vec<usize>> {
        let gpus = self.topology.gpus().len();
        let ranks = if request.ranks.is_empty() { (0..gpus).collect() } else { request.ranks.clone() };
        if ranks.is_empty() || ranks.len() > schedule::MAX_RANKS {
            return Err(Error::invalid_value(
                "ranks",
                ranks.len().to_string(),
                format!("1 to {}", schedule::MAX_RANKS),
            ));
        }
        if let Some(gpu) = ranks.iter().find(|&&gpu| gpu >= gpus) {
            return Err(Error::invalid_value("ranks", gpu.to_string(), format!("GPU numbers below {gpus}")));
        }
        if let Some(root) = request.collective.root().filter(|&root| root >= ranks.len()) {
            return Err(Error::invalid_value(
                "root",
                root.to_string(),
                format!("a rank below {}", ranks.len()),
            ));
        }
        Ok(ranks)
    }

    fn choose(&self, request: &PlanRequest, everything: bool) -> Result<Plan> {
        request.limits.check()?;
        let ranks = self.ranks(request)?;
        if ranks.len() == 1 {
            return Plan::of_one_rank(request, &ranks);
        }
        let machine = self.machine(&ranks, request.limits.p2p)?;
        let bound = machine.bound(request.collective)?;
        let all = self.candidates(&machine, request.collective, &ranks, request.limits.p2p);
        let named =
            |c: &&Candidate| request.limits.algorithms.iter().any(|name| name == c.schedule.algorithm);
        let mut chosen_from: Vec<&Candidate> = all.iter().filter(named).collect();
        if chosen_from.is_empty() {
            chosen_from = all.iter().collect();
        }
        let mut cuts: Vec<(&Candidate, Cut)> = Vec::new();
        for &candidate in &chosen_from {
            for encoding in cost::encodings(&machine, candidate, request.bytes, &request.limits) {
                let cut =
                    cost::cut(&machine, candidate, &self.costs, request.bytes, encoding, &request.limits)?;
                cuts.extend(cut.map(|cut| (candidate, cut)));
            }
        }
        if cuts.is_empty() {
            // Packets are only for what they suit; the rest travels in bulk, whatever was asked for.
            for candidate in chosen_from {
                let cut = cost::cut(
                    &machine,
                    candidate,
                    &self.costs,
                    request.bytes,
                    Encoding::Bulk,
                    &request.limits,
                )?;
                cuts.extend(cut.map(|cut| (candidate, cut)));
            }
        }
        let least = cuts.iter().map(|(_, cut)| cut.rough_us).fold(f64::INFINITY, f64::min);
        cuts.retain(|(_, cut)| everything || cut.rough_us <= FAR * least);
        // What is quickly predicted first: it may show that the rest is not worth the effort.
        cuts.sort_by_key(|(candidate, _)| cost::effort(candidate));
        let mut rated: Vec<Rated> = Vec::new();
        let mut fastest = f64::INFINITY;
        for (candidate, cut) in cuts {
            // The simple ones are left out only if they cannot come near; of others it is enough that they cannot win by much.
            let simple = ["one_shot", "direct", "ring"].contains(&candidate.schedule.algorithm);
            let slack = if simple { NEAR } else { WORTH_IT };
            if !everything && cut.rough_us > slack * fastest {
                continue;
            }
            let predicted_us = cost::predict(&machine, candidate, &cut)?;
            fastest = fastest.min(predicted_us);
            rated.push(Rated { candidate, cut, predicted_us });
        }
        // Half a percent is less than predictions are worth: then the simpler plan is better, and the one with fewer
        // blocks.
        let simple = |r: &Rated| {
            let name = r.candidate.schedule.algorithm;
            SIMPLEST_FIRST.iter().position(|known| *known == name).unwrap_or(SIMPLEST_FIRST.len())
        };
        let close = rated.iter().enumerate().filter(|(_, r)| r.predicted_us <= NEAR * fastest);
        let best = close.min_by(|(_, a), (_, b)| {
            let rank = |r: &Rated| (simple(r), r.cut.blocks, r.candidate.schedule.channels);
            rank(a).cmp(&rank(b)).then(a.predicted_us.total_cmp(&b.predicted_us))
        });
        let Some((best, chosen)) = best else {
            return Err(self.nothing(request, &machine, &all));
        };
        verify(&chosen.candidate.schedule, 2)?;
        let outlooks: Vec<Outlook> = rated
            .iter()
            .map(|r| Outlook::new(request, r.candidate, &r.cut, r.predicted_us, &bound))
            .collect();
        let reason = explain::reason(&machine, request, &outlooks, best, &bound);
        Ok(Plan {
            collective: request.collective,
            bytes: request.bytes,
            algorithm: chosen.candidate.schedule.algorithm,
            label: chosen.candidate.label.clone(),
            encoding: chosen.cut.encoding,
            lanes: chosen.cut.lanes.clone(),
            blocks: chosen.cut.blocks,
            tile_bytes: chosen.cut.tile_bytes,
            depth: request.limits.depth,
            predicted_us: chosen.predicted_us,
            bound: Some(bound),
            verified: true,
            reason,
            schedule: Arc::new(chosen.candidate.schedule.clone()),
            shapes: chosen.candidate.shapes.clone(),
            types: way_types(&machine, chosen.candidate),
            weights: chosen.candidate.weights.clone(),
            chosen: best,
            outlooks,
            gpus: ranks,
        })
    }

    fn nothing(&self, request: &PlanRequest, machine: &Machine, all: &[Candidate]) -> Error {
        let reason = match all.is_empty() {
            true => {
                "no ring, and no tree, reaches every GPU without passing data through one that is not a rank"
                    .into()
            }
            false => format!(
                "none of {} candidates fits into {} blocks, {} workers and the encodings {:?}; allow more",
                all.len(),
                request.limits.max_blocks,
                request.limits.max_workers.map_or("any number of".into(), |most| most.to_string()),
                request.limits.encodings,
            ),
        };
        Error::NoPlan { request: format!("{} on {} ranks", request.collective, machine.ranks()), reason }
    }
}

/// The type of the way of each link.
fn way_types(machine: &Machine, candidate: &Candidate) -> Vec<PathType> {
    let links = candidate.schedule.links.iter().zip(&candidate.routes);
    links.map(|(link, way)| machine.way_type(link.from, link.to, way)).collect()
}
