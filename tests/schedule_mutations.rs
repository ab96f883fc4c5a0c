//! Good schedules, damaged in one place: the verifier refuses each, and says where.

use ringleader::Collective;
use ringleader::schedule::{
    ALGORITHMS, Chunk, ChunkId, Fold, Link, LinkId, Request, Role, Schedule, Share, Sink, Source, Worker,
    build, verify,
};

/// Slots a link: the fewest that a ring can live with.
const DEPTH: u32 = 2;

/// Schedules of every algorithm, collective and a few sizes.
fn good() -> Vec<Schedule> {
    let mut all = Vec::new();
    for ranks in [2, 3, 4, 6] {
        let root = ranks / 2;
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root },
            Collective::Reduce { root },
        ] {
            for algorithm in ALGORITHMS.iter().filter(|a| a.supports(collective)) {
                let channels = 1 + ranks % 2;
                all.push(build(algorithm.name(), &Request::new(collective, ranks, channels)).unwrap());
            }
        }
    }
    all
}

/// Applies `mutate` to each fold in turn; each result that it does not skip must be refused. Returns how many.
fn refuse_each(mutate: impl Fn(&mut Vec<Fold>, usize) -> bool) -> usize {
    let mut count = 0;
    for schedule in good() {
        verify(&schedule, DEPTH).unwrap();
        for rank in 0..schedule.ranks {
            for worker in 0..schedule.workers[rank].len() {
                for fold in 0..schedule.workers[rank][worker].folds.len() {
                    let mut bad = schedule.clone();
                    if mutate(&mut bad.workers[rank][worker].folds, fold) {
                        refused(&bad, DEPTH, &format!("mutated rank {rank} worker {worker} fold {fold}"));
                        count += 1;
                    }
                }
            }
        }
    }
    count
}

/// The reason for which a schedule is refused.
#[track_caller]
fn refused(bad: &Schedule, depth: u32, what: &str) -> String {
    let Err(error) = verify(bad, depth) else { panic!("accepted: {what}\n{bad}") };
    let message = error.to_string();
    let names = ["rank ", "worker ", "fold "];
    assert!(names.iter().all(|n| message.contains(n)), "{what}: {message}");
    assert!(message.contains(&bad.name()), "{what}: {message}");
    message
}

#[test]
fn a_dropped_fold_is_refused() {
    assert!(
        refuse_each(|folds, i| {
            folds.remove(i);
            true
        }) > 500
    );
}

#[test]
fn a_duplicated_fold_is_refused() {
    assert!(
        refuse_each(|folds, i| {
            folds.insert(i, folds[i].clone());
            true
        }) > 500
    );
}

#[test]
fn swapped_chunks_are_refused() {
    let swapped = refuse_each(|folds, i| {
        let Some(j) = (i + 1..folds.len()).find(|&j| folds[j].chunk != folds[i].chunk) else { return false };
        let chunk = folds[i].chunk;
        folds[i].chunk = folds[j].chunk;
        folds[j].chunk = chunk;
        true
    });
    assert!(swapped > 300);
}

#[test]
fn a_chunk_in_the_place_of_another_is_refused() {
    for schedule in good().into_iter().filter(|s| s.chunks.len() > 1) {
        let mut bad = schedule.clone();
        bad.chunks.swap(0, 1);
        let message = verify(&bad, 1).unwrap_err().to_string();
        assert!(message.contains("chunk 0"), "{message}");
        let mut bad = schedule.clone();
        bad.chunks.pop();
        verify(&bad, 1).unwrap_err();
    }
}

#[test]
fn a_changed_link_order_is_refused() {
    let exchanged = refuse_each(|folds, i| {
        let links = |f: &Fold| -> Vec<LinkId> {
            f.sources.iter().filter_map(|s| s.link()).chain(f.sinks.iter().filter_map(|s| s.link())).collect()
        };
        let mine = links(&folds[i]);
        let Some(j) = (i + 1..folds.len()).find(|&j| links(&folds[j]).iter().any(|l| mine.contains(l)))
        else {
            return false;
        };
        folds.swap(i, j);
        true
    });
    assert!(exchanged > 200);
}

#[test]
fn a_misplaced_finish_is_refused() {
    assert!(
        refuse_each(|folds, i| {
            folds[i].finish = !folds[i].finish;
            true
        }) > 500
    );
}

