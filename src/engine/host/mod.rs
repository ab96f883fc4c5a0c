//! The engine for CPU ranks: runs schedules on memory of this process, on the callers' own threads.
//!
//! - [`order`]: a call and its buffers; [`task`]: the state machine that carries it out for one rank;
//! - [`program`]: schedules lowered for one rank; [`fabric`]: the links they use;
//! - [`seat`], [`link`], [`bell`]: the three lock-free protocols by which ranks meet;
//! - [`buffers`], [`arith`]: the elements.

mod arith;
mod bell;
mod buffers;
mod fabric;
mod link;
mod order;
mod program;
mod seat;
mod task;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use order::Order;
pub(crate) use world::World;

use self::program::Program;
use self::task::{Progress, Scratch, Task};
use self::world::Reason;
use super::Launch;
use crate::error::Result;
use crate::sync::{Mutex, MutexGuard, lock};

/// A launch lowered for every rank of a world.
pub(crate) struct Prepared {
    launch: Launch,
    programs: Vec<Program>,
    /// Whether any rank may read another's input.
    any_direct: bool,
}

impl Prepared {
    /// Lowers a launch.
    pub(crate) fn new(launch: Launch, world: &World) -> Self {
        let programs = program::lower(&launch, &world.fabric);
        let any_direct = programs.iter().any(|p| !p.read_from.is_empty());
        Prepared { launch, programs, any_direct }
    }
}

/// One rank of a world.
pub(crate) struct Rank {
    world: Arc<World>,
    rank: usize,
    state: Mutex<State>,
}

/// What a rank keeps between operations.
#[derive(Default)]
struct State {
    /// Operations begun so far.
    operations: u64,
    scratch: Scratch,
    /// How often to look again at once when waiting; never more than [`SPINS`].
    spins: u32,
}

impl Rank {
    /// The handle of a rank. There must be one for each.
    pub(crate) fn new(world: Arc<World>, rank: usize) -> Self {
        Rank { world, rank, state: Mutex::default() }
    }

    /// Its number.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// What it shares with the others.
    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Carries out one order, and returns when nobody touches its buffers any more.
    pub(crate) fn run(&self, order: Order<'_>, prepared: Arc<Prepared>) -> Result<()> {
        drive(&mut [Turn::new(self, std::iter::once((order, prepared)))])
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}

/// Orders of one rank in a group.
pub(crate) struct Queue<'r, 'b> {
    /// The rank.
    pub(crate) rank: &'r Rank,
    /// What it has to do, in order.
    pub(crate) orders: Vec<(Order<'b>, Arc<Prepared>)>,
}

/// Carries out the orders of several ranks on this thread, at the same time.
pub(crate) fn run_group(mut queues: Vec<Queue<'_, '_>>) -> Result<()> {
    // Ranks are locked in one order everywhere, so that two groups cannot wait for each other's locks.
    queues.sort_by_key(|q| std::ptr::from_ref(q.rank).addr());
    let mut turns: Vec<_> = queues.into_iter().map(|q| Turn::new(q.rank, q.orders.into_iter())).collect();
    drive(&mut turns)
}

/// A rank that this thread is working for.
struct Turn<'r, 'b, I> {
    rank: &'r Rank,
    state: MutexGuard<'r, State>,
    task: Option<Task<'b>>,
    orders: I,
}

impl<'r, 'b, I: Iterator<Item = (Order<'b>, Arc<Prepared>)>> Turn<'r, 'b, I> {
    fn new(rank: &'r Rank, orders: I) -> Self {
        Turn { rank, state: lock(&rank.state), task: None, orders }
    }

    /// Works until it has to wait; `None` when there is nothing left to do.
    fn step(&mut self, result: &mut Result<()>) -> Option<bool> {
        let mut moved = false;
        loop {
            if self.task.is_none() {
                let (order, prepared) = self.orders.next()?;
                self.state.operations += 1;
                let scratch = std::mem::take(&mut self.state.scratch);
                let world = self.rank.world.clone();
                let operation = self.state.operations;
                self.task = Some(Task::start(world, self.rank.rank, operation, order, prepared, scratch));
                moved = true;
            }
            match self.task.as_mut().map(Task::step) {
                Some(Progress::Moved) => return Some(true),
                Some(Progress::Blocked) => return Some(moved),
                Some(Progress::Done) | None => {}
            }
            if let Some((outcome, scratch)) = self.task.take().map(Task::finish) {
                self.state.scratch = scratch;
                moved = true;
                if result.is_ok() {
                    *result = outcome;
                }
            }
        }
    }
}

/// The ranks of one thread while it works for them. Should it panic, the operations are aborted and the thread stays
/// until nobody uses its buffers.
struct Crew<'c, 'r, 'b, I>(&'c mut [Turn<'r, 'b, I>]);

impl<I> Drop for Crew<'_, '_, '_, I> {
    fn drop(&mut self) {
        let unfinished = || self.0.iter().filter(|t| t.task.is_some());
        for turn in unfinished() {
            let reason = format!("the thread of rank {} panicked", turn.rank.rank);
            turn.rank.world.abort(Reason::Other(reason));
        }
        self.0.iter_mut().filter_map(|t| t.task.as_mut()).for_each(Task::leave);
        for turn in self.0.iter().filter(|t| t.task.is_some()) {
            while !turn.rank.world.is_quiet() {
                std::thread::yield_now();
            }
        }
    }
}

