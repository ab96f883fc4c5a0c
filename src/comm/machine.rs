//! The machine under a communicator, and the plans made for it.

use std::sync::Arc;

use super::config::{Config, Subsystem};
use super::log::Log;
use crate::error::{Error, Result};
use crate::plan::{Limits, Plan, PlanRequest, Planner};
use crate::topology::Topology;
use crate::types::Collective;

/// Which GPU of which machine each rank is on, and what plans may use.
#[derive(Debug)]
pub(super) struct Machine {
    planner: Arc<Planner>,
    gpus: Vec<usize>,
    limits: Limits,
}

impl Machine {
    /// With rank `i` on GPU `gpus[i]`.
    pub(super) fn new(topology: &Topology, gpus: Vec<usize>, limits: Limits) -> Machine {
        Machine { planner: Planner::shared(topology), gpus, limits }
    }

    /// The machine that a file describes, for ranks that are none of its GPUs: they take turns on them.
    ///
    /// # Errors
    /// As [`Topology::load`]; [`Error::InvalidValue`] if it has no GPU.
    pub(super) fn pretend(topology: &Topology, ranks: usize, config: &Config) -> Result<Machine> {
        let count = topology.gpus().len();
        if count == 0 {
            let file = config.topology_path().unwrap_or(std::path::Path::new("")).display().to_string();
            return Err(Error::invalid_value("NCCL_TOPO_FILE", file, "a machine with at least one GPU"));
        }
        Ok(Machine::new(topology, (0..ranks).map(|rank| rank % count).collect(), config.limits()))
    }

    pub(super) fn topology(&self) -> &Topology {
        self.planner.topology()
    }

    /// The GPU of each rank.
    #[cfg(feature = "cuda")]
    pub(super) fn gpus(&self) -> &[usize] {
        &self.gpus
    }

    /// What plans may use.
    #[cfg(feature = "cuda")]
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The plan for a message of `bytes`, made for the largest message of its class.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub(super) fn plan(&self, collective: Collective, bytes: usize) -> Result<Arc<Plan>> {
        self.plan_within(collective, bytes, self.limits.clone())
    }

    /// As [`plan`](Self::plan), within other limits.
    pub(super) fn plan_within(
        &self,
        collective: Collective,
        bytes: usize,
        limits: Limits,
    ) -> Result<Arc<Plan>> {
        let request = PlanRequest::new(collective, size_class(bytes)).on(self.gpus.clone());
        self.planner.plan(&request.within(limits))
    }

    /// Writes what the settings want written, and says what was found.
    ///
    /// # Errors
    /// [`Error::System`] if a file cannot be written.
    pub(super) fn publish(&self, config: &Config, log: &Log) -> Result<()> {
        let save = |path: &std::path::Path, text: String| {
            std::fs::write(path, text).map_err(|why| Error::System {
                action: format!("write {}", path.display()),
                reason: why.to_string(),
            })
        };
        log.warn(self.topology().warnings().iter().cloned());
        if let Some(path) = &config.topo_dump_file {
            save(path, self.topology().to_xml())?;
        }
        if self.gpus.len() > 1 {
            if let Some(path) = &config.graph_dump_file {
                let plans = dumped().map(|collective| self.plan(collective, LARGE));
                let plans = plans.into_iter().collect::<Result<Vec<_>>>()?;
                let plans: Vec<&Plan> = plans.iter().map(|plan| &**plan).collect();
                let text = serde_json::to_string_pretty(&plans).map_err(|why| Error::System {
                    action: format!("write {}", path.display()),
                    reason: why.to_string(),
                })?;
                save(path, text + "\n")?;
            }
            if log.wants(Subsystem::Init) {
                let plan = self.plan(Collective::AllReduce, LARGE)?;
                log.info(Subsystem::Init, || plan.channels());
            }
            if log.wants(Subsystem::Graph) {
                let plan = self.plan(Collective::AllReduce, LARGE)?;
                log.info(Subsystem::Graph, || lines(&plan.explain()));
            }
        }
        Ok(())
    }
}

/// The message whose plan is shown and written at creation: large enough that bandwidth decides.
const LARGE: usize = 256 << 20;

fn dumped() -> [Collective; 5] {
    [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root: 0 },
        Collective::Reduce { root: 0 },
    ]
}

fn lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The largest message that is treated like one of `bytes`: there are four classes from one power of two to the next, so
/// that a program with many sizes needs few plans, each for messages at most a quarter smaller than the one it was made for.
pub(super) fn size_class(bytes: usize) -> usize {
    let step = 1usize << (usize::BITS - bytes.max(4).leading_zeros() - 3);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_classes_to_an_octave() {
        let classes: std::collections::BTreeSet<usize> = (1..=4096).map(size_class).collect();
        assert!(classes.contains(&1) && classes.contains(&4096) && classes.len() <= 4 * 12, "{classes:?}");
        for bytes in (1..100_000).chain([1 << 40, (1 << 40) + 1, usize::MAX]) {
            let class = size_class(bytes);
            assert!(
                class >= bytes && (class - bytes) as f64 <= 0.25 * bytes.max(1) as f64,
                "{bytes} {class}"
            );
        }
        // What fits into a power of two is planned as something that does, too.
        assert_eq!([size_class(1 << 20), size_class((1 << 20) - 1)], [1 << 20, 1 << 20]);
    }

    #[test]
    fn plans_for_a_machine_from_a_file() {
        let machine = Machine::pretend(&Topology::dgx1v(), 8, &Config::new()).unwrap();
        let plan = machine.plan(Collective::AllReduce, 1 << 28).unwrap();
        assert!(plan.verified && plan.ranks() == 8);
        assert!(Machine::pretend(&Topology::new("nothing"), 2, &Config::new()).is_err());
    }
}