#[test]
fn a_peer_operand_at_one_end_only_is_refused() {
    let sinks = refuse_each(|folds, i| {
        let sink = folds[i].sinks.iter_mut().find(|s| s.link().is_some());
        sink.map(|s| {
            *s = match *s {
                Sink::Link(l) => Sink::Peer(l),
                Sink::Peer(l) => Sink::Link(l),
                Sink::Output => Sink::Output,
            }
        })
        .is_some()
    });
    let sources = refuse_each(|folds, i| {
        let source = folds[i].sources.iter_mut().find(|s| s.link().is_some());
        source
            .map(|s| {
                *s = match *s {
                    Source::Link(l) => Source::Peer(l),
                    Source::Peer(l) => Source::Link(l),
                    other => other,
                }
            })
            .is_some()
    });
    assert!(sinks > 300 && sources > 300);
}

#[test]
fn a_lost_operand_is_refused() {
    let lost = refuse_each(|folds, i| folds[i].sources.pop().is_some());
    let unwritten = refuse_each(|folds, i| folds[i].sinks.pop().is_some());
    let foreign = refuse_each(|folds, i| {
        folds[i].sources.push(Source::Input);
        true
    });
    assert!(lost > 500 && unwritten > 500 && foreign > 500);
}

#[test]
fn a_link_on_another_rank_or_channel_is_refused() {
    for schedule in good() {
        // (A ring's broadcast leaves the link that would close the ring unused, and an unused link may be anything.)
        let folds = || schedule.workers.iter().flatten().flat_map(|w| &w.folds);
        let used =
            |link: &usize| folds().any(|f| f.sinks.iter().any(|s| s.link() == Some(LinkId(*link as u32))));
        for link in (0..schedule.links.len()).filter(used) {
            let mut bad = schedule.clone();
            let l = &mut bad.links[link];
            (l.from, l.to) = (l.to, l.from);
            refused(&bad, DEPTH, "a link turned around");
            if schedule.channels > 1 {
                let mut bad = schedule.clone();
                bad.links[link].channel ^= 1;
                refused(&bad, DEPTH, "a link moved to another channel");
            }
        }
    }
}

/// Rank 0 fills one link twice before it fills the other; rank 1 drains the other one first.
fn needs_two_slots() -> Schedule {
    let part = |index| Chunk { block: 0, share: Share::part(index, 3) };
    let link = Link { from: 0, to: 1, channel: 0 };
    let send =
        |chunk, link| Fold::copy(ChunkId(chunk), Source::Input, [Sink::Output, Sink::Peer(LinkId(link))]);
    let take = |chunk, link| Fold::copy(ChunkId(chunk), Source::Peer(LinkId(link)), [Sink::Output]);
    let worker = |role, folds| vec![Worker { channel: 0, role, folds }];
    Schedule {
        algorithm: "crossing",
        collective: Collective::Broadcast { root: 0 },
        ranks: 2,
        channels: 1,
        chunks: (0..3).map(part).collect(),
        links: vec![link, link],
        workers: vec![
            worker(Role::Push, vec![send(0, 0), send(1, 0), send(2, 1)]),
            worker(Role::Relay, vec![take(2, 1), take(0, 0), take(1, 0)]),
        ],
    }
}

#[test]
fn too_few_slots_are_refused_with_the_blocked_folds() {
    let schedule = needs_two_slots();
    verify(&schedule, 2).unwrap();
    verify(&schedule, 3).unwrap();
    insta::assert_snapshot!(refused(&schedule, 1, "one slot"), @"schedule crossing broadcast from root 0 on 2 ranks is not valid: with 1 slots a link it never ends: rank 0 worker 0 fold 1 (copy chunk 1: input => output, peer link 0 (0->1)) waits for a free slot on link 0 (0->1); rank 1 worker 0 fold 0 (copy chunk 2: peer link 1 (0->1) => output) waits for data on link 1 (0->1)");

    // A ring in which every rank has filled its only slot is full: nobody can pass on what has come.
    let ring = build("ring", &Request::new(Collective::AllReduce, 3, 1)).unwrap();
    verify(&ring, 2).unwrap();
    let message = refused(&ring, 1, "a ring with one slot");
    assert!(
        message.contains("rank 2 worker 0 fold 1") && message.contains("free slot on link 2"),
        "{message}"
    );
    assert!(verify(&schedule, 0).unwrap_err().to_string().contains("depth"));
}

