//! The clock: which fold runs when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::sharing::{ClassKey, Ordered, SAME_US, Sharing};
use super::steady::{Period, Steady};
use super::{Network, Placement, Setup};
use crate::schedule::verify::{FoldIndex, Wiring};
use crate::schedule::{Sink, Source};

/// Where a worker stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) tile: usize,
    pub(super) fold: usize,
    /// How long ago it did the last fold, and how long that took; in microseconds.
    pub(super) age: f64,
    lasted: f64,
    folds: usize,
    /// Whether it has nothing left to do.
    pub(super) finished: bool,
}

impl Progress {
    /// Tiles done, with an estimate of the part of the current one.
    pub(super) fn tiles(&self) -> f64 {
        let part = if self.lasted > 0.0 { (self.age / self.lasted).min(1.0) } else { 0.0 };
        self.tile as f64 + (self.fold as f64 + part) / self.folds as f64
    }
}

/// A worker's position in its program.
#[derive(Clone, Copy)]
struct Position {
    tile: usize,
    fold: usize,
}

/// A fold as the clock needs it.
struct Step {
    chunk: usize,
    /// Links it drains, with the microseconds a credit takes back to the producer.
    drains: Vec<(usize, f64)>,
    /// Links it fills.
    fills: Vec<Fill>,
    /// Whether there is nothing to do: a peer has written what it would take out.
    idle: bool,
    /// How many operands have to be read or written one after another, by each lane.
    operands: f64,
    lanes: f64,
}

/// What a fold sends over a link.
#[derive(Clone, Copy)]
struct Fill {
    link: usize,
    /// The class of the transfer.
    class: usize,
    /// Microseconds until the consumer sees it.
    latency: f64,
    /// Whether it goes into the peer's output rather than a slot.
    lent: bool,
}

struct Runner {
    steps: std::ops::Range<usize>,
    at: Position,
    /// The tile at which it is done.
    end: usize,
    /// What the fold in progress still waits for: transfers, and its own work. None if no fold is in progress.
    pending: Option<usize>,
    /// When it did the last fold, and how long before it had done the one before.
    done_at: f64,
    lasted: f64,
    begun: bool,
}

