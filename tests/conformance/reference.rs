//! Makes jobs, and checks their results element by element against scalar arithmetic.

use super::memory::{Layout, Memory, input_len};
use super::number::{Number, random};
use super::{Fleet, Job};
use ringleader::{Collective, ReduceOp};

impl<T: Number> Job<T> {
    /// A call with sampled contributions. Different seeds give different data.
    pub(crate) fn sampled(
        collective: Collective,
        op: ReduceOp,
        ranks: usize,
        count: usize,
        layout: Layout,
        seed: u64,
    ) -> Self {
        let len = input_len(collective, ranks, count);
        let inputs = (0..ranks)
            .map(|rank| {
                let base = random(seed ^ ((rank as u64) << 48));
                (0..len).map(|i| T::sample(random(base ^ i as u64), op)).collect()
            })
            .collect();
        Job::new(collective, vec![op; ranks], count, inputs, layout)
    }

    /// A call with the given contributions, one for each rank.
    pub(crate) fn new(
        collective: Collective,
        ops: Vec<ReduceOp>,
        count: usize,
        inputs: Vec<Vec<T>>,
        layout: Layout,
    ) -> Self {
        let ranks = inputs.len();
        let memory = inputs
            .iter()
            .enumerate()
            .map(|(rank, input)| Memory::new(collective, rank, ranks, count, input, layout))
            .collect();
        Job { communicator: 0, collective, ops, count, memory, inputs }
    }

    /// The same call made by another communicator of the fleet.
    pub(crate) fn on(mut self, communicator: usize) -> Self {
        self.communicator = communicator;
        self
    }

    fn ranks(&self) -> usize {
        self.inputs.len()
    }

    /// `all_reduce f32 premulsum × 1000 on 4 ranks in place`.
    pub(crate) fn describe(&self) -> String {
        let op = if self.collective.reduces() { format!(" {:?}", self.ops[0]) } else { String::new() };
        let place = if self.memory[0].in_place { " in place" } else { "" };
        format!("{} {}{op} × {} on {} ranks{place}", self.collective, T::DTYPE, self.count, self.ranks())
    }

    /// The results by rank; `None` for ranks that get none. Panics if anything was written that should not be.
    pub(crate) fn results(&self) -> Vec<Option<&[T]>> {
        let ranks = self.memory.iter().enumerate();
        ranks
            .map(|(rank, memory)| {
                memory
                    .finish(self.collective, rank, self.count)
                    .unwrap_or_else(|why| panic!("{}, rank {rank}: {why}", self.describe()))
            })
            .collect()
    }

    /// Panics unless every result is right, the same bits on all ranks that share it, and nothing else was written.
    pub(crate) fn check(&self) {
        self.check_reductions(T::check);
    }

    /// Like [`check`](Self::check), and reductions must be those of [`Number::in_rank_order`], bit for bit.
    pub(crate) fn check_rank_order(&self) {
        self.check_reductions(|got, contributions, ops| {
            let expected = T::in_rank_order(contributions, ops);
            let same = got.bits() == expected.bits() || got.is_nan() && expected.is_nan();
            if same { Ok(()) } else { Err(format!("expected {expected:?} bit for bit")) }
        });
    }

    fn check_reductions(&self, check: impl Fn(T, &[T], &[ReduceOp]) -> Result<(), String>) {
        let results = self.results();
        let count = self.count;
        let fail = |rank: usize, i: usize, got: T, why: String| -> ! {
            panic!("{}, rank {rank}, element {i}: got {got:?}, {why}", self.describe())
        };
        let mut contributions = Vec::with_capacity(self.ranks());
        let mut reduced = |rank: usize, i: usize, got: T, at: usize| {
            contributions.clear();
            contributions.extend(self.inputs.iter().map(|input| input[at]));
            if let Err(why) = check(got, &contributions, &self.ops) {
                let from: Vec<_> = self.inputs.iter().map(|input| input[at]).collect();
                fail(rank, i, got, format!("{why} from {from:?}"));
            }
        };
        let copied = |rank: usize, i: usize, got: T, expected: T| {
            if got.bits() != expected.bits() {
                fail(rank, i, got, format!("expected a copy of {expected:?}"));
            }
        };
        match self.collective {
            Collective::AllReduce => {
                let first = results[0].expect("every rank gets a result");
                first.iter().enumerate().for_each(|(i, &got)| reduced(0, i, got, i));
                for (rank, result) in results.iter().enumerate().skip(1) {
                    for (i, (&got, &other)) in result.expect("as above").iter().zip(first).enumerate() {
                        if got.bits() != other.bits() {
                            fail(rank, i, got, format!("but rank 0 got {other:?}"));
                        }
                    }
                }
            }
            Collective::Reduce { root } => {
                let result = results[root].expect("the root gets a result");
                result.iter().enumerate().for_each(|(i, &got)| reduced(root, i, got, i));
            }
            Collective::ReduceScatter => {
                for (rank, result) in results.iter().enumerate() {
                    let result = result.expect("every rank gets a result");
                    result.iter().enumerate().for_each(|(i, &got)| reduced(rank, i, got, rank * count + i));
                }
            }
            Collective::AllGather => {
                for (rank, result) in results.iter().enumerate() {
                    let expected = self.inputs.iter().flatten();
                    let result = result.expect("every rank gets a result").iter().zip(expected);
                    result.enumerate().for_each(|(i, (&got, &expected))| copied(rank, i, got, expected));
                }
            }
            Collective::Broadcast { root } => {
                for (rank, result) in results.iter().enumerate() {
                    let result = result.expect("every rank gets a result").iter().zip(&self.inputs[root]);
                    result.enumerate().for_each(|(i, (&got, &expected))| copied(rank, i, got, expected));
                }
            }
        }
    }
}

/// Runs jobs and checks them all.
pub(crate) fn run_and_check<T: Number>(fleet: &mut impl Fleet, mut jobs: Vec<Job<T>>) {
    fleet.run(&mut jobs);
    jobs.iter().for_each(Job::check);
}
