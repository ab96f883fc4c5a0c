//! NCCL's topology XML.
//!
//! The format: a `system` holds one `cpu` for each NUMA node, a `cpu` holds `pci` elements that nest as the
//! PCIe tree does, and a `pci` that is a device holds a `gpu` or a `nic`. A `gpu` lists its links: `nvlink`,
//! `xgmi`, `c2c`.

mod read;
mod write;

#[cfg(test)]
mod tests;