impl Runner {
    fn progress(&self, now: f64) -> Progress {
        Progress {
            tile: self.at.tile,
            fold: self.at.fold,
            age: now - self.done_at,
            lasted: self.lasted,
            folds: self.steps.len().max(1),
            finished: self.at.tile >= self.end,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker begins.
    Begin(usize),
    /// A worker's fold has paid its overhead.
    Move(usize),
    /// A worker has done its own part of the fold.
    Worked(usize),
    /// A slot of a link can be drained.
    Filled(usize),
    /// A slot of a link can be filled.
    Freed(usize),
}

pub(super) struct Clock<'a> {
    setup: &'a Setup,
    steps: Vec<Step>,
    runners: Vec<Runner>,
    /// For each link the workers that fill and drain it.
    ends: Vec<(usize, usize)>,
    data: Vec<u32>,
    room: Vec<u32>,
    /// Bytes left of each chunk, counted from its beginning or from the last skip.
    bytes: Vec<usize>,
    /// For each chunk the bytes that all lanes together move at a time.
    tile: Vec<usize>,
    /// The group of each worker, and of each chunk: those that share chunks advance together.
    worker_groups: Vec<usize>,
    chunk_groups: Vec<usize>,
    group_count: usize,
    /// When each worker begins.
    delays: Vec<f64>,
    sharing: Sharing,
    events: BinaryHeap<Reverse<(Ordered, u64, Event)>>,
    sequence: u64,
    now: f64,
    last_end: f64,
    skipped: f64,
}

impl<'a> Clock<'a> {
    pub(super) fn new(
        wiring: &Wiring,
        network: &Network,
        placement: &Placement,
        setup: &'a Setup,
        bytes: &[usize],
    ) -> Self {
        let schedule = wiring.schedule;
        let lanes = |channel: u32| placement.lanes_of(channel, setup);
        let (classes, class_of) = classes(schedule, network, placement, setup);
        let mut tile = vec![setup.tile_bytes.saturating_mul(setup.lanes as usize); bytes.len()];
        let mut steps: Vec<Step> = Vec::new();
        for worker in schedule.workers.iter().flatten() {
            let lanes = lanes(worker.channel);
            for fold in &worker.folds {
                let link = |l: crate::schedule::LinkId| (l.0 as usize, placement.path(schedule, network, l));
                let drains = fold.sources.iter().filter_map(|s| s.link()).map(link);
                let fill = |s: &Sink| {
                    let (link, path) = link(s.link()?);
                    let lent = setup.lent && matches!(s, Sink::Peer(_));
                    Some(Fill { link, class: class_of[link], latency: path.latency_us, lent })
                };
                let taken = |s: &Source| matches!(s, Source::Peer(_));
                let stays = |s: &Sink| matches!(s, Sink::Output);
                tile[fold.chunk.0 as usize] = setup.tile_bytes.saturating_mul(lanes as usize);
                steps.push(Step {
                    chunk: fold.chunk.0 as usize,
                    // A credit takes as long as the data did.
                    drains: drains.map(|(i, path)| (i, path.latency_us)).collect(),
                    fills: fold.sinks.iter().filter_map(fill).collect(),
                    idle: setup.lent && fold.sources.iter().all(taken) && fold.sinks.iter().all(stays),
                    operands: fold.sources.len().max(fold.sinks.len()) as f64 / f64::from(lanes),
                    lanes: f64::from(lanes),
                });
            }
        }
        let mut first = 0;
        let mut runners = Vec::new();
        let mut ends = vec![(0, 0); schedule.links.len()];
        for worker in schedule.workers.iter().flatten() {
            let range = first..first + worker.folds.len();
            first = range.end;
            for s in &steps[range.clone()] {
                s.fills.iter().for_each(|f| ends[f.link].0 = runners.len());
                s.drains.iter().for_each(|d| ends[d.0].1 = runners.len());
            }
            let at = Position { tile: 0, fold: 0 };
            runners.push(Runner {
                steps: range,
                at,
                end: 0,
                pending: None,
                done_at: 0.0,
                lasted: 0.0,
                begun: false,
            });
        }
        let (worker_groups, chunk_groups, group_count) = groups(&steps, &runners, bytes.len());
        let mut clock = Clock {
            setup,
            steps,
            runners,
            data: vec![0; ends.len()],
            room: vec![setup.depth; ends.len()],
            ends,
            bytes: bytes.to_vec(),
            tile,
            worker_groups,
            chunk_groups,
            group_count,
            delays: Vec::new(),
            sharing: Sharing::new(network, classes),
            events: BinaryHeap::new(),
            sequence: 0,
            now: 0.0,
            last_end: 0.0,
            skipped: 0.0,
        };
        clock.find_ends();
        let every = network.paths.iter().flatten().chain(&placement.routes);
        let latency = every.map(|p| p.latency_us).fold(0.0, f64::max);
        let channels =
            schedule.workers.iter().flatten().map(|w| f64::from(w.channel) / f64::from(schedule.channels));
        clock.delays = channels
            .zip(&clock.runners)
            .map(|(c, r)| c * (latency + setup.fold_us) * spread(r.end))
            .collect();
        clock
    }

    /// Runs to the end; returns the microseconds it takes, or a fold that can never run.
    pub(super) fn run(mut self, skip: bool) -> Result<f64, FoldIndex> {
        let mut steady = Steady::default();
        let mut ended = Vec::new();
        // The worker whose tiles pace the search for a period, and its tile at the last note.
        let mut pace = (self.slowest(), 0);
        for (worker, delay) in self.delays.clone().into_iter().enumerate() {
            self.after(delay, Event::Begin(worker));
        }
        loop {
            let next_event = self.events.peek().map_or(f64::INFINITY, |Reverse((at, ..))| at.0);
            let step = self.sharing.next_end().min((next_event - self.now).max(0.0));
            if step.is_infinite() {
                break;
            }
            self.now += step;
            self.sharing.advance(step, &mut ended);
            for worker in ended.drain(..) {
                self.part_done(worker);
            }
            while self.events.peek().is_some_and(|Reverse((at, ..))| at.0 <= self.now + SAME_US) {
                if let Some(Reverse((_, _, event))) = self.events.pop() {
                    self.handle(event);
                }
            }
            let paced = &self.runners[pace.0];
            if !skip || paced.at.tile == pace.1 {
                continue;
            }
            if paced.at.tile >= paced.end {
                steady.forget();
                pace = (self.slowest(), self.runners[self.slowest()].at.tile);
                continue;
            }
            pace.1 = paced.at.tile;
            let workers = self.runners.iter().map(|r| r.progress(self.now)).collect();
            let period = steady.note(self.now, workers, &self.worker_groups, self.group_count);
            if period.is_some_and(|p| self.skip(&p)) {
                steady.forget();
            }
        }
        if let Some(r) = self.runners.iter().find(|r| r.at.tile < r.end) {
            return Err(r.steps.start + r.at.fold);
        }
        Ok(self.last_end + self.skipped)
    }

