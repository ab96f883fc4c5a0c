//! Which machine GPU ranks are on, and where on it.

use std::sync::OnceLock;

use super::config::Config;
use crate::engine::cuda::driver;
use crate::error::{Error, Result};
use crate::topology::{CudaFacts, CudaGpu, Facts, Topology};
use crate::transport::gpu::Endpoint;

/// The machine, and the GPU of each rank on it.
///
/// The machine is the one in the settings' file, else the one that NVML, the kernel and the driver describe together. Asking
/// NVML and the kernel takes milliseconds, and what they say does not change: a process asks once.
///
/// # Errors
/// As [`Topology::load`]; [`Error::InvalidValue`] if the file has some of the GPUs and not the others; [`Error::Cuda`] if the
/// driver refuses.
pub(super) fn survey(endpoints: &[Endpoint], config: &Config) -> Result<(Topology, Vec<usize>)> {
    let mut devices: Vec<&Endpoint> = Vec::new();
    for endpoint in endpoints {
        if devices.iter().all(|known| known.bus_id != endpoint.bus_id) {
            devices.push(endpoint);
        }
    }
    let Some(path) = config.topology_path() else {
        static FACTS: OnceLock<Facts> = OnceLock::new();
        let facts = FACTS.get_or_init(Facts::gather).clone();
        let topology = Topology::from_facts(&facts.with_cuda(cuda_facts(&devices)?))?;
        let place = |e: &Endpoint| devices.iter().position(|device| device.bus_id == e.bus_id).unwrap_or(0);
        return Ok((topology, endpoints.iter().map(place).collect()));
    };
    let mut topology = Topology::load(path)?;
    let places = places(&topology, endpoints.iter().map(|e| e.bus_id.as_str()), &path.display().to_string())?;
    if places.odd {
        topology.warn(format!(
            "{} has none of the GPUs that the ranks are on: rank i is planned as if it were on GPU i of it.",
            path.display()
        ));
    }
    Ok((topology, places.gpus))
}

fn cuda_facts(devices: &[&Endpoint]) -> Result<CudaFacts> {
    let mut facts = CudaFacts::default();
    for from in devices {
        let capability = from.context.compute_capability().ok();
        facts.gpus.push(CudaGpu {
            bus_id: from.bus_id.clone(),
            uuid: None,
            name: from.context.name().ok(),
            sm: capability.and_then(|(major, minor)| u32::try_from(major * 10 + minor).ok()),
        });
        let mut row = Vec::new();
        for to in devices {
            row.push(
                from.bus_id == to.bus_id || driver::can_access_peer(from.who, &from.context, &to.context)?,
            );
        }
        facts.peer_access.push(row);
    }
    Ok(facts)
}

/// The GPU of each rank in a file.
struct Places {
    gpus: Vec<usize>,
    /// Whether the file is of another machine.
    odd: bool,
}

fn places<'a>(topology: &Topology, ranks: impl Iterator<Item = &'a str>, file: &str) -> Result<Places> {
    let count = topology.gpus().len();
    if count == 0 {
        return Err(Error::invalid_value("NCCL_TOPO_FILE", file, "a machine with at least one GPU"));
    }
    let same = |bus_id: &str, known: &Option<String>| {
        known.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(bus_id))
    };
    let found: Vec<(&str, Option<usize>)> = ranks
        .map(|bus_id| (bus_id, topology.gpus().iter().position(|gpu| same(bus_id, &gpu.bus_id))))
        .collect();
    if found.iter().all(|(_, gpu)| gpu.is_none()) {
        return Ok(Places { gpus: (0..found.len()).map(|rank| rank % count).collect(), odd: true });
    }
    let gpus = found
        .iter()
        .map(|(bus_id, gpu)| {
            gpu.ok_or_else(|| {
                let expected = format!("a machine with the GPU {bus_id}, which a rank is on, as well");
                Error::invalid_value("NCCL_TOPO_FILE", file, expected)
            })
        })
        .collect::<Result<_>>()?;
    Ok(Places { gpus, odd: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_by_bus_id_or_take_turns() {
        let text = r#"<system version="1"><cpu numaid="0"><pci busid="0000:06:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
            <gpu dev="0" sm="90" rank="0"/></pci><pci busid="0000:07:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="1"
            sm="90" rank="1"/></pci></cpu></system>"#;
        let topology = Topology::from_xml(text, "two").unwrap();
        let of = |ids: &[&str]| places(&topology, ids.iter().copied(), "two");
        let here = of(&["0000:07:00.0", "0000:06:00.0", "0000:07:00.0"]).unwrap();
        assert_eq!((here.gpus, here.odd), (vec![1, 0, 1], false));
        let elsewhere = of(&["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]).unwrap();
        assert_eq!((elsewhere.gpus, elsewhere.odd), (vec![0, 1, 0], true));
        let text = of(&["0000:06:00.0", "0000:02:00.0"]).err().unwrap().to_string();
        assert!(text.contains("0000:02:00.0") && text.contains("two"), "{text}");
    }
}
