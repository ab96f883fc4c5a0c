//! A topology as JSON.

use serde::ser::{Serialize, SerializeStruct, Serializer};
use serde_json::{Value, json};

use crate::topology::model::{Gpu, NodeKind, Topology};
use crate::topology::path::Path;

impl Serialize for Gpu {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut out = s.serialize_struct("Gpu", 8)?;
        out.serialize_field("index", &self.index)?;
        out.serialize_field("bus_id", &self.bus_id)?;
        out.serialize_field("sm", &self.sm)?;
        out.serialize_field("uuid", &self.uuid)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("arch", &self.arch)?;
        out.serialize_field("numa", &self.numa)?;
        out.serialize_field("node", &self.node)?;
        out.end()
    }
}

impl Serialize for Path {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut out = s.serialize_struct("Path", 4)?;
        out.serialize_field("type", &self.kind)?;
        out.serialize_field("gbs", &round(self.gbs))?;
        out.serialize_field("links", &self.links)?;
        out.serialize_field("nodes", &self.nodes)?;
        out.end()
    }
}

/// Serializes to an object with `name`, `gpus` (`index`, `bus_id`, `sm`, `uuid`, `name`, `arch`, `numa`,
/// `node`), `nodes` (`id`, `kind`, `name`, …), `links` (`a`, `b`, `kind`, `count`, `gbs`, `nominal_gbs`),
/// `paths[from][to]` (`type`, `gbs`, `links`, `nodes`) and `warnings`.
impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut out = s.serialize_struct("Topology", 6)?;
        out.serialize_field("name", self.name())?;
        out.serialize_field("gpus", self.gpus())?;
        out.serialize_field("nodes", &self.nodes_json())?;
        out.serialize_field("links", &self.links_json())?;
        out.serialize_field("paths", &self.paths())?;
        out.serialize_field("warnings", self.warnings())?;
        out.end()
    }
}

/// Rates are products such as 18 × 20.6; the digits beyond a thousandth are not information.
fn round(gbs: f64) -> f64 {
    (gbs * 1000.0).round() / 1000.0
}

impl Topology {
    fn nodes_json(&self) -> Vec<Value> {
        let node = |(id, node): (usize, &crate::topology::Node)| {
            let mut value = json!({ "id": id, "name": node.name });
            let (kind, extra) = match &node.kind {
                NodeKind::Gpu(index) => ("gpu", json!({ "index": index })),
                NodeKind::NvSwitch => ("nvswitch", json!({})),
                NodeKind::PciSwitch => ("pcie_switch", json!({})),
                NodeKind::Cpu(cpu) => {
                    ("cpu", json!({ "numa": cpu.numa, "vendor": cpu.vendor, "affinity": cpu.affinity }))
                }
                NodeKind::Nic(nic) => {
                    let nets = nic.nets.iter().map(|n| json!({ "name": n.name, "speed_mbps": n.speed_mbps }));
                    ("nic", json!({ "nets": nets.collect::<Vec<_>>() }))
                }
            };
            value["kind"] = kind.into();
            if let Some(bus_id) = node.pci.as_ref().and_then(|p| p.bus_id.as_ref()) {
                value["bus_id"] = bus_id.as_str().into();
            }
            if let (Value::Object(value), Value::Object(extra)) = (&mut value, extra) {
                value.extend(extra);
            }
            value
        };
        self.nodes().iter().enumerate().map(node).collect()
    }

    fn links_json(&self) -> Vec<Value> {
        let link = |l: &crate::topology::Link| {
            json!({
                "a": l.a, "b": l.b, "kind": l.kind.name(), "count": l.count, "gbs": round(l.gbs),
                "nominal_gbs": l.nominal_gbs.map(round),
            })
        };
        self.links().iter().map(link).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::topology::Topology;

    #[test]
    fn the_promised_fields_are_there() {
        let value = serde_json::to_value(Topology::switch(2, 450.0)).unwrap();
        assert_eq!(value["gpus"][1]["index"], 1);
        assert!(value["gpus"][1].get("bus_id").is_some() && value["gpus"][1].get("sm").is_some());
        assert_eq!(value["paths"][0][1]["type"], "NVL");
        assert_eq!(value["paths"][0][1]["gbs"], 450.0);
        assert_eq!(value["paths"][0][0]["type"], "LOC");
        assert_eq!(value["nodes"][2]["kind"], "nvswitch");
        assert_eq!(value["links"][0]["kind"], "NVLink");
    }
}