    fn slowest(&self) -> usize {
        let left = |w: &usize| self.runners[*w].end - self.runners[*w].at.tile.min(self.runners[*w].end);
        (0..self.runners.len()).max_by_key(left).unwrap_or(0)
    }

    fn tiles(&self, chunk: usize) -> usize {
        self.bytes[chunk].div_ceil(self.tile[chunk])
    }

    fn find_ends(&mut self) {
        for w in 0..self.runners.len() {
            let steps = self.runners[w].steps.clone();
            let busy = steps.filter(|&s| !self.steps[s].idle);
            self.runners[w].end = busy.map(|s| self.tiles(self.steps[s].chunk)).max().unwrap_or(0);
        }
    }

    /// Starts the worker's next fold if it can.
    fn start(&mut self, worker: usize) {
        let r = &mut self.runners[worker];
        if r.pending.is_some() || !r.begun {
            return;
        }
        let step = loop {
            if r.at.tile >= r.end {
                return;
            }
            let step = &self.steps[r.steps.start + r.at.fold];
            if !step.idle && r.at.tile < self.bytes[step.chunk].div_ceil(self.tile[step.chunk]) {
                break step;
            }
            r.at = following(r.at, r.steps.len());
        };
        let ready = step.drains.iter().all(|d| self.data[d.0] > 0)
            && step.fills.iter().all(|f| f.lent || self.room[f.link] > 0);
        if !ready {
            return;
        }
        for d in &step.drains {
            self.data[d.0] -= 1;
        }
        for f in step.fills.iter().filter(|f| !f.lent) {
            self.room[f.link] -= 1;
        }
        r.pending = Some(0);
        // Lanes begin together, and then drift apart: while one pays the overhead, the others have the wire.
        let overhead = if r.at.tile == 0 { self.setup.fold_us } else { self.setup.fold_us / step.lanes };
        self.after(overhead, Event::Move(worker));
    }

