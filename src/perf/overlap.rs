//! What a collective costs a computation beside it, and the computation the collective.
//!
//! A matrix product that fills every multiprocessor runs on one stream of each GPU, a collective on another. Each is
//! timed alone, and while the other certainly runs all the time.

use super::case::Case;
use super::data::{Data, Sample, with_type};
use super::device::Product;
use super::gpu::{Contender, GpuRanks, Library, Places};
use super::{Timing, median};
use crate::comm::{self, Communicator, Config};
use crate::error::Result;
use serde::Serialize;

/// One way to run a collective beside a computation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// `ringleader`, or `NCCL`.
    pub library: &'static str,
    /// Thread blocks of each worker, where they were forced.
    pub lanes: Option<u32>,
    /// Bytes of the message.
    pub bytes: usize,
    /// A call alone, in seconds.
    pub alone: f64,
    /// A call beside products.
    pub beside: f64,
    /// A product alone.
    pub product_alone: f64,
    /// A product beside calls.
    pub product_beside: f64,
}

impl Overlap {
    /// The names of the columns.
    pub fn header() -> String {
        let names = ["call (us)", "beside", "slowed", "product", "beside", "slowed"];
        let columns: String = names.iter().map(|name| format!("  {name:>9}")).collect();
        format!("# {:>12}  {:>10}  {:>5}{columns}\n", "size (B)", "library", "lanes")
    }

    /// One line: times in microseconds, and how many times longer each takes beside the other.
    pub fn line(&self) -> String {
        let lanes = self.lanes.map_or("auto".to_owned(), |l| l.to_string());
        let lanes = if self.library == "NCCL" { "-".to_owned() } else { lanes };
        let pair = |alone: f64, beside: f64| {
            format!("  {:>9.1}  {:>9.1}  {:>8.2}x", alone * 1e6, beside * 1e6, beside / alone)
        };
        format!(
            "  {:>12}  {:>10}  {lanes:>5}{}{}",
            self.bytes,
            self.library,
            pair(self.alone, self.beside),
            pair(self.product_alone, self.product_beside)
        )
    }
}

/// What is tried for this library; without a number, as many lanes as the size makes it choose.
const LANES: [Option<u32>; 4] = [Some(4), Some(8), Some(16), None];

/// Calls timed in one go.
const CALLS: usize = 10;

/// Most calls or products enqueued ahead: the driver's queues hold about a thousand.
const AHEAD: usize = 400;

impl GpuRanks {
    /// Measures a case with several numbers of lanes, and with NCCL if it is there.
    pub(super) fn overlap(&mut self, case: &Case, timing: &Timing, config: &Config) -> Result<Vec<Overlap>> {
        let image = comm::kernel_image("busy")?;
        let devices = self.devices();
        // One product a device, whatever the number of ranks on it.
        let products =
            devices.iter().map(|&(rank, d)| Product::new(rank, d, image)).collect::<Result<Vec<_>>>()?;
        let mut found = Vec::new();
        for lanes in LANES {
            let forced = lanes.map_or(config.clone(), |l| config.clone().lanes(l));
            let contexts: Vec<_> = self.gpus.iter().map(|g| g.context.clone()).collect();
            self.comms = Communicator::cuda(&contexts, &forced)?;
            found.push(
                with_type!(case.dtype, T => self.beside::<T>(&products, case, timing, Library::Ours, lanes))?,
            );
        }
        if self.nccl.is_some() {
            found.push(
                with_type!(case.dtype, T => self.beside::<T>(&products, case, timing, Library::Nccl, None))?,
            );
        }
        Ok(found)
    }

    fn beside<T: Sample>(
        &self,
        products: &[Product],
        case: &Case,
        timing: &Timing,
        library: Library,
        lanes: Option<u32>,
    ) -> Result<Overlap> {
        let ranks = self.gpus.len();
        let data = Data::<T>::new(case, ranks, timing.seed);
        let operators = match (&self.nccl, library) {
            (Some(nccl), Library::Nccl) => Some(nccl.operators(case.dtype, case.op, T::factor(case.op))?),
            _ => None,
        };
        let contender = Contender { library, operators };
        let places = Places::new(case.message_bytes(ranks), self.buffer_bytes(), CALLS);
        self.fill(library, case, &data, &places)?;
        let issue = |calls: usize| self.issue::<T>(&contender, case, &places, calls);
        issue(timing.warmup.max(1))?;
        products.iter().try_for_each(|p| p.enqueue(1))?;
        self.finish(library, products)?;

        // How long a batch takes: the longest of the devices' times, for the collective and for the products.
        let timed_calls = |before: usize| -> Result<f64> {
            products.iter().try_for_each(|p| p.enqueue(before))?;
            let starts = self.gpus.iter().map(|g| g.mark()).collect::<Result<Vec<_>>>()?;
            issue(CALLS)?;
            let ends = self.gpus.iter().map(|g| g.mark()).collect::<Result<Vec<_>>>()?;
            self.finish(library, products)?;
            let times = self.gpus.iter().zip(starts.iter().zip(&ends)).map(|(g, (s, e))| g.between(s, e));
            Ok(times.collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f64::max) / CALLS as f64)
        };
        let timed_product = |before: usize| -> Result<f64> {
            issue(before)?;
            let starts = products.iter().map(|p| p.gpu.mark()).collect::<Result<Vec<_>>>()?;
            products.iter().try_for_each(|p| p.enqueue(1))?;
            let ends = products.iter().map(|p| p.gpu.mark()).collect::<Result<Vec<_>>>()?;
            self.finish(library, products)?;
            let times = products.iter().zip(starts.iter().zip(&ends)).map(|(p, (s, e))| p.gpu.between(s, e));
            Ok(times.collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f64::max))
        };
        let often = |sample: &dyn Fn() -> Result<f64>| -> Result<f64> {
            Ok(median((0..timing.samples.max(1)).map(|_| sample()).collect::<Result<Vec<_>>>()?))
        };
        let alone = often(&|| timed_calls(0))?;
        let product_alone = often(&|| timed_product(0))?;
        // Three times as much of the other as would do, since both get slower.
        let enough = |much: f64, each: f64| ((3.0 * much / each).ceil() as usize + 1).min(AHEAD);
        let (ahead, calls) = (enough(alone * CALLS as f64, product_alone), enough(product_alone, alone));
        Ok(Overlap {
            library: if library == Library::Ours { "ringleader" } else { "NCCL" },
            lanes,
            bytes: case.message_bytes(ranks),
            alone,
            beside: often(&|| timed_calls(ahead))?,
            product_alone,
            product_beside: often(&|| timed_product(calls))?,
        })
    }

    /// Waits for everything.
    fn finish(&self, library: Library, products: &[Product]) -> Result<()> {
        self.wait(library)?;
        products.iter().try_for_each(|p| p.gpu.wait())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_how_much_each_slows() {
        let ours = Overlap {
            library: "ringleader",
            lanes: Some(8),
            bytes: 64 << 20,
            alone: 200e-6,
            beside: 250e-6,
            product_alone: 5e-3,
            product_beside: 5.5e-3,
        };
        let nccl = Overlap { library: "NCCL", lanes: None, ..ours.clone() };
        let table = format!("{}{}\n{}", Overlap::header(), ours.line(), nccl.line());
        insta::assert_snapshot!(table, @r"
        #     size (B)     library  lanes  call (us)     beside     slowed    product     beside     slowed
              67108864  ringleader      8      200.0      250.0      1.25x     5000.0     5500.0      1.10x
              67108864        NCCL      -      200.0      250.0      1.25x     5000.0     5500.0      1.10x
        ");
    }
}
