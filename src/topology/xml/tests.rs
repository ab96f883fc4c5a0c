use crate::topology::{LinkKind, NodeKind, PathType, Topology};

fn read(text: &str) -> Topology {
    Topology::from_xml(text, "topo.xml").unwrap()
}

fn error(text: &str) -> String {
    Topology::from_xml(text, "topo.xml").unwrap_err().to_string()
}

/// A pair of GPUs below one CPU with the given children of their gpu elements.
fn pair(sm: u32, one: &str, other: &str) -> String {
    format!(
        r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="{sm}" rank="0" gdr="1">{one}</gpu>
    </pci>
    <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="1" sm="{sm}" rank="1" gdr="1">{other}</gpu>
    </pci>
  </cpu>
</system>"#
    )
}

#[test]
fn a_plain_pair() {
    let t = read(&pair(80, "", ""));
    // 24 and, with width 0 counted as 16 lanes, 48.
    assert_eq!(t.path(0, 1).unwrap().to_string(), "PHB 24 GB/s");
    assert_eq!(t.warnings(), &[] as &[String]);
    assert_eq!(t.gpus()[1].bus_id.as_deref(), Some("0000:02:00.0"));
    assert_eq!(t.gpus()[1].sm, Some(80));
}

#[test]
fn nvlinks_to_gpus_switches_and_nowhere() {
    let link = |target: &str, count: u32, class: &str| {
        format!(r#"<nvlink target="{target}" count="{count}" tclass="{class}"/>"#)
    };
    let direct = read(&pair(80, &link("0000:02:00.0", 4, "0x030200"), &link("0000:01:00.0", 4, "0x030200")));
    assert_eq!((direct.path(0, 1).unwrap().to_string(), direct.warnings().len()), ("NVL 80 GB/s".into(), 0));

    let planes = link("0000:c4:00.0", 10, "0x068000") + &link("0000:c5:00.0", 8, "0x068000");
    let switched = read(&pair(90, &planes, &planes));
    let path = switched.path(0, 1).unwrap();
    assert_eq!((path.kind, path.links, switched.has_nvswitch()), (PathType::Nvl, Some(18), true));
    assert!((path.gbs - 370.8).abs() < 1e-9);
    assert_eq!(switched.nodes().iter().filter(|n| n.kind == NodeKind::NvSwitch).count(), 1);

    let hidden = link("fffffff:ffff:ff", 18, "0x068000");
    assert_eq!(read(&pair(90, &hidden, &hidden)).path(0, 1).unwrap().links, Some(18));
    let classless = r#"<nvlink target="fffffff:ffff:ff" count="18"/>"#;
    assert!(read(&pair(90, classless, classless)).has_nvswitch());

    let itself = read(&pair(80, &link("0000:01:00.0", 4, "0x030200"), ""));
    assert_eq!(itself.path(0, 1).unwrap().kind, PathType::Phb);
    assert!(itself.warnings()[0].contains("names itself"), "{:?}", itself.warnings());

    let away = read(&pair(80, &link("0000:99:00.0", 4, "0x030200"), ""));
    assert!(away.warnings()[0].contains("0000:99:00.0"), "{:?}", away.warnings());

    let uneven = read(&pair(80, &link("0000:02:00.0", 4, "0x030200"), &link("0000:01:00.0", 2, "0x030200")));
    assert_eq!(uneven.path(0, 1).unwrap().links, Some(2));
    assert!(uneven.warnings()[0].contains("2 are assumed"), "{:?}", uneven.warnings());

    let one_sided = read(&pair(80, &link("0000:02:00.0", 4, "0x030200"), ""));
    assert_eq!(one_sided.path(1, 0).unwrap().links, Some(4));
    assert!(one_sided.warnings()[0].contains("both ways"), "{:?}", one_sided.warnings());
}

#[test]
fn chip_to_chip_links_have_their_own_rate() {
    let c2c = r#"<c2c bw="45000" count="10"/>"#;
    let t = read(&pair(90, c2c, c2c));
    assert_eq!(t.path(0, 1).unwrap().to_string(), "C2C 450 GB/s");
}

#[test]
fn two_level_switches_of_one_chip_become_one() {
    let switch = |id: &str, board: &str| {
        format!(
            r#"<pci busid="{id}" class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="{board}" link_speed="32.0 GT/s PCIe" link_width="16">"#
        )
    };
    let gpu = |id: &str, n: u32| {
        format!(
            r#"<pci busid="{id}" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="{n}" sm="90" rank="{n}"/></pci>"#
        )
    };
    let machine = |board: &str| {
        format!(
            r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">{}{}{}</pci>{}{}</pci></pci></cpu></system>"#,
            switch("0000:01:00.0", "0x0072"),
            switch("0000:02:00.0", board),
            gpu("0000:03:00.0", 0),
            switch("0000:04:00.0", board),
            gpu("0000:05:00.0", 1),
        )
    };
    assert_eq!(read(&machine("0x1003")).path(0, 1).unwrap().kind, PathType::Pix);
    assert_eq!(read(&machine("0x2003")).path(0, 1).unwrap().kind, PathType::Pxb);
}

#[test]
fn gpus_are_in_rank_order() {
    let text = pair(80, "", "").replace("rank=\"0\"", "rank=\"7\"").replace("rank=\"1\"", "rank=\"3\"");
    let ids: Vec<_> = read(&text).gpus().iter().filter_map(|g| g.bus_id.clone()).collect();
    assert_eq!(ids, ["0000:02:00.0", "0000:01:00.0"]);
    let same = read(&pair(80, "", "").replace("rank=\"1\"", "rank=\"0\""));
    assert!(same.warnings()[0].contains("rank"), "{:?}", same.warnings());
}

#[test]
fn what_is_missing_is_assumed() {
    let t = read(
        r#"<system version="1"><cpu><pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="8">
        <pci busid="0000:02:00.0" class="0x030200"/><pci busid="0000:03:00.0" class="0x030200"/>
        <pci busid="0000:04:00.0" class="0x010802"/></pci></cpu></system>"#,
    );
    // Speed and width come from the switch above.
    assert_eq!(t.path(0, 1).unwrap().to_string(), "PIX 12 GB/s");
    assert_eq!(t.warnings().len(), 2, "{:?}", t.warnings());
    assert!(t.warnings()[0].contains("no gpu elements") && t.warnings()[1].contains("no NVLinks"));
    let odd = read(
        &pair(80, "", "")
            .replace("affinity=\"ff\"", "affinity=\"none\"")
            .replace("modelid=\"143\"", "modelid=\"x\""),
    );
    assert_eq!(odd.warnings().len(), 2, "{:?}", odd.warnings());
    assert!(odd.warnings()[0].starts_with("Line 2: "), "{:?}", odd.warnings());
}

#[test]
fn damage_is_told_with_its_line() {
    for (text, start, part) in [
        ("", "topo.xml line 1: ", "not well-formed"),
        ("<system version=\"1\">\n<cpu>\n</system>", "topo.xml line 3: ", "not well-formed"),
        ("<graphs version=\"1\"/>", "topo.xml line 1: ", "search graphs"),
        ("\n<html/>", "topo.xml line 2: ", "\"html\""),
        ("<system version=\"1\"/>", "topo.xml line 1: ", "no GPU"),
    ] {
        let message = error(text);
        assert!(message.starts_with(start) && message.contains(part), "{text:?}: {message}");
    }
    let twice = error(&pair(80, "", "").replace("0000:02:00.0", "0000:01:00.0"));
    assert!(twice.starts_with("topo.xml line 6: ") && twice.contains("0000:01:00.0"), "{twice}");
    let deep = format!(
        "<system version=\"1\">{}{}</system>",
        "<cpu>".to_string() + &"<pci>".repeat(100),
        "</pci>".repeat(100) + "</cpu>"
    );
    assert!(error(&deep).contains("64 deep"));
}

#[test]
fn what_is_written_is_read_back() {
    let planes = r#"<nvlink target="0000:c4:00.0" count="10" tclass="0x068000"/><nvlink target="0000:c5:00.0" count="8" tclass="0x068000"/><c2c bw="45000" count="10"/>"#;
    let t = read(&pair(90, planes, planes));
    let again = read(&t.to_xml());
    assert_eq!(again, t, "{}", t.to_xml());
    for preset in [Topology::switch(4, 450.0), Topology::dgx1v(), Topology::pcie_two_sockets(24.0, 16.0)] {
        let again = read(&preset.to_xml());
        let kinds = |t: &Topology| -> Vec<Vec<_>> {
            t.paths().iter().map(|row| row.iter().map(|p| (p.kind, p.links)).collect()).collect()
        };
        assert_eq!(kinds(&again), kinds(&preset), "{}", preset.to_xml());
    }
    assert!(t.links().iter().any(|l| l.kind == LinkKind::C2c));
}