    fn after(&mut self, us: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((Ordered(self.now + us), self.sequence, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin(worker) => {
                self.runners[worker].begun = true;
                self.start(worker);
            }
            Event::Move(worker) => self.begin_transfers(worker),
            Event::Worked(worker) => self.part_done(worker),
            Event::Filled(link) => {
                self.data[link] += 1;
                self.start(self.ends[link].1);
            }
            Event::Freed(link) => {
                self.room[link] += 1;
                self.start(self.ends[link].0);
            }
        }
    }

    fn begin_transfers(&mut self, worker: usize) {
        let r = &self.runners[worker];
        let step = &self.steps[r.steps.start + r.at.fold];
        let tile = self.tile[step.chunk];
        let bytes = (self.bytes[step.chunk] - r.at.tile * tile).min(tile) as f64;
        let mut pending = 1;
        for fill in &step.fills {
            pending +=
                usize::from(self.sharing.start(fill.class, bytes / self.setup.wire_efficiency, worker));
        }
        let own = bytes * step.operands / (self.setup.lane_gbs * 1e3);
        self.runners[worker].pending = Some(pending);
        self.after(own, Event::Worked(worker));
    }

    /// One of the things that a worker's fold waits for has come about.
    fn part_done(&mut self, worker: usize) {
        let now = self.now;
        let r = &mut self.runners[worker];
        let left = r.pending.map_or(0, |p| p - 1);
        r.pending = Some(left);
        if left > 0 {
            return;
        }
        let at = r.steps.start + r.at.fold;
        r.pending = None;
        r.at = following(r.at, r.steps.len());
        (r.lasted, r.done_at) = (now - r.done_at, now);
        self.last_end = self.last_end.max(now);
        for i in 0..self.steps[at].fills.len() {
            let Fill { link, latency, lent, .. } = self.steps[at].fills[i];
            self.after(latency, Event::Filled(link));
            if lent {
                // Nobody may be waiting for it, but it has to arrive.
                self.last_end = self.last_end.max(now + latency);
            }
        }
        for i in 0..self.steps[at].drains.len() {
            let (link, latency) = self.steps[at].drains[i];
            self.after(latency, Event::Freed(link));
        }
        self.start(worker);
    }

    /// Skips as many periods as every chunk has room for; false if that is none.
    fn skip(&mut self, period: &Period) -> bool {
        let mut times = usize::MAX;
        let mut low = vec![usize::MAX; self.group_count];
        let mut high = vec![0; self.group_count];
        for (r, &g) in self.runners.iter().zip(&self.worker_groups).filter(|(r, _)| r.at.tile < r.end) {
            low[g] = low[g].min(r.at.tile);
            high[g] = high[g].max(r.at.tile);
        }
        for chunk in 0..self.bytes.len() {
            let g = self.chunk_groups[chunk];
            if self.tiles(chunk) <= low[g] {
                continue;
            }
            if period.tiles[g] <= 0.0 {
                return false;
            }
            // Two tiles are left over, so that the last, shorter one meets a schedule in its usual pace.
            let room = self.tiles(chunk).saturating_sub(high[g] + 2);
            times = times.min((room as f64 / period.tiles[g]) as usize);
        }
        if times == 0 || times == usize::MAX {
            return false;
        }
        for chunk in 0..self.bytes.len() {
            let g = self.chunk_groups[chunk];
            if self.tiles(chunk) > low[g] {
                // A whole number even if the period is not: the error is one tile at most, however much is skipped.
                self.bytes[chunk] -= (times as f64 * period.tiles[g]) as usize * self.tile[chunk];
            }
        }
        self.skipped += times as f64 * period.us;
        self.find_ends();
        true
    }
}

/// How far apart channels of so many tiles begin, as a part of the longest wait: see the module of [`super`].
fn spread(tiles: usize) -> f64 {
    (tiles.saturating_sub(1) as f64 / 16.0).min(1.0)
}

fn following(at: Position, folds: usize) -> Position {
    if at.fold + 1 < folds {
        Position { fold: at.fold + 1, ..at }
    } else {
        Position { tile: at.tile + 1, fold: 0 }
    }
}

/// Sorts the links into classes; returns the classes and the class of each link.
fn classes(
    schedule: &crate::schedule::Schedule,
    network: &Network,
    placement: &Placement,
    setup: &Setup,
) -> (Vec<ClassKey>, Vec<usize>) {
    let mut number: HashMap<ClassKey, usize> = HashMap::new();
    let mut classes = Vec::new();
    let of_link = (0..schedule.links.len())
        .map(|l| {
            let lanes = placement.lanes_of(schedule.links[l].channel, setup);
            let path = placement.path(schedule, network, crate::schedule::LinkId(l as u32));
            let key = (path.resources.clone(), lanes);
            *number.entry(key.clone()).or_insert_with(|| {
                classes.push(key);
                classes.len() - 1
            })
        })
        .collect();
    (classes, of_link)
}

/// Joins workers that share chunks; returns the group of each worker, of each chunk, and the number of groups.
fn groups(steps: &[Step], runners: &[Runner], chunks: usize) -> (Vec<usize>, Vec<usize>, usize) {
    fn top(parent: &mut [usize], mut at: usize) -> usize {
        while parent[at] != at {
            parent[at] = parent[parent[at]];
            at = parent[at];
        }
        at
    }
    let mut parent: Vec<usize> = (0..chunks).collect();
    for r in runners {
        for pair in steps[r.steps.clone()].windows(2) {
            let (a, b) = (top(&mut parent, pair[0].chunk), top(&mut parent, pair[1].chunk));
            parent[a] = b;
        }
    }
    let mut number = vec![usize::MAX; chunks];
    let mut count = 0;
    let chunk_groups: Vec<usize> = (0..chunks)
        .map(|c| {
            let t = top(&mut parent, c);
            if number[t] == usize::MAX {
                number[t] = count;
                count += 1;
            }
            number[t]
        })
        .collect();
    let of_worker = |r: &Runner| steps.get(r.steps.start).map_or(0, |s| chunk_groups[s.chunk]);
    (runners.iter().map(of_worker).collect(), chunk_groups, count)
}
