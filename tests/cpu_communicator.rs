//! How communicators of CPU ranks behave, seen from outside.

use std::thread;
use std::time::{Duration, Instant};

use ringleader::comm::{DebugLevel, Subsystem};
use ringleader::{Collective, Communicator, Config, Error, ReduceOp, Result, Scalar, group};

/// Runs one closure for each rank, each on its own thread, and returns what they return.
fn on_threads<R: Send>(ranks: &[Communicator], f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let f = &f;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|comm| scope.spawn(move || f(comm))).collect();
        threads.into_iter().map(|t| t.join().expect("no rank panics")).collect()
    })
}

fn value(rank: usize, i: usize) -> f32 {
    ((rank * 31 + i * 7) % 101) as f32 - 50.0
}

fn input(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| value(rank, i)).collect()
}

fn sum(ranks: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (0..ranks).map(|r| value(r, i)).sum()).collect()
}

/// All collectives, in place and not, for one rank; panics on a wrong result. 14 operations.
fn all_collectives(comm: &Communicator, len: usize) -> Result<()> {
    let (n, me) = (comm.ranks(), comm.rank());
    let expected = sum(n, len);
    let op = ReduceOp::Sum;

    let mut out = vec![-1.0; len];
    comm.all_reduce(&input(me, len), &mut out, op)?;
    assert_eq!(out, expected, "all_reduce on rank {me}");
    let mut buffer = input(me, len);
    comm.all_reduce_in_place(&mut buffer, op)?;
    assert_eq!(buffer, expected, "all_reduce_in_place on rank {me}");

    let whole = sum(n, n * len);
    let mut out = vec![-1.0; len];
    comm.reduce_scatter(&input(me, n * len), &mut out, op)?;
    assert_eq!(out, whole[me * len..][..len], "reduce_scatter on rank {me}");
    let mut buffer = input(me, n * len);
    comm.reduce_scatter_in_place(&mut buffer, op)?;
    for (i, x) in buffer.iter().enumerate() {
        let expected = if i / len.max(1) == me { whole[i] } else { value(me, i) };
        assert_eq!(*x, expected, "reduce_scatter_in_place on rank {me}, element {i}");
    }

    let gathered: Vec<f32> = (0..n).flat_map(|r| input(r, len)).collect();
    let mut out = vec![-1.0; n * len];
    comm.all_gather(&input(me, len), &mut out)?;
    assert_eq!(out, gathered, "all_gather on rank {me}");
    let mut buffer = vec![-1.0; n * len];
    buffer[me * len..][..len].copy_from_slice(&input(me, len));
    comm.all_gather_in_place(&mut buffer)?;
    assert_eq!(buffer, gathered, "all_gather_in_place on rank {me}");

    for root in [0, n - 1] {
        let send = input(me, len);
        let mut out = vec![-1.0; len];
        comm.broadcast((me == root).then_some(&send[..]), &mut out, root)?;
        assert_eq!(out, input(root, len), "broadcast on rank {me}");
        let mut buffer = input(me, len);
        comm.broadcast_in_place(&mut buffer, root)?;
        assert_eq!(buffer, input(root, len), "broadcast_in_place on rank {me}");

        let mut out = vec![-1.0; len];
        comm.reduce(&send, (me == root).then_some(&mut out[..]), op, root)?;
        assert_eq!(out, if me == root { expected.clone() } else { vec![-1.0; len] }, "reduce on rank {me}");
        let mut buffer = input(me, len);
        comm.reduce_in_place(&mut buffer, op, root)?;
        assert_eq!(buffer, if me == root { expected.clone() } else { send }, "reduce_in_place on rank {me}");
    }
    Ok(())
}

