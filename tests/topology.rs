//! Topologies from files and from recorded facts, through the public interface.

use std::path::{Path, PathBuf};

use ringleader::topology::{Cells, Facts, LinkKind, PathType, SmiOptions, Topology};

/// The folder of machine descriptions, where there is one: `RINGLEADER_TOPOLOGIES`, or `../shared/topologies`.
fn collection() -> Option<PathBuf> {
    let named = std::env::var_os("RINGLEADER_TOPOLOGIES").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/topologies");
    [named, Some(beside)].into_iter().flatten().find(|p| p.is_dir())
}

fn files(kind: &str) -> Vec<PathBuf> {
    let Some(folder) = collection() else { return Vec::new() };
    let mut files: Vec<_> =
        std::fs::read_dir(folder.join(kind)).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// What of a topology a plan depends on.
fn kinds(t: &Topology) -> Vec<Vec<(PathType, Option<u32>)>> {
    t.paths().iter().map(|row| row.iter().map(|p| (p.kind, p.links)).collect()).collect()
}

/// Number of GPUs, path types and rates from GPU 0, whether there is a fabric, warnings.
fn summary(t: &Topology) -> (usize, String, bool, usize) {
    let from = |i: usize| {
        let row = t.paths().swap_remove(i);
        let cells = row.iter().enumerate().filter(|&(j, _)| j != i);
        cells.map(|(_, p)| format!("{}:{:.1}", p.kind, p.gbs)).collect::<Vec<_>>().join(" ")
    };
    (t.gpus().len(), from(0), t.has_nvswitch(), t.warnings().len())
}

#[test]
fn every_xml_file_of_the_collection_loads() {
    let same = |cell: &str, n: usize| vec![cell; n].join(" ");
    for path in files("xml") {
        let t = Topology::load(&path).unwrap();
        assert!(t.is_connected(), "{path:?}");
        let (n, row, fabric, warnings) = summary(&t);
        let got = (n, row.as_str(), fabric, warnings);
        let note = format!("{path:?}: {:?}", t.warnings());
        match stem(&path).as_str() {
            // 48 GB/s for each of seven xGMI links.
            "amd-8xMI300X-xgmi-mesh" => {
                assert_eq!(got, (8, same("NVL:48.0", 7).as_str(), false, 0), "{note}")
            }
            "aws-p4d24xl-8xA100" => {
                let row = "PIX:12.0 PHB:12.0 PHB:12.0 SYS:10.0 SYS:10.0 SYS:10.0 SYS:10.0";
                assert_eq!(got, (8, row, false, 2), "{note}");
            }
            "aws-p5.48xl-8xH100-32efa" => assert_eq!((n, fabric, warnings), (8, false, 1), "{note}"),
            "azure-ndv4-8xA100" => {
                // In bus id order: 0001, 0002 (NUMA 1), 0003, 0004 (0), 000b, 000c (3), 000d, 000e (2).
                let row = format!("PIX:24.0 {}", same("SYS:16.0", 6));
                assert_eq!(got, (8, row.as_str(), false, 2), "{note}");
            }
            "dgxa100-8xA100-reconstructed" => {
                assert_eq!(got, (8, same("NVL:240.0", 7).as_str(), true, 0), "{note}");
            }
            "hgx-4xA100-all-to-all-nvlink-reconstructed" => {
                assert_eq!(got, (4, same("NVL:80.0", 3).as_str(), false, 0), "{note}");
            }
            "hgx-8xH100-oci-baremetal" => {
                assert_eq!(got, (8, same("NVL:370.8", 7).as_str(), true, 0), "{note}");
            }
            "pcie-4xRTXA6000-2socket" => {
                assert_eq!(got, (4, "PHB:12.0 SYS:10.0 SYS:10.0", false, 0), "{note}")
            }
            "pcie-8xRTX4000Ada-2socket" => {
                let row = format!("{} {}", same("PHB:24.0", 3), same("SYS:16.0", 4));
                assert_eq!(got, (8, row.as_str(), false, 0), "{note}");
            }
            _ => assert!(n > 0, "{note}"),
        }
        let again = Topology::from_xml(&t.to_xml(), t.name()).unwrap();
        assert_eq!(kinds(&again), kinds(&t), "{path:?} written and read again:\n{}", t.to_xml());
    }
}

#[test]
fn every_smi_file_of_the_collection_loads() {
    let same = |cell: &str, n: usize| vec![cell; n].join(" ");
    for path in files("smi") {
        let t = Topology::load(&path).unwrap();
        assert!(t.is_connected(), "{path:?}");
        let (n, row, fabric, warnings) = summary(&t);
        let got = (n, row.as_str(), fabric, warnings);
        let note = format!("{path:?}: {:?}", t.warnings());
        match stem(&path).as_str() {
            "2gpu-PHB-spaces" => assert_eq!(got, (2, "PHB:24.0", false, 0), "{note}"),
            "4xA100-all-to-all-NV4-1nic" => {
                assert_eq!(got, (4, same("NVL:80.0", 3).as_str(), false, 0), "{note}")
            }
            "a100pcie-4gpu-NV12-pairs-2socket" => {
                assert_eq!(got, (4, "NVL:240.0 SYS:16.0 SYS:16.0", false, 0), "{note}");
            }
            "article-4gpu" => assert_eq!(got, (4, "NVL:60.0 NVL:60.0 NVB:60.0", false, 0), "{note}"),
            "dgx1v-8xV100" => {
                let row = "NVL:20.0 NVL:20.0 NVL:40.0 NVL:40.0 NVB:20.0 NVB:20.0 NVB:40.0";
                assert_eq!(got, (8, row, false, 0), "{note}");
            }
            "dgxa100-8xA100-12mlx" | "p4d-8xA100-vm" => {
                assert_eq!(got, (8, same("NVL:240.0", 7).as_str(), true, 0), "{note}");
            }
            "hgx-8xA800-NV8-8nic" => assert_eq!(got, (8, same("NVL:160.0", 7).as_str(), true, 0), "{note}"),
            "hgx-8xH100-spaces" => assert_eq!(got, (8, same("NVL:360.0", 7).as_str(), true, 0), "{note}"),
            "p3-8xlarge-4xV100-vm" => assert_eq!(got, (4, "NVL:20.0 NVL:20.0 NVL:40.0", false, 0), "{note}"),
            "pcie-8gpu-NODE-SYS-2socket" => {
                let row = format!("{} {}", same("NODE:24.0", 3), same("SYS:16.0", 4));
                assert_eq!(got, (8, row.as_str(), false, 0), "{note}");
            }
            "pcie-8gpu-PIX-NODE-SYS-2socket-spaces" => {
                let row = format!("PIX:24.0 NODE:24.0 NODE:24.0 {}", same("SYS:16.0", 4));
                assert_eq!(got, (8, row.as_str(), false, 0), "{note}");
            }
            "rtx3090-pair-NV4" => assert_eq!(got, (2, "NVL:80.0", false, 0), "{note}"),
            "vm-4xL40S-PHB-SYS" => assert_eq!(got, (4, "PHB:24.0 SYS:16.0 SYS:16.0", false, 0), "{note}"),
            _ => assert!(n > 0, "{note}"),
        }
        let again = Topology::from_smi(&t.matrix(Cells::Types), t.name(), &SmiOptions::default()).unwrap();
        assert_eq!(kinds(&again), kinds(&t), "{path:?} printed and read again:\n{}", t.matrix(Cells::Types));
    }
}

#[test]
fn the_matrix_of_a_file_is_printed_as_it_was_read() {
    for path in files("smi") {
        let options = SmiOptions::default();
        let text = std::fs::read_to_string(&path).unwrap();
        let t = Topology::from_smi(&text, "m", &options).unwrap();
        let rows = |text: &str| -> Vec<Vec<String>> {
            let n = t.gpus().len();
            let gpu_row = |l: &&str| l.starts_with("GPU") && l.split_whitespace().count() > n;
            let cells = |l: &str| l.split_whitespace().take(n + 1).map(String::from).collect();
            text.lines().filter(gpu_row).map(cells).collect()
        };
        // Two pairs of the article's machine are PIX apart although a relay over NVLink is nearer: the tool says PIX.
        assert_eq!(rows(&t.matrix(Cells::Types)), rows(&text), "{path:?}");
    }
}

fn fixture(name: &str) -> Facts {
    Facts::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

#[test]
fn two_h200_in_a_virtual_machine() {
    let t = Topology::from_facts(&fixture("2xH200-vm.json")).unwrap();
    let path = t.path(0, 1).unwrap();
    assert_eq!((path.kind, path.links), (PathType::Nvl, Some(18)));
    assert!((path.gbs - 18.0 * 20.6).abs() < 1e-9);
    assert!(t.has_nvswitch());
    let wires: Vec<_> = t.links().iter().filter(|l| l.kind == LinkKind::NvLink).collect();
    assert_eq!(wires.len(), 2);
    for wire in wires {
        assert_eq!(wire.count, 18);
        assert!((wire.nominal_gbs.unwrap() - 478.116).abs() < 1e-6);
    }
    assert_eq!((t.peer_access(0, 1), t.peer_access(1, 0)), (Some(true), Some(true)));
    let ids: Vec<_> = t.gpus().iter().map(|g| (g.bus_id.as_deref().unwrap(), g.sm)).collect();
    assert_eq!(ids, [("0000:00:06.0", Some(90)), ("0000:00:07.0", Some(90))]);
    // Exactly what is true of this machine: its NUMA node is unknown, and its PCI bus is a made-up one.
    assert_eq!(t.warnings().len(), 2, "{:?}", t.warnings());
    assert!(t.warnings().iter().any(|w| w.contains("NUMA")), "{:?}", t.warnings());
    assert!(t.warnings().iter().any(|w| w.contains("virtual")), "{:?}", t.warnings());
    // A dump of it, as XML, is the same machine.
    let again = Topology::from_xml(&t.to_xml(), "dump").unwrap();
    assert_eq!(kinds(&again), kinds(&t));
    assert_eq!(again.warnings(), &[] as &[String]);
}

#[test]
fn facts_replay_to_the_same_topology() {
    let facts = fixture("2xH200-vm.json");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("facts.json");
    facts.record(&file).unwrap();
    assert_eq!(Facts::load(&file).unwrap(), facts);
    let loaded = Topology::load(&file).unwrap();
    assert_eq!(loaded.paths(), Topology::from_facts(&facts).unwrap().paths());
}

#[test]
fn the_running_machine_is_always_a_topology() {
    // With or without GPUs, NVML and sysfs.
    let facts = Facts::gather();
    let t = Topology::from_facts(&facts).unwrap();
    assert_eq!(t.paths().len(), t.gpus().len());
    if facts.nvml.error.is_some() {
        assert!(t.warnings().iter().any(|w| w.contains("NVML cannot be used")), "{:?}", t.warnings());
    }
    assert_eq!(Facts::from_json(&facts.to_json(), "facts").unwrap(), facts);
}

#[test]
fn a_file_of_no_kind_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for (content, part) in [
        ("", "empty"),
        ("hello", "no topology"),
        ("{}", "no version"),
        ("{\"version\": 9}", "version 9"),
        ("{\"version\": 1", "line 1"),
        ("<system>", "line 1"),
    ] {
        let file = folder.path().join("thing");
        std::fs::write(&file, content).unwrap();
        let message = Topology::load(&file).unwrap_err().to_string();
        assert!(message.contains("thing") && message.contains(part), "{content:?}: {message}");
    }
    let message = Topology::load(folder.path().join("missing")).unwrap_err().to_string();
    assert!(message.contains("missing"), "{message}");
    assert!(Topology::load(folder.path()).unwrap_err().to_string().contains("directory"));
}

mod damaged {
    //! Whatever a file holds, reading it ends with a topology or an error.

    use super::*;
    use proptest::prelude::*;

    /// Texts to damage: a few that are always there, and the collection.
    fn texts() -> Vec<String> {
        let own = [
            Topology::dgx1v().to_xml(),
            Topology::pcie_two_sockets(24.0, 16.0).to_xml(),
            Topology::dgx1v().matrix(Cells::Types),
            Topology::pcie_two_sockets(24.0, 16.0).matrix(Cells::Types),
            fixture("2xH200-vm.json").to_json(),
        ];
        let found = ["xml", "smi"].into_iter().flat_map(files).map(|p| std::fs::read_to_string(p).unwrap());
        own.into_iter().chain(found).collect()
    }

    /// Reads the text by every reader and uses what comes out.
    fn read(text: &str) {
        let options = SmiOptions::default();
        let readers: [Result<Topology, ringleader::Error>; 4] = [
            Topology::from_text(text, "text", &options),
            Topology::from_xml(text, "text"),
            Topology::from_smi(text, "text", &options),
            Facts::from_json(text, "text").and_then(|f| Topology::from_facts(&f)),
        ];
        for t in readers.into_iter().flatten() {
            assert!(t.paths().iter().flatten().all(|p| p.gbs.is_finite()));
            assert!(t.graph().arcs.iter().all(|a| a.mbs > 0));
            let again = Topology::from_xml(&t.to_xml(), "again");
            assert!(again.is_ok() || t.gpus().is_empty(), "{again:?}\n{}", t.to_xml());
            assert!(!t.matrix(Cells::Rates).is_empty());
        }
    }

    fn mutate(text: &str, edits: &[(u32, u8, String)]) -> String {
        let mut chars: Vec<char> = text.chars().collect();
        for (place, what, piece) in edits {
            if chars.is_empty() {
                break;
            }
            let at = *place as usize % chars.len();
            match what % 6 {
                0 => chars[at] = piece.chars().next().unwrap_or('0'),
                1 => drop(chars.splice(at..at, piece.chars())),
                2 => drop(chars.splice(at..(at + 40).min(chars.len()), [])),
                3 => chars.truncate(at),
                4 => {
                    let copy = chars[at..(at + 120).min(chars.len())].to_vec();
                    drop(chars.splice(at..at, copy));
                }
                // A number, or another word of the format, in place of whatever word is there.
                _ => {
                    let start = (0..at).rev().find(|&i| !chars[i].is_alphanumeric()).map_or(0, |i| i + 1);
                    let end = (at..chars.len()).find(|&i| !chars[i].is_alphanumeric()).unwrap_or(chars.len());
                    drop(chars.splice(start..end.max(start), piece.chars()));
                }
            }
        }
        chars.into_iter().collect()
    }

    fn piece() -> impl Strategy<Value = String> {
        let words = [
            "0",
            "-1",
            "18446744073709551616",
            "4294967295",
            "1e308",
            "NaN",
            "X",
            "NV999",
            "NV0",
            "SYS",
            "PIX",
            "GPU0",
            "gpu",
            "pci",
            "nvlink",
            "cpu",
            "\"",
            "<",
            ">",
            "/>",
            "\t",
            "\n",
            "\u{1b}[",
            "\u{0}",
            "é",
            "0x068000",
            "ffffffff:ff:ff.0",
        ];
        prop_oneof![
            proptest::sample::select(words.to_vec()).prop_map(String::from),
            proptest::collection::vec(any::<char>(), 0..4).prop_map(|c| c.into_iter().collect()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn texts_never_panic(which in any::<u16>(), edits in proptest::collection::vec((any::<u32>(), any::<u8>(), piece()), 1..8)) {
            let texts = texts();
            read(&mutate(&texts[which as usize % texts.len()], &edits));
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read(&String::from_utf8_lossy(&bytes));
        }
    }
}
