//! Reading NCCL's topology XML.

use roxmltree::{Document, Node, ParsingOptions};

use crate::error::{Error, Result};
use crate::topology::bus_id;
use crate::topology::model::{Cpu, Gpu, Net, Nic, Pci, Topology};
use crate::topology::tree::{self, CpuTree, Device, GpuPart, LinkPart, Part, Tree};

/// PCIe trees are a handful of levels deep; the limit keeps a hostile file from using up the stack.
const MAX_DEPTH: usize = 64;
/// Elements of a file; the largest known file has some 300.
const MAX_ELEMENTS: u32 = 200_000;

impl Topology {
    /// Reads an NCCL topology XML, of NVIDIA's or AMD's library. `file` names it in errors.
    ///
    /// Files need not be complete: what is missing is assumed, and said in [`warnings`](Self::warnings). A
    /// file without any `gpu` element, as cloud providers ship them, takes its GPUs from the class codes of
    /// its `pci` elements. GPUs are in the order of their ranks, or else their device numbers, or else their
    /// bus ids.
    pub fn from_xml(text: &str, file: &str) -> Result<Topology> {
        let options = ParsingOptions { nodes_limit: MAX_ELEMENTS, ..ParsingOptions::default() };
        let text = text.trim_start_matches('\u{feff}');
        let document = Document::parse_with_options(text, options).map_err(|e| Error::Parse {
            file: file.into(),
            line: Some(e.pos().row as usize),
            reason: format!("not well-formed XML: {e}"),
        })?;
        let mut reader =
            Reader { document: &document, file, warnings: Vec::new(), bare: false, unknown: Vec::new() };
        let mut tree = reader.system()?;
        reader.choose_gpus(&mut tree)?;
        let mut t = Topology::new(file);
        for sentence in std::mem::take(&mut reader.warnings) {
            t.warn(sentence);
        }
        tree::assemble(tree, file, &mut t)?;
        Ok(t)
    }
}

struct Reader<'a, 'input> {
    document: &'a Document<'input>,
    file: &'a str,
    warnings: Vec<String>,
    /// Whether some `pci` lacks the attributes that a running NCCL always writes.
    bare: bool,
    /// Names of elements that were passed over.
    unknown: Vec<String>,
}

impl Reader<'_, '_> {
    fn line(&self, element: Node) -> usize {
        self.document.text_pos_at(element.range().start).row as usize
    }

    fn fail<T>(&self, element: Node, reason: impl Into<String>) -> Result<T> {
        Err(Error::Parse { file: self.file.into(), line: Some(self.line(element)), reason: reason.into() })
    }

    fn odd(&mut self, element: Node, what: &str) {
        let line = self.line(element);
        self.warnings.push(format!("Line {line}: {what}."));
    }

    fn pass_over(&mut self, element: Node) {
        let name = element.tag_name().name().to_string();
        if !self.unknown.contains(&name) {
            self.odd(element, &format!("element {name:?} is not known here and is passed over"));
            self.unknown.push(name);
        }
    }