#[test]
fn every_collective_by_every_algorithm() {
    for algorithm in [None, Some("ring"), Some("direct"), Some("one_shot")] {
        for ranks in [1, 2, 3, 5] {
            for channels in [1, 3] {
                let mut config = Config::new().channels(channels).timeout(Duration::from_secs(60));
                config = algorithm.into_iter().fold(config, |c, a| c.algorithm(a));
                let ranks = Communicator::cpu(ranks, &config).unwrap();
                for len in [0, 1, 7, 1000, 70_000] {
                    for result in on_threads(&ranks, |c| all_collectives(c, len)) {
                        result.unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn one_rank_holds_no_memory() {
    let ranks = Communicator::cpu(1, &Config::new()).unwrap();
    for len in [0, 3, 100_000] {
        all_collectives(&ranks[0], len).unwrap();
    }
    assert_eq!(ranks[0].memory_used(), 0);
    let mut x = [3i32, -4];
    ranks[0].all_reduce_in_place(&mut x, ReduceOp::PreMulSum(Scalar::Int(-2))).unwrap();
    assert_eq!(x, [-6, 8]);
}

#[test]
fn one_thread_drives_128_ranks() {
    let ranks = Communicator::cpu(128, &Config::new()).unwrap();
    for len in [1, 500, 5000] {
        let sends: Vec<_> = (0..128).map(|r| input(r, len)).collect();
        let mut recvs = vec![vec![0.0; len]; 128];
        group(|g| {
            for ((comm, send), recv) in ranks.iter().zip(&sends).zip(&mut recvs) {
                g.all_reduce(comm, send, recv, ReduceOp::Sum)?;
            }
            Ok(())
        })
        .unwrap();
        let expected = sum(128, len);
        assert!(recvs.iter().all(|r| *r == expected));
    }
}

#[test]
fn a_group_queues_several_calls_and_several_communicators() {
    let a = Communicator::cpu(2, &Config::new()).unwrap();
    let b = Communicator::cpu(3, &Config::new()).unwrap();
    let mut x = vec![vec![1u64; 10]; 2];
    let mut y = vec![vec![2i8; 10]; 3];
    let mut z = vec![vec![0u64; 20]; 2];
    let parts = [[5u64; 10], [6; 10]];
    group(|g| {
        for ((comm, x), (z, part)) in a.iter().zip(&mut x).zip(z.iter_mut().zip(&parts)) {
            g.all_reduce_in_place(comm, x, ReduceOp::Sum)?;
            g.all_gather(comm, part, z)?;
        }
        for (comm, y) in b.iter().zip(&mut y).rev() {
            g.all_reduce_in_place(comm, y, ReduceOp::Prod)?;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(x, vec![vec![2; 10]; 2]);
    assert_eq!(y, vec![vec![8; 10]; 3]);
    assert!(z.iter().all(|z| z[..10] == [5; 10] && z[10..] == [6; 10]));
}

#[test]
fn a_group_and_threads_meet() {
    let ranks = Communicator::cpu(4, &Config::new()).unwrap();
    let (grouped, single) = ranks.split_at(2);
    for len in [3usize, 30_000] {
        thread::scope(|scope| {
            for comm in single {
                scope.spawn(move || {
                    let mut x = input(comm.rank(), len);
                    comm.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
                    assert_eq!(x, sum(4, len));
                });
            }
            let mut buffers = vec![input(0, len), input(1, len)];
            group(|g| {
                for (comm, x) in grouped.iter().zip(&mut buffers) {
                    g.all_reduce_in_place(comm, x, ReduceOp::Sum)?;
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(buffers, vec![sum(4, len); 2]);
        });
    }
}

#[test]
fn different_calls_are_an_error_on_every_rank_and_write_nothing() {
    let ranks = Communicator::cpu(3, &Config::new()).unwrap();
    let errors = on_threads(&ranks, |comm| {
        let mut x = vec![comm.rank() as f32; 5000];
        let error = if comm.rank() == 2 {
            comm.broadcast_in_place(&mut x, 1).unwrap_err()
        } else {
            comm.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap_err()
        };
        assert!(x.iter().all(|&v| v == comm.rank() as f32));
        error
    });
    for error in &errors {
        assert!(matches!(error, Error::Mismatch { operation: 1, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("all_reduce f32 sum × 5000"), "{text}");
        assert!(text.contains("broadcast from root 1 f32 × 5000"), "{text}");
    }
    // The ranks still agree about where they are.
    for result in on_threads(&ranks, |comm| all_collectives(comm, 10)) {
        result.unwrap();
    }
}

#[test]
fn counts_types_operators_and_roots_are_compared() {
    let ranks = Communicator::cpu(2, &Config::new()).unwrap();
    let both = |f: &(dyn Fn(&Communicator) -> Result<()> + Sync)| {
        for result in on_threads(&ranks, f) {
            assert!(matches!(result, Err(Error::Mismatch { .. })), "{result:?}");
        }
    };
    both(&|c| c.all_reduce_in_place(&mut vec![0i32; 4 + 4 * c.rank()], ReduceOp::Sum));
    both(&|c| c.all_reduce_in_place(&mut vec![0i32; c.rank() * 9000], ReduceOp::Sum));
    both(&|c| c.all_reduce_in_place(&mut [0u8; 4], [ReduceOp::Min, ReduceOp::Max][c.rank()]));
    both(&|c| c.broadcast_in_place(&mut [0u8; 4], c.rank()));
    both(&|c| match c.rank() {
        0 => c.all_reduce_in_place(&mut [0u32; 4], ReduceOp::Sum),
        _ => c.all_reduce_in_place(&mut [0i32; 4], ReduceOp::Sum),
    });
}

#[test]
fn factors_of_a_pre_multiplied_sum_may_differ() {
    let ranks = Communicator::cpu(3, &Config::new()).unwrap();
    for len in [5, 40_000] {
        for out in on_threads(&ranks, |comm| {
            let mut x = vec![1.0f64; len];
            let factor = Scalar::Float((comm.rank() + 1) as f64);
            comm.all_reduce_in_place(&mut x, ReduceOp::PreMulSum(factor)).unwrap();
            x
        }) {
            assert_eq!(out, vec![6.0; len]);
        }
    }
}

#[test]
fn a_missing_rank_is_named_when_time_is_up() {
    let config = Config::new().timeout(Duration::from_millis(100));
    let ranks = Communicator::cpu(3, &config).unwrap();
    for result in on_threads(&ranks, |c| all_collectives(c, 2)) {
        result.unwrap();
    }
    let results = on_threads(&ranks, |comm| match comm.rank() {
        1 => Ok(()),
        _ => comm.all_reduce_in_place(&mut [1.0f32; 3000], ReduceOp::Sum),
    });
    for rank in [0, 2] {
        let error = results[rank].clone().unwrap_err();
        assert!(matches!(error, Error::Timeout { operation: 15, .. }), "{error}");
        assert!(error.to_string().contains("rank 1 has not entered operation 15, it is at 14"), "{error}");
        assert!(!error.to_string().contains("rank 0 has not"), "{error}");
    }
    // Whoever comes late is told, at once.
    let late = ranks[1].all_reduce_in_place(&mut [1.0f32; 3000], ReduceOp::Sum).unwrap_err();
    assert!(late.to_string().contains("rank 1 has not entered operation 15"), "{late}");
}

#[test]
fn a_dropped_rank_is_an_error_for_those_who_wait() {
    let mut ranks = Communicator::cpu(3, &Config::new()).unwrap();
    let leaver = ranks.pop().unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = ranks
            .iter()
            .map(|comm| scope.spawn(|| comm.all_reduce_in_place(&mut [1u8; 9], ReduceOp::Sum)))
            .collect();
        thread::sleep(Duration::from_millis(30));
        drop(leaver);
        for thread in waiting {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
            assert!(error.to_string().contains("rank 2 was dropped after operation 0"), "{error}");
        }
    });
}

#[test]
fn a_rank_may_be_dropped_as_soon_as_its_own_calls_are_done() {
    for round in 0..50 {
        let ranks = Communicator::cpu(3, &Config::new()).unwrap();
        thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || all_collectives(&comm, [1, 20_000][round % 2]).unwrap());
            }
        });
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_starts() {
    let ranks = Communicator::cpu(2, &Config::new()).unwrap();
    let c = &ranks[1];
    let refused = [
        c.all_reduce(&[1.0f32; 3], &mut [0.0; 4], ReduceOp::Sum),
        c.reduce_scatter(&[1.0f32; 3], &mut [0.0; 2], ReduceOp::Sum),
        c.reduce_scatter_in_place(&mut [1.0f32; 3], ReduceOp::Sum),
        c.all_gather(&[1.0f32; 3], &mut [0.0; 7]),
        c.broadcast(None, &mut [1u8], 1),
        c.broadcast_in_place(&mut [1u8], 2),
        c.reduce(&[1u8], None, ReduceOp::Sum, 1),
        c.all_reduce_in_place(&mut [1i32], ReduceOp::PreMulSum(Scalar::Float(0.5))),
    ];
    for result in refused {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { rank: 1, .. }), "{error}");
    }
    // None of them counted.
    for result in on_threads(&ranks, |c| all_collectives(c, 3)) {
        result.unwrap();
    }
    for bad in [0, 129] {
        assert!(Communicator::cpu(bad, &Config::new()).unwrap_err().to_string().contains("1 to 128"));
    }
    assert!(Communicator::cpu(2, &Config::new().algorithm("rings")).is_err());
    assert!(Communicator::cpu(2, &Config::new().channels(0)).is_err());
}

#[test]
fn a_failing_group_carries_out_nothing() {
    let ranks = Communicator::cpu(2, &Config::new()).unwrap();
    let (mut x, mut y) = ([1u8; 3], [2u8; 3]);
    let result = group(|g| {
        g.all_reduce_in_place(&ranks[0], &mut x, ReduceOp::Sum)?;
        g.broadcast_in_place(&ranks[1], &mut y, 7)
    });
    assert!(matches!(result, Err(Error::InvalidArgument { argument: "root", .. })));
    assert_eq!((x, y), ([1; 3], [2; 3]));
    assert!(on_threads(&ranks, |c| all_collectives(c, 3)).into_iter().all(|r| r.is_ok()));
}

#[test]
fn thousands_of_mixed_operations() {
    for ranks in [2, 4] {
        let ranks = Communicator::cpu(ranks, &Config::new()).unwrap();
        let results = on_threads(&ranks, |comm| {
            for i in 0..150usize {
                all_collectives(comm, i.pow(4) % 3001)?;
            }
            Ok::<(), Error>(())
        });
        for result in results {
            result.unwrap();
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_waiting_rank_sleeps() {
    let cpu_time = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let ranks = Communicator::cpu(2, &Config::new()).unwrap();
    let times = on_threads(&ranks, |comm| {
        if comm.rank() == 1 {
            thread::sleep(Duration::from_millis(300));
        }
        let (wall, cpu) = (Instant::now(), cpu_time());
        comm.all_reduce_in_place(&mut [1.0f32; 100_000], ReduceOp::Sum).unwrap();
        (wall.elapsed(), cpu_time() - cpu)
    });
    let (wall, cpu) = times[0];
    assert!(wall > Duration::from_millis(200), "rank 0 waits for rank 1");
    assert!(cpu < wall / 4, "{cpu:?} of processor time in {wall:?}");
}

/// A communicator that is told of a machine follows the plans for it, shows them, and writes what it is asked to.
#[test]
fn a_machine_from_a_file_is_planned_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("machine"), ringleader::topology::Topology::dgx1v().to_xml()).unwrap();
    let config = Config::new()
        .topology_file(path("machine"))
        .topology_dump_file(path("dump.xml"))
        .graph_dump_file(path("plans.json"))
        .debug(DebugLevel::Info)
        .debug_subsystems([Subsystem::Init, Subsystem::Tuning])
        .debug_file(path("log"));
    let ranks = Communicator::cpu(8, &config).unwrap();
    let plan = ranks[3].explain(Collective::AllReduce, 1 << 30).unwrap();
    assert!(plan.verified && plan.ranks() == 8 && plan.fraction_of_bound() > 0.95, "{}", plan.explain());
    assert_eq!(plan.bytes, 1 << 30);
    let refused = ranks[0].explain(Collective::Broadcast { root: 8 }, 8).unwrap_err();
    assert!(matches!(refused, Error::InvalidValue { .. }), "{refused}");
    std::thread::scope(|scope| {
        for comm in &ranks {
            scope.spawn(move || {
                let mut buffer = vec![comm.rank() as f64; 1000];
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
                assert!(buffer.iter().all(|&x| x == 28.0));
            });
        }
    });
    let dump = ringleader::topology::Topology::load(path("dump.xml")).unwrap();
    assert_eq!(dump.gpus().len(), 8);
    let plans: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path("plans.json")).unwrap()).unwrap();
    assert_eq!(plans.as_array().unwrap().len(), 5);
    assert_eq!(plans[0]["collective"], "all_reduce");
    let log = std::fs::read_to_string(path("log")).unwrap();
    assert!(log.contains("Channel 00/") || log.contains("Rank 0 Trees [0]"), "{log}");
    assert!(log.contains("Channel 00 : 0[cpu] -> 1[cpu] via"), "{log}");
    assert!(log.contains("INFO all_reduce of 8192 bytes: "), "{log}");
}

/// Where calls follow no plan, asking for it says what they follow, and how to have one.
#[test]
fn without_a_machine_there_is_no_plan_to_explain() {
    let ranks = Communicator::cpu(2, &Config::new()).unwrap();
    let text = ranks[0].explain(Collective::AllReduce, 8).unwrap_err().to_string();
    assert!(text.contains("one_shot") && text.contains("topology_file"), "{text}");
    let missing = Communicator::cpu(2, &Config::new().topology_file("/nonexistent")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent"), "{missing}");
}
