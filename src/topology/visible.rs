//! `CUDA_VISIBLE_DEVICES`, applied where CUDA itself has not been asked.

use crate::topology::detect::Found;
use crate::topology::facts::Facts;
use crate::topology::model::Topology;

/// The GPUs that CUDA would list, in its order.
///
/// The variable is a list of numbers or UUIDs (or beginnings of UUIDs); the first entry that names no GPU
/// ends it. Numbers count in CUDA's own order: by bus id if `CUDA_DEVICE_ORDER` says so, else the fastest
/// first, which is by bus id, too, when all are alike.
pub(crate) fn select<'a>(mut gpus: Vec<Found<'a>>, facts: &Facts, t: &mut Topology) -> Vec<Found<'a>> {
    let Some(list) = &facts.cuda_visible_devices else { return gpus };
    gpus.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
    let by_bus = facts.cuda_device_order.as_deref() == Some("PCI_BUS_ID");
    let alike = gpus.windows(2).all(|w| w[0].name == w[1].name);
    let mut numbers = false;
    let mut chosen: Vec<usize> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        if entry.is_empty() && list.trim().is_empty() {
            break;
        }
        let mut matching = (0..gpus.len()).filter(|&i| {
            let uuid = gpus[i].uuid.as_deref().unwrap_or("");
            entry.len() > 4 && uuid.to_ascii_lowercase().starts_with(&entry.to_ascii_lowercase())
        });
        let found = match entry.parse::<usize>() {
            Ok(number) => {
                numbers = true;
                (number < gpus.len()).then_some(number)
            }
            // A beginning that fits several GPUs names none.
            Err(_) => matching.next().filter(|_| matching.next().is_none()),
        };
        match found {
            Some(i) if !chosen.contains(&i) => chosen.push(i),
            Some(_) => {
                t.warn(format!("CUDA_VISIBLE_DEVICES names {entry:?} twice; CUDA then shows no GPU."));
                chosen.clear();
                break;
            }
            None => {
                t.warn(format!(
                    "CUDA_VISIBLE_DEVICES: {entry:?} names no GPU; it and what follows is left out."
                ));
                break;
            }
        }
    }
    if numbers && !by_bus && !alike {
        t.warn(
            "CUDA_VISIBLE_DEVICES counts GPUs from the fastest on, and the GPUs differ; they are counted by bus id here. \
             CUDA_DEVICE_ORDER=PCI_BUS_ID makes sure.",
        );
    }
    let mut gpus: Vec<Option<Found>> = gpus.into_iter().map(Some).collect();
    chosen.into_iter().filter_map(|i| gpus[i].take()).collect()
}
