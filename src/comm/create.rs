//! Making the ranks of a GPU communicator: memory, transports, and the machine they are on.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaContext;
use parking_lot::Mutex;

use super::choose_gpu::Chooser;
use super::config::{Config, Subsystem};
use super::cuda::{Member, Shared};
use super::log::Log;
use super::machine::Machine;
use super::survey::survey;
use crate::engine::cuda::driver::{self, DeviceMemory, HostMemory, Who};
use crate::engine::cuda::{self, abi};
use crate::error::{Error, Result};
use crate::plan::Limits;
use crate::topology::{Gpu, Topology};
use crate::transport::gpu::{Allowed, Endpoint, Layout, Wiring};

/// Most blocks of all ranks on one device together. They must all be resident at once, so it is also at most one for each
/// multiprocessor, which every kernel is compiled to fit; most fit two, which leaves room for a second communicator.
const BLOCKS_PER_DEVICE: u32 = 128;

/// Creates one handle for each context; the same context may be given more than once.
pub(crate) fn create(contexts: &[Arc<CudaContext>], config: &Config) -> Result<Vec<Member>> {
    config.check()?;
    cuda::available()?;
    let n = contexts.len();
    if n == 0 || n > abi::RL_MAX_RANKS as usize {
        let expected = format!("1 to {} contexts, one for each rank", abi::RL_MAX_RANKS);
        return Err(Error::invalid_value("contexts", n.to_string(), expected));
    }
    let endpoints = contexts
        .iter()
        .enumerate()
        .map(|(rank, context)| {
            let who = Who { rank, device: context.ordinal() };
            Ok(Endpoint { who, context: context.clone(), bus_id: driver::bus_id(who, context)? })
        })
        .collect::<Result<Vec<_>>>()?;
    let crowd = |e: &Endpoint| endpoints.iter().filter(|o| o.bus_id == e.bus_id).count() as u32;
    for e in &endpoints {
        check_queues(crowd(e), &e.bus_id, std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().as_deref())?;
    }
    let mut device_blocks = BLOCKS_PER_DEVICE;
    for e in &endpoints {
        let count = cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = e.context.attribute(count).map_err(|error| e.who.error("cuDeviceGetAttribute", error))?;
        device_blocks = device_blocks.min(count as u32);
        // A rank's share is set by hand.
        device_blocks =
            device_blocks.min(config.max_blocks.unwrap_or(BLOCKS_PER_DEVICE).saturating_mul(crowd(e)));
    }
    let mut early = endpoints.iter().all(|e| crowd(e) == 1);
    for e in &endpoints {
        early &=
            e.context.compute_capability().map_err(|error| e.who.error("cuDeviceGetAttribute", error))?.0
                >= 9;
    }
    let log = Log::new(config)?;
    log.version();
    let (machine, wiring) = wire(&endpoints, config, device_blocks)?;
    machine.publish(config, &log)?;
    let (mut states, mut control) = (Vec::new(), None);
    if n > 1 {
        for e in &endpoints {
            states.push(DeviceMemory::zeroed(e.who, &e.context, size_of::<abi::rl_state>())?);
        }
        let line = abi::RL_LINE as usize;
        let memory = HostMemory::zeroed(endpoints[0].who, &endpoints[0].context, line * (n + 1))?;
        control = Some(Arc::new(memory));
        for (e, state) in endpoints.iter().zip(&states) {
            let done = config.operations_done;
            let start = abi::rl_state { epoch: done, packet_epoch: done, ..Default::default() };
            state.write(e.who, 0, &start)?;
        }
        // cuMemsetD8 may run behind the host: no kernel may see memory before it is cleared.
        for e in &endpoints {
            e.context.synchronize().map_err(|error| e.who.error("cuCtxSynchronize", error))?;
        }
    }
    let mut crowds: Vec<Vec<usize>> = Vec::new();
    for e in &endpoints {
        match crowds.iter_mut().find(|crowd| endpoints[crowd[0]].bus_id == e.bus_id) {
            Some(crowd) => crowd.push(e.who.rank),
            None => crowds.push(vec![e.who.rank]),
        }
    }
    let chooser = Chooser {
        machine,
        config: config.clone(),
        log,
        layout: wiring.as_ref().map(Wiring::layout),
        keeps_lines: wiring.as_ref().is_some_and(Wiring::keeps_lines),
        crowds,
        device_blocks,
        known: Mutex::default(),
        prepared: Mutex::default(),
    };
    let shared = Arc::new(Shared {
        endpoints,
        wiring,
        states,
        control,
        copiers: OnceLock::new(),
        chooser,
        early,
        entered: (0..n).map(|_| AtomicU64::new(0)).collect(),
        dropped: (0..n).map(|_| AtomicBool::new(false)).collect(),
        streams: Mutex::new(vec![None; n]),
    });
    let member =
        |rank| Member { shared: shared.clone(), rank, kernels: Mutex::default(), enqueue: Mutex::default() };
    let members: Vec<Member> = (0..n).map(member).collect();
    let lines = || members.iter().flat_map(Member::channels);
    shared.chooser.log.info(Subsystem::Init, lines);
    let memory = |m: &Member| format!("rank {} holds {} bytes of link memory", m.rank, m.memory_used());
    shared.chooser.log.info(Subsystem::Alloc, || members.iter().map(memory));
    Ok(members)
}

