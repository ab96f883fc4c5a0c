use super::*;

fn read(text: &str) -> Topology {
    Topology::from_smi(text, "matrix", &SmiOptions::default()).unwrap()
}

fn error(text: &str) -> String {
    Topology::from_smi(text, "matrix", &SmiOptions::default()).unwrap_err().to_string()
}

const PAIR: &str = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-3\nGPU1\tPHB\t X \t0-3\n";

#[test]
fn spelling_does_not_matter() {
    let plain = read(PAIR);
    assert_eq!(plain.path(0, 1).unwrap().to_string(), "PHB 24 GB/s");
    let variants = [
        // Spaces; underlined head; no affinity; carriage returns; a prompt before and a legend after; NICs.
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity\nGPU0     X      PHB     0-3            N/A\nGPU1    PHB      X      0-3            N/A\n",
        "\t\u{1b}[4mGPU0\tGPU1\tCPU Affinity\u{1b}[0m\nGPU0\t X \tPHB\t0-3\nGPU1\tPHB\t X \t0-3\n",
        "\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX",
        "\tGPU0\tGPU1\r\nGPU0\tX\tPHB\r\nGPU1\tPHB\tX\r\n",
        "$ nvidia-smi topo -m\n\n\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n\nLegend:\n\n  X    = Self\n  NV#  = bonded\n",
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t0-3\t\tN/A\nGPU1\tPHB\t X \t\t\tN/A\n",
    ];
    for text in variants {
        let t = read(text);
        assert_eq!(t.paths(), plain.paths(), "{text}");
        assert_eq!(t.warnings(), &[] as &[String], "{text}");
    }
    let soc = read("\tGPU0\tGPU1\nGPU0\tX\tSOC\nGPU1\tSOC\tX\n");
    assert_eq!(soc.path(0, 1).unwrap().to_string(), "SYS 16 GB/s");
}

#[test]
fn nics_are_read_and_carry_nothing() {
    let t = read(
        "\tGPU0\tGPU1\tNIC0\tmlx5_9\tCPU Affinity\nGPU0\tX\tPIX\tPIX\tSYS\t0\nGPU1\tPIX\tX\tPXB\tSYS\t0\n\
         NIC0\tPIX\tPXB\tX\tSYS\t\nmlx5_9\tSYS\tSYS\tSYS\tX\n\nNIC Legend:\n\n  NIC0: mlx5_0\n",
    );
    let nics: Vec<_> = t.nodes().iter().filter(|n| n.is_nic()).map(|n| n.name.as_str()).collect();
    assert_eq!(nics, ["mlx5_0", "mlx5_9"]);
    assert!(t.graph().nodes.iter().all(|n| !n.name.starts_with("mlx")));
    let text = t.matrix(crate::topology::Cells::Types);
    assert!(text.contains("\tNIC0\tNIC1") && text.contains("NIC0: mlx5_0"), "{text}");
    assert_eq!(read(&text).paths(), t.paths());
}

