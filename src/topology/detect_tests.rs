use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::topology::facts::*;
use crate::topology::sysfs;

/// A root with a sysfs in which devices are at the given places below `/sys/devices`.
struct FakeRoot(tempfile::TempDir);

impl FakeRoot {
    fn new(cpuinfo: &str) -> FakeRoot {
        let root = FakeRoot(tempfile::tempdir().unwrap());
        fs::create_dir_all(root.path().join("sys/bus/pci/devices")).unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/cpuinfo"), cpuinfo).unwrap();
        root
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Adds the device at the end of `place`, and the bridges on the way.
    fn device(&self, place: &str, class: &str, vendor: &str, numa: &str, width: &str) -> &FakeRoot {
        let mut folder = self.path().join("sys/devices");
        let parts: Vec<&str> = place.split('/').collect();
        for (at, part) in parts.iter().enumerate() {
            folder.push(part);
            fs::create_dir_all(&folder).unwrap();
            if at == 0 || folder.join("class").exists() {
                continue;
            }
            let last = at + 1 == parts.len();
            let file = |name: &str, text: &str| fs::write(folder.join(name), format!("{text}\n")).unwrap();
            file("class", if last { class } else { "0x060400" });
            file("vendor", if last { vendor } else { "0x1b36" });
            file("numa_node", numa);
            file("max_link_speed", "16.0 GT/s PCIe");
            file("max_link_width", if last { width } else { "16" });
            symlink(&folder, self.path().join("sys/bus/pci/devices").join(part)).unwrap();
        }
        self
    }

    fn node(&self, id: u32, mask: &str) -> &FakeRoot {
        let folder = self.path().join(format!("sys/devices/system/node/node{id}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cpumap"), format!("{mask}\n")).unwrap();
        self
    }

    fn facts(&self) -> Facts {
        Facts {
            version: FACTS_VERSION,
            host: sysfs::host(self.path()),
            sysfs: sysfs::gather(self.path()),
            ..Facts::default()
        }
    }
}

const AMD: &str = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: fpu hypervisor sse\n\nprocessor\t: 1\n";

/// Two GPUs below one switch on node 0 (with a NIC), a third on another host bridge there, a fourth on node 1.
fn server() -> FakeRoot {
    let root = FakeRoot::new(&AMD.replace(" hypervisor", ""));
    let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
    root.device(&format!("{switch}/0000:02:00.0/0000:03:00.0"), "0x030200", "0x10de", "0", "16")
        .device(&format!("{switch}/0000:02:01.0/0000:04:00.0"), "0x030200", "0x10de", "0", "8")
        .device(&format!("{switch}/0000:02:02.0/0000:05:00.0"), "0x020700", "0x15b3", "0", "16")
        .device("pci0000:40/0000:40:01.0/0000:41:00.0", "0x030200", "0x10de", "0", "16")
        .device("pci0000:80/0000:80:01.0/0000:81:00.0", "0x030200", "0x10de", "1", "16")
        .device("pci0000:80/0000:80:02.0", "0x010802", "0x144d", "1", "4")
        .node(0, "00000000,0000ffff")
        .node(1, "00000000,ffff0000");
    let rdma = root.path().join("sys/bus/pci/devices/0000:05:00.0/infiniband/mlx5_0/ports/1");
    fs::create_dir_all(&rdma).unwrap();
    fs::write(rdma.join("rate"), "200 Gb/sec (4X HDR)\n").unwrap();
    root
}

fn row(t: &Topology, from: usize) -> Vec<String> {
    t.paths()[from].iter().map(|p| p.to_string()).collect()
}

fn nvml_gpu(index: u32, bus: &str) -> NvmlGpu {
    NvmlGpu {
        index,
        bus_id: format!("0000{bus}").to_uppercase(),
        uuid: Some(format!("GPU-{index}{index}{index}{index}-aaaa")),
        name: Some("Tesla".into()),
        sm: Some(80),
        pcie_gen: Some(4),
        pcie_width: Some(16),
        ..NvmlGpu::default()
    }
}

fn links(remote: &str, kind: Option<&str>, count: u32) -> Vec<NvmlLink> {
    let link = |link| NvmlLink {
        link,
        active: true,
        p2p: Some(true),
        remote_bus_id: Some(remote.into()),
        remote_type: kind.map(String::from),
        speed_mbs: Some(25_000),
    };
    (0..count).map(link).collect()
}

/// Two GPUs of a virtual machine, with four links to an invisible switch.
fn vm() -> Facts {
    let root = FakeRoot::new(AMD);
    root.device("pci0000:00/0000:00:06.0", "0x030200", "0x10de", "-1", "16").device(
        "pci0000:00/0000:00:07.0",
        "0x030200",
        "0x10de",
        "-1",
        "16",
    );
    let mut facts = root.facts();
    facts.nvml.gpus = vec![nvml_gpu(0, "0000:00:06.0"), nvml_gpu(1, "0000:00:07.0")];
    facts.nvml.gpus.iter_mut().for_each(|g| g.links = links("FFFFFFFF:FF:FF.0", None, 4));
    facts
}

fn ids(t: &Topology) -> Vec<&str> {
    t.gpus().iter().filter_map(|g| g.bus_id.as_deref()).collect()
}

#[test]
fn the_kernels_tree_becomes_switches_and_host_bridges() {
    let facts = server().facts();
    assert_eq!(facts.host.vendor.as_deref(), Some("AuthenticAMD"));
    assert_eq!(facts.host.hypervisor, Some(false));
    let t = Topology::from_facts(&facts).unwrap();
    // The second GPU has half the lanes; a PCIe 4 link carries 24 GB/s.
    assert_eq!(row(&t, 0), ["LOC 5000 GB/s", "PIX 12 GB/s", "NODE 24 GB/s", "SYS 16 GB/s"]);
    assert_eq!(
        t.nodes().iter().filter(|n| n.is_nic()).map(|n| n.name.as_str()).collect::<Vec<_>>(),
        ["mlx5_0"]
    );
    assert_eq!(t.warnings(), &[] as &[String]);
    let again = Topology::from_xml(&t.to_xml(), "dump").unwrap();
    assert_eq!((ids(&again), again.warnings()), (ids(&t), &[] as &[String]));
}

#[test]
fn a_missing_nvml_and_a_missing_sysfs_are_told() {
    let mut facts = server().facts();
    facts.nvml.error = Some("libnvidia-ml.so.1 not found".into());
    let t = Topology::from_facts(&facts).unwrap();
    assert_eq!((t.gpus().len(), t.warnings().len()), (4, 1));
    assert!(t.warnings()[0].contains("libnvidia-ml.so.1"), "{:?}", t.warnings());

    let empty = tempfile::tempdir().unwrap();
    let mut facts = Facts { version: 1, sysfs: sysfs::gather(empty.path()), ..Facts::default() };
    assert!(facts.sysfs.error.is_some());
    facts.nvml.gpus =
        vec![nvml_gpu(0, "0000:01:00.0"), nvml_gpu(1, "0000:02:00.0"), nvml_gpu(2, "0000:81:00.0")];
    let pair = |a, b, level| NvmlPair { a, b, common_ancestor: Some(level), ..NvmlPair::default() };
    facts.nvml.pairs = vec![pair(0, 1, 10), pair(0, 2, 50), pair(1, 2, 50)];
    let t = Topology::from_facts(&facts).unwrap();
    assert_eq!(row(&t, 0), ["LOC 5000 GB/s", "PIX 24 GB/s", "SYS 16 GB/s"]);
    assert!(t.warnings().iter().any(|w| w.contains("cannot be read")), "{:?}", t.warnings());
    assert!(t.warnings().iter().any(|w| w.contains("made up")), "{:?}", t.warnings());
    facts.nvml.pairs.clear();
    let t = Topology::from_facts(&facts).unwrap();
    assert_eq!(t.path(0, 2).unwrap().kind, PathType::Phb);
    assert!(
        t.warnings().iter().any(|w| w.contains("not known; they are taken to share")),
        "{:?}",
        t.warnings()
    );
    facts.nvml = NvmlFacts { error: Some("none".into()), ..NvmlFacts::default() };
    assert_eq!(Topology::from_facts(&facts).unwrap().gpus().len(), 0);
}

#[test]
fn links_to_nothing_but_f_lead_to_a_switch() {
    let t = Topology::from_facts(&vm()).unwrap();
    assert!(t.has_nvswitch());
    let path = t.path(0, 1).unwrap();
    assert_eq!((path.to_string(), path.links), ("NVL 80 GB/s".into(), Some(4)));
    let nominal: Vec<_> = t.links().iter().filter_map(|l| l.nominal_gbs).collect();
    assert_eq!(nominal, [100.0, 100.0]);
}

#[test]
fn links_between_gpus_are_counted_once() {
    let mut facts = vm();
    facts.nvml.gpus[0].links = links("00000000:00:07.0", Some("gpu"), 4);
    facts.nvml.gpus[1].links = links("00000000:00:06.0", None, 4);
    facts.nvml.gpus[0].links[3].active = false;
    facts.nvml.gpus[1].links[3].active = false;
    let t = Topology::from_facts(&facts).unwrap();
    assert!(!t.has_nvswitch());
    assert_eq!(t.path(0, 1).unwrap().to_string(), "NVL 60 GB/s");
    assert!(
        t.warnings().iter().any(|w| w == "1 of the 4 NVLinks of GPU0 are not active."),
        "{:?}",
        t.warnings()
    );
}

#[test]
fn cuda_order_is_rank_order() {
    let cuda = |order: &[usize]| CudaFacts {
        gpus: order
            .iter()
            .map(|i| CudaGpu { bus_id: format!("0000:00:0{}.0", 6 + i), sm: Some(90), ..CudaGpu::default() })
            .collect(),
        peer_access: Vec::new(),
    };
    // The variable has already done its work when CUDA answers.
    let mut facts = vm().with_cuda(cuda(&[1, 0]));
    facts.cuda_visible_devices = Some("1,0".into());
    let t = Topology::from_facts(&facts).unwrap();
    assert_eq!(ids(&t), ["0000:00:07.0", "0000:00:06.0"]);
    assert_eq!(t.gpus()[0].uuid.as_deref(), Some("GPU-1111-aaaa"));
    assert_eq!(t.gpus()[0].dev, Some(1));
    let t = Topology::from_facts(&vm().with_cuda(cuda(&[1]))).unwrap();
    assert_eq!(ids(&t), ["0000:00:07.0"]);
    let error = Topology::from_facts(&vm().with_cuda(cuda(&[1, 1]))).unwrap_err().to_string();
    assert!(error.contains("same bus id"), "{error}");
    let mut unlisted = vm().with_cuda(cuda(&[0, 1]));
    unlisted.nvml.gpus.pop();
    let t = Topology::from_facts(&unlisted).unwrap();
    assert!(t.warnings().iter().any(|w| w.contains("does not list GPU1")), "{:?}", t.warnings());
}

#[test]
fn visible_devices_are_applied_when_cuda_is_silent() {
    let select = |list: &str| {
        let t = Topology::from_facts(&Facts { cuda_visible_devices: Some(list.into()), ..vm() }).unwrap();
        let warned = t.warnings().iter().any(|w| w.contains("CUDA_VISIBLE_DEVICES"));
        (ids(&t).iter().map(|id| id[9..10].to_string()).collect::<String>(), warned)
    };
    assert_eq!(select("1,0"), ("76".into(), false));
    assert_eq!(select("1"), ("7".into(), false));
    assert_eq!(select("GPU-1111,GPU-0000-aaaa"), ("76".into(), false));
    assert_eq!(select(""), ("".into(), false));
    assert_eq!(select("0,-1,1"), ("6".into(), true));
    assert_eq!(select("0,7"), ("6".into(), true));
    assert_eq!(select("GPU-"), ("".into(), true));
    assert_eq!(select("0,0"), ("".into(), true));
}

#[test]
fn an_unused_gpu_is_not_a_relay() {
    let mut facts = vm();
    facts.nvml.gpus[0].links = links("00000000:00:07.0", Some("gpu"), 4);
    facts.nvml.gpus[1].links = links("00000000:00:06.0", Some("gpu"), 4);
    facts.cuda_visible_devices = Some("0".into());
    let t = Topology::from_facts(&facts).unwrap();
    assert!(t.links().iter().all(|l| l.kind != crate::topology::LinkKind::NvLink));
    assert!(!t.warnings().iter().any(|w| w.contains("links to")), "{:?}", t.warnings());
}

#[test]
fn an_unknown_numa_node_is_told_only_when_it_is_unknown() {
    let numa = |t: &Topology| t.warnings().iter().filter(|w| w.contains("NUMA")).cloned().collect::<Vec<_>>();
    let told = numa(&Topology::from_facts(&vm()).unwrap());
    assert!(told.len() == 1 && told[0].contains("one unknown node"), "{told:?}");
    let mut one = vm();
    one.sysfs.numa = vec![NumaFacts { id: 0, cpus: None }];
    let told = numa(&Topology::from_facts(&one).unwrap());
    assert!(told.len() == 1 && told[0].contains("node 0"), "{told:?}");
    let mut known = vm();
    known.sysfs.pci.iter_mut().for_each(|p| p.numa = Some(0));
    assert!(numa(&Topology::from_facts(&known).unwrap()).is_empty());
}

#[test]
fn peer_access_comes_from_cuda_or_nvml() {
    let pair = |write: &str| NvmlPair {
        a: 0,
        b: 1,
        p2p_read: Some("ok".into()),
        p2p_write: Some(write.into()),
        ..NvmlPair::default()
    };
    let mut facts = vm();
    assert_eq!(Topology::from_facts(&facts).unwrap().peer_access(0, 1), None);
    facts.nvml.pairs = vec![pair("ok")];
    assert_eq!(Topology::from_facts(&facts).unwrap().peer_access(0, 1), Some(true));
    facts.nvml.pairs = vec![pair("not supported by the chipset")];
    let t = Topology::from_facts(&facts).unwrap();
    assert_eq!(t.peer_access(1, 0), Some(false));
    assert!(t.warnings().iter().any(|w| w.contains("chipset")), "{:?}", t.warnings());
}

#[test]
fn a_gpu_without_a_pci_device_is_told() {
    let mut facts = vm();
    facts.sysfs.pci.pop();
    let t = Topology::from_facts(&facts).unwrap();
    assert!(
        t.warnings().iter().any(|w| w.contains("no PCI device for GPU1 (0000:00:07.0)")),
        "{:?}",
        t.warnings()
    );
    assert_eq!(t.path(0, 1).unwrap().kind, PathType::Nvl);
}