/// Finds out what machine the ranks are on while their link memory is allocated.
fn wire(endpoints: &[Endpoint], config: &Config, device_blocks: u32) -> Result<(Machine, Option<Wiring>)> {
    let n = endpoints.len();
    if n == 1 && config.topology_path().is_none() {
        // Nothing joins one rank to anything: there is nothing to be found out.
        let mut alone = Topology::new("one GPU");
        alone.add_gpu(Gpu { bus_id: Some(endpoints[0].bus_id.clone()), ..Gpu::default() }, None);
        return Ok((Machine::new(&alone, vec![0], config.limits()), None));
    }
    let mut allowed = Allowed { p2p: !config.p2p_disabled, shm: !config.shm_disabled, level: None };
    let wiring = |allowed: &Allowed| {
        let layout = Layout::for_ranks(n);
        (n > 1).then(|| Wiring::new(endpoints, allowed, layout, config.operations_done)).transpose()
    };
    let (found, wiring) = match config.p2p_level {
        None => std::thread::scope(|scope| {
            let found = scope.spawn(|| survey(endpoints, config));
            let wiring = wiring(&allowed);
            (found.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), wiring)
        }),
        Some(level) => {
            let (topology, gpus) = survey(endpoints, config)?;
            let paths = topology.paths();
            let kinds = |&from: &usize| gpus.iter().map(|&to| paths[from][to].kind).collect();
            allowed.level = Some((gpus.iter().map(kinds).collect(), level));
            (Ok((topology, gpus)), wiring(&allowed))
        }
    };
    let ((topology, gpus), wiring) = (found?, wiring?);
    // Where no two devices write each other's memory, data pass through the host's, which NVLinks do not reach.
    let mapped = wiring.as_ref().is_none_or(Wiring::maps_any_peer);
    // Where the machine is another one, ranks share a device that are said to be on several.
    let most = |count: &dyn Fn(usize) -> usize| (0..n).map(count).max().unwrap_or(1).max(1) as u32;
    let planned = most(&|rank| gpus.iter().filter(|&&gpu| gpu == gpus[rank]).count());
    let real = most(&|rank| endpoints.iter().filter(|e| e.bus_id == endpoints[rank].bus_id).count());
    let limits = Limits {
        max_blocks: (device_blocks * planned / real).max(1),
        max_workers: Some((device_blocks / real).clamp(1, abi::RL_MAX_WORKERS) as usize),
        p2p: mapped,
        ..config.limits()
    };
    Ok((Machine::new(&topology, gpus, limits), wiring))
}

/// Refuses more ranks on one device than its queues are safe for. Streams are spread over the queues, and two ranks in one
/// wait for each other for ever: one kernel cannot start before the other, which waits for it, has ended.
fn check_queues(ranks: u32, bus_id: &str, setting: Option<&str>) -> Result<()> {
    let queues = setting.and_then(|text| text.trim().parse().ok()).unwrap_or(8u32).clamp(1, 32);
    // Programs have other streams, too: half of the queues may be ranks'.
    if ranks <= 1 || ranks * 2 <= queues {
        return Ok(());
    }
    let expected = format!(
        "at most {} where the driver has {queues} queues a device; set CUDA_DEVICE_MAX_CONNECTIONS to {} or more before the \
         program starts, or spread the ranks over more devices",
        (queues / 2).max(1),
        ranks * 2
    );
    Err(Error::invalid_value("contexts", format!("{ranks} ranks on the device {bus_id}"), expected))
}

#[cfg(test)]
mod tests {
    use super::check_queues;

    #[test]
    fn ranks_need_queues_of_their_own() {
        assert!(check_queues(4, "0000:06:00.0", None).is_ok());
        assert!(check_queues(8, "0000:06:00.0", Some("16")).is_ok());
        assert!(check_queues(1, "0000:06:00.0", Some("1")).is_ok());
        let text = check_queues(5, "0000:06:00.0", Some("nonsense")).unwrap_err().to_string();
        assert!(
            text.contains("0000:06:00.0") && text.contains("CUDA_DEVICE_MAX_CONNECTIONS to 10"),
            "{text}"
        );
    }
}