#[test]
fn damage_is_told_with_its_line() {
    for (text, line, part) in [
        ("", "", "no line that names GPU0"),
        ("hello\nworld\n", "", "no line that names GPU0"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPHB\n", " line 1", "GPU1 has a column but no row"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\n", " line 3", "1 cells of 2"),
        ("\tGPU0\tGPU1\nGPU0\tX\tFOO\nGPU1\tPHB\tX\n", " line 2", "\"FOO\" between GPU0 and GPU1"),
        ("\tGPU0\tGPU1\nGPU0\tX\tX\nGPU1\tPHB\tX\n", " line 2", "diagonal"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV0\nGPU1\tNV0\tX\n", " line 2", "NV0"),
        ("\tGPU0\tGPU0\nGPU0\tX\tPHB\n", " line 1", "twice"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU0\tX\tPHB\n", " line 3", "second row"),
        ("\tGPU0\nGPU0\tX\nGPU1\tPHB\tX\n", " line 3", "no column"),
    ] {
        let message = error(text);
        assert!(message.starts_with(&format!("matrix{line}: ")), "{text:?}: {message}");
        assert!(message.contains(part), "{text:?}: {message}");
    }
}

#[test]
fn too_many_links_mean_a_switch() {
    let all = |n: usize, links: u32| {
        let mut text: String = (0..n).map(|i| format!("\tGPU{i}")).collect();
        for i in 0..n {
            text += &format!("\nGPU{i}");
            (0..n).for_each(|j| text += &if i == j { "\tX".into() } else { format!("\tNV{links}") });
        }
        text
    };
    let sm = |sm| SmiOptions { sm: Some(sm), ..SmiOptions::default() };
    let switched = read(&all(8, 12));
    assert!(switched.has_nvswitch());
    assert_eq!(switched.path(0, 7).unwrap().to_string(), "NVL 240 GB/s");
    // 3 × 4 = 12 links are possible on an A100, not on a V100.
    assert!(!read(&all(4, 4)).has_nvswitch());
    assert!(!Topology::from_smi(&all(4, 4), "m", &sm(80)).unwrap().has_nvswitch());
    assert!(Topology::from_smi(&all(4, 4), "m", &sm(70)).unwrap().has_nvswitch());
    let hopper = Topology::from_smi(&all(8, 18), "m", &sm(90)).unwrap();
    assert!((hopper.path(0, 1).unwrap().gbs - 370.8).abs() < 1e-9);
    assert_eq!(hopper.path(0, 1).unwrap().links, Some(18));
}

#[test]
fn rates_can_be_given() {
    let options = SmiOptions { sm: None, rates: "NV=25,PHB=20,SYS=9".parse().unwrap() };
    let text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV2\tPHB\nGPU1\tNV2\tX\tSYS\nGPU2\tPHB\tSYS\tX\n";
    let t = Topology::from_smi(text, "m", &options).unwrap();
    assert_eq!(t.path(0, 1).unwrap().to_string(), "NVL 50 GB/s");
    assert_eq!(t.path(0, 2).unwrap().to_string(), "PHB 20 GB/s");
    assert_eq!(t.path(1, 2).unwrap().to_string(), "SYS 9 GB/s");
}

#[test]
fn cells_that_disagree_are_told() {
    let t = read("\tGPU0\tGPU1\nGPU0\tX\tNV2\nGPU1\tPHB\tX\n");
    assert_eq!(t.warnings().len(), 1);
    assert!(t.warnings()[0].contains("PHB is taken"), "{:?}", t.warnings());
    assert_eq!(t.path(0, 1).unwrap().kind, PathType::Phb);
}

#[test]
fn gpus_that_are_only_nvlinked_have_no_pcie_port() {
    let t = Topology::from_smi(
        "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\nGPU0\tX\tNV3\tNV3\tPIX\t0-63\nGPU1\tNV3\tX\tNV3\tPIX\t0-63\n\
         GPU2\tNV3\tNV3\tX\tNV3\t0-63\nGPU3\tPIX\tPIX\tNV3\tX\t0-63\n",
        "m",
        &SmiOptions { sm: None, rates: "NV=25,PIX=24".parse().unwrap() },
    )
    .unwrap();
    let pcie: Vec<_> = t.links().iter().filter(|l| l.kind == LinkKind::Pcie).map(|l| (l.a, l.gbs)).collect();
    assert_eq!(pcie, [(0, 24.0), (1, 24.0), (3, 24.0)]);
    assert_eq!(t.warnings(), &[] as &[String]);
    assert_eq!(t.graph().nodes.len(), 5);
}

#[test]
fn a_hidden_pair_is_placed_by_its_affinity() {
    let rows = "GPU0\tX\tNV4\tSYS\tSYS\t{}\t{}\nGPU1\tNV4\tX\tSYS\tSYS\t{}\t{}\nGPU2\tSYS\tSYS\tX\tNV4\t{}\t{}\nGPU3\tSYS\tSYS\tNV4\tX\t{}\t{}\n";
    let fill = |places: [(&str, &str); 4]| {
        let mut text = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n".to_string() + rows;
        for (cpus, numa) in places {
            text = text.replacen("{}", cpus, 1).replacen("{}", numa, 1);
        }
        read(&text)
    };
    let cpus = |t: &Topology| t.nodes().iter().filter(|n| n.is_cpu()).count();
    let by_numa = fill([("0-7", "0"), ("0-7", "0"), ("8-15", "1"), ("8-15", "1")]);
    assert_eq!((cpus(&by_numa), by_numa.warnings().len()), (2, 0));
    let apart = fill([("0-7", "0"), ("8-15", "1"), ("16-23", "2"), ("24-31", "3")]);
    assert_eq!((cpus(&apart), apart.warnings().len()), (4, 0));
    let unknown = fill([("", ""); 4]);
    assert_eq!((cpus(&unknown), unknown.warnings().len()), (2, 2));
}
