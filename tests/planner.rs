//! Plans on real and random machines: right, near the bound, and never behind the best ring.

use std::path::PathBuf;
use std::time::Instant;

use ringleader::Collective;
use ringleader::plan::{PlanRequest, Planner};
use ringleader::topology::Topology;

/// The topology files, where this machine has them.
fn files() -> Vec<PathBuf> {
    let root = std::env::var_os("RINGLEADER_TOPOLOGIES")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/topologies"));
    let mut found: Vec<PathBuf> = ["xml", "smi"]
        .iter()
        .filter_map(|kind| std::fs::read_dir(root.join(kind)).ok())
        .flatten()
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    found.sort();
    found
}

fn collectives() -> [Collective; 5] {
    [
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast { root: 0 },
        Collective::AllReduce,
        Collective::Reduce { root: 0 },
    ]
}

#[test]
fn survey() {
    for file in files() {
        let topology = match Topology::load(&file) {
            Ok(t) => t,
            Err(e) => {
                println!("{file:?}: {e}");
                continue;
            }
        };
        let planner = Planner::new(&topology);
        println!("{}", file.file_name().unwrap().to_str().unwrap());
        for collective in collectives() {
            for log in [30] {
                let start = Instant::now();
                let plan = planner.compare(&PlanRequest::new(collective, 1 << log));
                let took = start.elapsed();
                match plan {
                    Ok(plan) => {
                        println!(
                            "   {:<14} 2^{log} {:<24} ch {:3} blocks {:4} tile {:7} {:>12.1} us {:7.2} of {:7.2} GB/s = {:.3}  in {took:?}",
                            collective.name(),
                            plan.label,
                            plan.schedule.channels,
                            plan.blocks,
                            plan.tile_bytes,
                            plan.predicted_us,
                            plan.algbw_gbs(),
                            plan.bound_algbw_gbs(),
                            plan.fraction_of_bound()
                        );
                        let all: Vec<String> = plan
                            .outlooks
                            .iter()
                            .map(|o| format!("{} {:.3}", o.name, o.fraction_of_bound))
                            .collect();
                        println!("         {}", all.join(", "));
                    }
                    Err(e) => println!("   {} {e}", collective.name()),
                }
            }
        }
    }
}