/// How often a thread that waits looks again at once, at most. Threads that share a processor wait in vain, however
/// many processors there are; so each wait that outlasts the spinning halves it for the next, and each that does not
/// doubles it.
const SPINS: u32 = 150;

/// How often it then lets other threads run before it goes to sleep.
const YIELDS: u32 = 100;

/// Works for all ranks in turn until they are done. Returns the first error.
fn drive<'b, I: Iterator<Item = (Order<'b>, Arc<Prepared>)>>(turns: &mut [Turn<'_, 'b, I>]) -> Result<()> {
    let crew = Crew(turns);
    let crowded = crew.0.iter().any(|t| t.rank.world.crowded);
    let mut spins = crew.0.first().map_or(0, |t| t.state.spins);
    let limit = crew.0.iter().filter_map(|t| t.rank.world.timeout).min();
    let mut result = Ok(());
    let mut idle = 0u32;
    let mut waiting_since = None;
    loop {
        match step_all(crew.0, &mut result) {
            None => break,
            Some(true) => {
                if idle > 0 && !crowded {
                    spins = if idle <= spins { (2 * spins).min(SPINS) } else { (spins / 2).max(2) };
                }
                (idle, waiting_since) = (0, None);
                continue;
            }
            Some(false) => idle += 1,
        }
        if idle <= spins {
            std::hint::spin_loop();
            continue;
        }
        if idle <= spins + YIELDS {
            std::thread::yield_now();
            continue;
        }
        let since = *waiting_since.get_or_insert_with(Instant::now);
        let left = limit.map(|limit| limit.saturating_sub(since.elapsed()));
        if left == Some(Duration::ZERO) {
            let waited = since.elapsed().as_millis() as u64;
            crew.0.iter_mut().filter_map(|t| t.task.as_mut()).for_each(|t| t.give_up(waited));
            (idle, waiting_since) = (0, None);
            continue;
        }
        if sleep(crew.0, &mut result, left) {
            (idle, waiting_since) = (0, None);
        }
    }
    if let Some(turn) = crew.0.first_mut() {
        turn.state.spins = spins;
    }
    result
}

/// Steps every rank once: whether anything moved, `None` once nothing is left to do.
fn step_all<'b, I: Iterator<Item = (Order<'b>, Arc<Prepared>)>>(
    turns: &mut [Turn<'_, 'b, I>],
    result: &mut Result<()>,
) -> Option<bool> {
    turns.iter_mut().filter_map(|t| t.step(result)).reduce(|a, b| a | b)
}

/// Sleeps until another thread has done something for one of the ranks. Whether it found something to do instead.
#[cold]
fn sleep<'b, I: Iterator<Item = (Order<'b>, Arc<Prepared>)>>(
    turns: &mut [Turn<'_, 'b, I>],
    result: &mut Result<()>,
    limit: Option<Duration>,
) -> bool {
    let bells = |turns: &[Turn<'_, 'b, I>], ring: fn(&bell::Bell)| {
        turns.iter().for_each(|t| ring(&t.rank.world.seats[t.rank.rank].bell));
    };
    bells(turns, bell::Bell::arm);
    let moved = step_all(turns, result) != Some(false);
    if !moved {
        match limit {
            Some(limit) => std::thread::park_timeout(limit),
            None => std::thread::park(),
        }
    }
    bells(turns, bell::Bell::disarm);
    moved
}