    /// A number, decimal or `0x…`; what is no number is told and counts as missing.
    fn number<T: TryFrom<i64>>(&mut self, element: Node, name: &str) -> Option<T> {
        let text = element.attribute(name)?.trim();
        let value = match text.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).ok(),
            // Some files have fractions ("0.000000").
            None => text.parse().ok().or_else(|| text.parse::<f64>().ok().map(|x| x as i64)),
        };
        let value = value.and_then(|v| T::try_from(v).ok());
        if value.is_none() {
            self.odd(
                element,
                &format!("{name} is {text:?}, which is no number in range; it is taken as missing"),
            );
        }
        value
    }

    fn system(&mut self) -> Result<Tree> {
        let root = self.document.root_element();
        match root.tag_name().name() {
            "system" => {}
            "graphs" => return self.fail(root, "this is a file of search graphs, not of a topology"),
            other => return self.fail(root, format!("the root element is {other:?}, expected \"system\"")),
        }
        match root.attribute("version") {
            Some("1" | "2") => {}
            Some(other) => self.odd(root, &format!("system version {other:?} is read as version 1")),
            None => self.odd(root, "system has no version and is read as version 1"),
        }
        let mut tree = Tree::default();
        for element in elements(root) {
            match element.tag_name().name() {
                "cpu" => {
                    let cpu = self.cpu(element, &mut tree)?;
                    tree.cpus.push(cpu);
                }
                "pci" | "gpu" | "nic" => {
                    let name = element.tag_name().name();
                    self.odd(element, &format!("{name} outside of a cpu is put on a CPU of its own"));
                    let mut devices = Vec::new();
                    self.device(element, 0, &mut devices, &mut tree)?;
                    tree.cpus.push(CpuTree { cpu: Cpu { numa: -1, ..Cpu::default() }, devices });
                }
                _ => self.pass_over(element),
            }
        }
        Ok(tree)
    }

    fn cpu(&mut self, element: Node, tree: &mut Tree) -> Result<CpuTree> {
        let text = |name: &str| element.attribute(name).filter(|v| !v.is_empty()).map(String::from);
        let affinity = text("affinity");
        let is_mask = |m: &String| m.chars().all(|c| c.is_ascii_hexdigit() || c == ',');
        if let Some(mask) = affinity.as_ref().filter(|m| !is_mask(m)) {
            self.odd(element, &format!("affinity {mask:?} is no mask of CPUs; it is kept but not used"));
        }
        let cpu = Cpu {
            numa: self.number(element, "numaid").unwrap_or(-1),
            arch: text("arch"),
            vendor: text("vendor"),
            family: self.number(element, "familyid"),
            model: self.number(element, "modelid"),
            affinity,
            host: text("host_hash").filter(|h| h.trim_start_matches("0x").chars().any(|c| c != '0')),
        };
        let mut devices = Vec::new();
        for child in elements(element) {
            self.device(child, 0, &mut devices, tree)?;
        }
        Ok(CpuTree { cpu, devices })
    }

    /// Reads one element below a cpu or pci into `into`.
    fn device(&mut self, element: Node, depth: usize, into: &mut Vec<Device>, tree: &mut Tree) -> Result<()> {
        if depth > MAX_DEPTH {
            return self.fail(element, format!("pci elements are nested more than {MAX_DEPTH} deep"));
        }
        let line = Some(self.line(element));
        match element.tag_name().name() {
            "pci" => self.pci(element, depth, into, tree)?,
            "nic" => {
                let nic = self.nic(element);
                into.push(Device::new(Pci::default(), line, Part::Nic(nic)));
            }
            "gpu" => {
                self.odd(element, "a gpu outside of a pci has no bus id, and its PCIe link is assumed");
                let gpu = self.gpu(element, None);
                into.push(Device::new(Pci::default(), line, Part::Gpu(Box::new(gpu))));
            }
            _ => self.pass_over(element),
        }
        Ok(())
    }

    fn pci(&mut self, element: Node, depth: usize, into: &mut Vec<Device>, tree: &mut Tree) -> Result<()> {
        let text =
            |name: &str| element.attribute(name).filter(|v| !v.is_empty()).map(str::to_ascii_lowercase);
        let raw = element.attribute("busid").map(str::trim).filter(|v| !v.is_empty());
        let id = raw.map(|r| bus_id::normalize(r).unwrap_or_else(|| r.to_ascii_lowercase()));
        match raw {
            None => self.odd(element, "a pci has no busid"),
            Some(r) if bus_id::normalize(r).is_none() => {
                self.odd(element, &format!("busid {r:?} is no PCI bus id; it is only compared"));
            }
            Some(_) => {}
        }
        let pci = Pci {
            bus_id: id.clone(),
            class: text("class"),
            vendor: text("vendor"),
            device: text("device"),
            subsystem_vendor: text("subsystem_vendor"),
            subsystem_device: text("subsystem_device"),
            link_speed: element.attribute("link_speed").filter(|v| !v.is_empty()).map(String::from),
            link_width: self.number(element, "link_width"),
        };
        self.bare |= pci.vendor.is_none();
        let line = Some(self.line(element));
        let class = pci.class.clone().unwrap_or_default();
        let (mut device, mut extra) = (Device::new(pci, line, Part::Bridge), Vec::new());
        for child in elements(element) {
            match child.tag_name().name() {
                "gpu" if matches!(device.part, Part::Bridge) => {
                    device.part = Part::Gpu(Box::new(self.gpu(child, id.clone())));
                }
                "nic" if matches!(device.part, Part::Bridge) => device.part = Part::Nic(self.nic(child)),
                name @ ("gpu" | "nic") => {
                    self.odd(child, &format!("a second device ({name}) in the same pci is passed over"));
                }
                "pcilink" => {
                    let target = child.attribute("target").map(|t| bus_id::normalize(t).unwrap_or(t.into()));
                    if let (Some(id), Some(target)) = (&id, target) {
                        let known = |(a, b): &(String, String)| {
                            (a == id && *b == target) || (b == id && *a == target)
                        };
                        if !tree.switch_links.iter().any(known) {
                            tree.switch_links.push((id.clone(), target));
                        }
                    }
                }
                _ => self.device(child, depth + 1, &mut device.below, tree)?,
            }
        }
        // A device that has children besides: they hang where it hangs.
        if !matches!(device.part, Part::Bridge) {
            extra.append(&mut device.below);
        } else if class.starts_with("0x02") && device.below.is_empty() {
            device.part = Part::Nic(Nic::default());
        }
        into.push(device);
        into.append(&mut extra);
        Ok(())
    }

    fn gpu(&mut self, element: Node, bus: Option<String>) -> GpuPart {
        let gpu = Gpu {
            bus_id: bus,
            dev: self.number(element, "dev"),
            sm: self.number(element, "sm"),
            arch: element.attribute("gcn").map(String::from),
            ..Gpu::default()
        };
        let mut part = GpuPart { gpu, rank: self.number(element, "rank"), ..GpuPart::default() };
        for child in elements(element) {
            match child.tag_name().name() {
                name @ ("nvlink" | "xgmi") => {
                    let count = self.number(child, "count").unwrap_or(1);
                    let Some(target) = child.attribute("target").map(str::trim) else {
                        self.odd(child, &format!("an {name} has no target and is passed over"));
                        continue;
                    };
                    let target = bus_id::normalize(target).unwrap_or_else(|| target.to_ascii_lowercase());
                    let class = child.attribute("tclass").map(str::to_ascii_lowercase);
                    let xgmi = name == "xgmi";
                    part.links.push(LinkPart { target, count, class, xgmi, nominal_gbs: None });
                }
                "c2c" => {
                    let count: u32 = self.number(child, "count").unwrap_or(1);
                    match self.number::<u32>(child, "bw") {
                        Some(mbs) => {
                            let (gbs, links) = part.c2c.unwrap_or((0.0, 0));
                            let more = f64::from(mbs) * f64::from(count) / 1000.0;
                            part.c2c = Some((gbs + more, links.saturating_add(count)));
                        }
                        None => self.odd(child, "a c2c has no bw and is passed over"),
                    }
                }
                _ => self.pass_over(child),
            }
        }
        part
    }

    fn nic(&mut self, element: Node) -> Nic {
        let mut nets = Vec::new();
        for child in elements(element) {
            if child.tag_name().name() != "net" {
                self.pass_over(child);
                continue;
            }
            let attributes: Vec<(String, String)> =
                child.attributes().map(|a| (a.name().to_string(), a.value().to_string())).collect();
            let name = child.attribute("name").unwrap_or("NIC").to_string();
            nets.push(Net { name, speed_mbps: self.number(child, "speed"), attributes });
        }
        Nic { nets }
    }

    /// In a file without `gpu` elements, GPUs are those `pci` elements whose class says so.
    fn choose_gpus(&mut self, tree: &mut Tree) -> Result<()> {
        fn visit(devices: &mut [Device], f: &mut dyn FnMut(&mut Device)) {
            for device in devices {
                f(device);
                visit(&mut device.below, f);
            }
        }
        let mut each = |f: &mut dyn FnMut(&mut Device)| {
            tree.cpus.iter_mut().for_each(|c| visit(&mut c.devices, f));
        };
        let (mut gpus, mut links) = (0, 0);
        each(&mut |d| {
            if let Part::Gpu(part) = &d.part {
                gpus += 1;
                links += part.links.len();
            }
        });
        let (mut by_class, mut unused) = (0, 0);
        each(&mut |d| {
            if !matches!(d.part, Part::Bridge) || !d.below.is_empty() || !is_gpu_class(&d.pci) {
                return;
            }
            if gpus > 0 {
                unused += 1;
                return;
            }
            by_class += 1;
            let gpu = Gpu { bus_id: d.pci.bus_id.clone(), ..Gpu::default() };
            d.part = Part::Gpu(Box::new(GpuPart { gpu, ..GpuPart::default() }));
        });
        if gpus + by_class == 0 {
            return self.fail(self.document.root_element(), "the file has no GPU");
        }
        if by_class > 0 {
            self.warnings.push(format!(
                "The file has no gpu elements; the {by_class} pci elements with a GPU's class code are taken for \
                 GPUs, in the order of their bus ids, with unknown compute capability."
            ));
        }
        if unused > 0 {
            self.warnings.push(format!(
                "{unused} pci elements with a GPU's class code have no gpu element; they are not used, as NCCL does \
                 not use them either."
            ));
        }
        if links == 0 && (by_class > 0 || self.bare) {
            self.warnings.push(
                "The file lists no NVLinks, so the GPUs are taken to have PCIe only; NCCL would add the NVLinks that it \
                 finds on the running machine."
                    .into(),
            );
        }
        Ok(())
    }
}

/// A GPU by its class: 3D controllers, display controllers of NVIDIA, processing accelerators of AMD.
fn is_gpu_class(pci: &Pci) -> bool {
    let class = pci.class.as_deref().unwrap_or("");
    let vendor = pci.vendor.as_deref();
    class.starts_with("0x0302")
        || (class.starts_with("0x0300") && vendor == Some("0x10de"))
        || (class.starts_with("0x1200") && vendor == Some("0x1002"))
}

fn elements<'a, 'input: 'a>(parent: Node<'a, 'input>) -> impl Iterator<Item = Node<'a, 'input>> {
    parent.children().filter(Node::is_element)
}