#[test]
fn a_cycle_of_waits_is_refused_at_any_depth() {
    // Each rank of a ring waits for its predecessor before it sends.
    let mut ring = build("ring", &Request::new(Collective::AllGather, 4, 1)).unwrap();
    for workers in &mut ring.workers {
        workers[0].folds.rotate_left(1);
    }
    // Rotated alike, links still match; only the order of a worker's first send is wrong.
    let message = refused(&ring, 64, "receive before send");
    assert!(message.contains("for chunk") || message.contains("never ends"), "{message}");

    let mut one_shot = build("one_shot", &Request::new(Collective::AllReduce, 3, 1)).unwrap();
    for workers in &mut one_shot.workers {
        workers[0].folds.swap(0, 1);
    }
    let message = refused(&one_shot, 64, "reduce before push");
    assert!(message.contains("waits for data"), "{message}");
}

#[test]
fn an_early_write_in_place_is_refused() {
    // Pushing and reducing in separate workers: nothing keeps the result from being written before it was sent.
    let mut split = build("one_shot", &Request::new(Collective::AllReduce, 3, 1)).unwrap();
    for workers in &mut split.workers {
        let reduce = workers[0].folds.split_off(1);
        workers.push(Worker { channel: 0, role: Role::Reduce, folds: reduce });
    }
    let message = refused(&split, 4, "a split worker");
    assert!(message.contains("not safe in place") && message.contains("rank 0 worker 1 fold 0"), "{message}");
}

#[test]
fn an_early_write_by_a_peer_is_refused() {
    // Rank 0 tells rank 1 the sum before rank 1's other worker is known to have read its input.
    let chunk = ChunkId(0);
    let (up, down, late) = (LinkId(0), LinkId(1), LinkId(2));
    let link = |from, to| Link { from, to, channel: 0 };
    let worker = |folds| Worker { channel: 0, role: Role::Relay, folds };
    let late_read = Schedule {
        algorithm: "late",
        collective: Collective::AllReduce,
        ranks: 2,
        channels: 1,
        chunks: vec![Chunk { block: 0, share: Share::ALL }],
        links: vec![link(1, 0), link(0, 1), link(1, 0)],
        workers: vec![
            vec![worker(vec![
                Fold::reduce(
                    chunk,
                    [Source::Input, Source::Link(up)],
                    [Sink::Output, Sink::Peer(down)],
                    true,
                ),
                Fold::copy(chunk, Source::Link(late), []),
            ])],
            vec![
                worker(vec![
                    Fold::copy(chunk, Source::Input, [Sink::Link(up)]),
                    Fold::copy(chunk, Source::Peer(down), [Sink::Output]),
                ]),
                worker(vec![Fold::copy(chunk, Source::Input, [Sink::Link(late)])]),
            ],
        ],
    };
    let message = refused(&late_read, 2, "a read that nothing waits for");
    assert!(message.contains("lent output of rank 1") || message.contains("not safe in place"), "{message}");

    // With the drain before the write, all is in order.
    let mut fixed = late_read;
    fixed.workers[0][0].folds.swap(0, 1);
    verify(&fixed, 1).unwrap();
}

#[test]
fn nonsense_is_refused_without_a_panic() {
    let good = build("direct", &Request::new(Collective::AllReduce, 3, 1)).unwrap();
    let refuse = |change: &dyn Fn(&mut Schedule), word: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let message = verify(&bad, 1).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    };
    refuse(&|s| s.ranks = 0, "0 ranks");
    refuse(&|s| s.ranks = 129, "129 ranks");
    refuse(&|s| s.ranks = 2, "workers");
    refuse(&|s| s.collective = Collective::Broadcast { root: 3 }, "root");
    refuse(&|s| s.links[4].to = 9, "link 4");
    refuse(&|s| s.links[4].channel = 1, "link 4");
    refuse(&|s| s.channels = 0, "channel");
    refuse(&|s| s.chunks.clear(), "chunk");
    refuse(&|s| s.chunks[1].share.of = 0, "chunk 1");
    refuse(&|s| s.chunks[2].block = 1, "chunk 2");
    refuse(&|s| s.workers[1][0].folds[0].chunk = ChunkId(7), "chunk 7");
    refuse(&|s| s.workers[1][0].folds[0].sinks = vec![Sink::Link(LinkId(99))], "link 99");
    refuse(&|s| s.workers[1][0].folds[0].sources.clear(), "no source");
    refuse(&|s| s.workers[1][0].channel = 5, "channel 5");
    refuse(&|s| s.workers[2].clear(), "that no fold drains");
}
