//! A rank of a CPU communicator.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::check::Caller;
use super::choose::{Choice, choose};
use super::config::{Config, Subsystem};
use super::log::Log;
use super::machine::{self, Machine};
use crate::engine::host::{Order, Prepared, Rank, World};
use crate::engine::{Call, Launch};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::schedule::{MAX_RANKS, Request, build};
use crate::sync::{Mutex, lock};
use crate::topology::Topology;
use crate::transport::local;
use crate::types::{Collective, Element, ReduceOp};

/// A rank of a CPU communicator.
pub(super) struct Member {
    rank: Rank,
    shared: Arc<Shared>,
}

/// What the ranks share besides the engine's state.
struct Shared {
    config: Config,
    log: Log,
    /// The machine to plan for, where the settings name one.
    machine: Option<Machine>,
    /// Schedules in use, ready to run.
    prepared: Mutex<HashMap<(Collective, Choice), Arc<Prepared>>>,
    /// The same for those that were planned, by the class of the message's size.
    planned: Mutex<HashMap<(Collective, usize), Arc<Prepared>>>,
}

/// An order with the schedule that carries it out.
pub(super) type Ready<'b> = (Order<'b>, Arc<Prepared>);

impl Member {
    /// Makes all ranks of a communicator.
    pub(super) fn create(ranks: usize, config: &Config) -> Result<Vec<Member>> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(Error::invalid_value("ranks", ranks.to_string(), format!("1 to {MAX_RANKS}")));
        }
        config.check()?;
        let log = Log::new(config)?;
        log.version();
        let machine = match config.topology_path() {
            // What was set by hand is not planned.
            Some(path) if config.channels.is_none() => {
                let machine = Machine::pretend(&Topology::load(path)?, ranks, config)?;
                machine.publish(config, &log)?;
                Some(machine)
            }
            _ => None,
        };
        let world = Arc::new(World::new(ranks, config.timeout));
        let shared = Arc::new(Shared {
            config: config.clone(),
            log,
            machine,
            prepared: Mutex::default(),
            planned: Mutex::default(),
        });
        let member = |rank| Member { rank: Rank::new(world.clone(), rank), shared: shared.clone() };
        let members: Vec<Member> = (0..ranks).map(member).collect();
        members[0].shared.log.info(Subsystem::Init, || members.iter().flat_map(Member::channels));
        Ok(members)
    }

    /// The plan that calls of this size follow.
    pub(super) fn explain(&self, collective: Collective, bytes: usize) -> Result<Arc<Plan>> {
        if let Some(machine) = &self.shared.machine {
            return machine.plan(collective, bytes);
        }
        let choice = choose(collective, bytes, self.ranks(), &self.shared.config);
        Err(Error::Unavailable {
            what: format!("a plan for {} of {bytes} bytes on CPU ranks", collective.name()),
            reason: format!(
                "without a machine to plan for, a rule by size is followed: {}, {} channels, tiles of {} bytes; name a \
                 machine with Config::topology_file or NCCL_TOPO_FILE",
                choice.algorithm, choice.channels, choice.tile_bytes
            ),
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank.rank()
    }

    pub(super) fn ranks(&self) -> usize {
        self.rank.world().ranks()
    }

    pub(super) fn memory_used(&self) -> usize {
        self.rank.world().memory_used(self.rank())
    }

    /// How this rank reaches the next one, once for each channel.
    pub(super) fn channels(&self) -> Vec<String> {
        let (from, ranks) = (self.rank(), self.ranks());
        let channels = if ranks == 1 { 0 } else { self.shared.config.channels.unwrap_or(1) };
        let line =
            |c| format!("Channel {c:02} : {from}[cpu] -> {}[cpu] via {}", (from + 1) % ranks, local::NAME);
        (0..channels).map(line).collect()
    }

    /// The engine's handle.
    pub(super) fn engine(&self) -> &Rank {
        &self.rank
    }

    /// Checks a call with separate buffers and gets it ready.
    pub(super) fn separate<'b, T: Element>(
        &self,
        name: &'static str,
        collective: Collective,
        op: ReduceOp,
        send: Option<&'b [T]>,
        recv: Option<&'b mut [T]>,
    ) -> Result<Ready<'b>> {
        let caller = self.caller(name);
        caller.operation(collective, T::DTYPE, op)?;
        let me = self.rank();
        let send = send.filter(|_| !matches!(collective, Collective::Broadcast { root } if root != me));
        let recv = recv.filter(|_| !matches!(collective, Collective::Reduce { root } if root != me));
        let count = caller.separate(collective, send.map(<[T]>::len), recv.as_ref().map(|r| r.len()))?;
        let call = Call { collective, dtype: T::DTYPE, op, count };
        Ok((Order::new(call, me, self.ranks(), send, recv), self.prepare(&call)?))
    }

    /// Checks a call in place and gets it ready.
    pub(super) fn in_place<'b, T: Element>(
        &self,
        name: &'static str,
        collective: Collective,
        op: ReduceOp,
        buffer: &'b mut [T],
    ) -> Result<Ready<'b>> {
        let caller = self.caller(name);
        caller.operation(collective, T::DTYPE, op)?;
        let count = caller.in_place(collective, buffer.len())?;
        let call = Call { collective, dtype: T::DTYPE, op, count };
        Ok((Order::in_place(call, self.rank(), self.ranks(), buffer), self.prepare(&call)?))
    }

    /// Carries out a call.
    pub(super) fn run(&self, (order, prepared): Ready<'_>) -> Result<()> {
        self.rank.run(order, prepared)
    }

    fn caller(&self, call: &'static str) -> Caller {
        Caller { call, rank: self.rank(), ranks: self.ranks() }
    }

    /// The schedule for a call, ready to run.
    fn prepare(&self, call: &Call) -> Result<Arc<Prepared>> {
        let ranks = self.ranks();
        let bytes = call.count * call.dtype.size() * call.collective.blocks(ranks);
        let choice = choose(call.collective, bytes, ranks, &self.shared.config);
        if let Some(machine) = &self.shared.machine {
            return self.prepare_planned(machine, call.collective, bytes, choice);
        }
        let mut all = lock(&self.shared.prepared);
        if let Some(found) = all.get(&(call.collective, choice)) {
            return Ok(found.clone());
        }
        let request = Request::new(call.collective, ranks, choice.channels);
        let schedule = Arc::new(build(choice.algorithm, &request)?);
        let launch = Launch::new(schedule, 1, choice.tile_bytes, choice.depth)?;
        let prepared = Arc::new(Prepared::new(launch, self.rank.world()));
        all.insert((call.collective, choice), prepared.clone());
        Ok(prepared)
    }

    /// The schedule that was planned for a message, cut as suits CPUs.
    fn prepare_planned(
        &self,
        machine: &Machine,
        collective: Collective,
        bytes: usize,
        choice: Choice,
    ) -> Result<Arc<Prepared>> {
        let key = (collective, machine::size_class(bytes));
        let mut all = lock(&self.shared.planned);
        if let Some(found) = all.get(&key) {
            return Ok(found.clone());
        }
        let plan = machine.plan(collective, bytes)?;
        self.shared.log.info(Subsystem::Tuning, || [plan.summary()]);
        let launch = Launch::new(plan.schedule.clone(), 1, choice.tile_bytes, choice.depth)?;
        let prepared = Arc::new(Prepared::new(launch, self.rank.world()));
        all.insert(key, prepared.clone());
        Ok(prepared)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("rank", &self.rank()).field("ranks", &self.ranks()).finish()
    }
}
