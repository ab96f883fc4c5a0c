//! The compiled kernels: embedded in the binary, loaded once for each context and element type.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, LazyLock, Weak};

use cudarc::driver::CudaContext;
use parking_lot::Mutex;

use super::driver::{Function, Module, Who};
use crate::error::{Error, Result};
use crate::types::{DataType, ReduceOp};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// One kernel for each operator.
#[derive(Debug)]
pub(crate) struct Family {
    sum: Function,
    prod: Function,
    min: Function,
    max: Function,
}

impl Family {
    /// Finds and loads the kernels of these names.
    fn load(who: Who, module: &Arc<Module>, [sum, prod, min, max]: [&CStr; 4]) -> Result<Self> {
        Ok(Family {
            sum: module.function(who, sum)?,
            prod: module.function(who, prod)?,
            min: module.function(who, min)?,
            max: module.function(who, max)?,
        })
    }

    /// The kernel for an operator. `Avg` and `PreMulSum` are sums that scale; copies use any.
    pub(crate) fn of(&self, op: ReduceOp) -> &Function {
        match op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => &self.sum,
            ReduceOp::Prod => &self.prod,
            ReduceOp::Min => &self.min,
            ReduceOp::Max => &self.max,
        }
    }
}

/// The kernels of one element type.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// Run lowered schedules.
    pub(crate) program: Family,
    /// Exchange packets of 16 bytes.
    pub(crate) exchange16: Family,
    /// Exchange packets of 128 bytes.
    pub(crate) exchange128: Family,
}

/// Whether this build has kernels.
///
/// # Errors
/// [`Error::Unavailable`] saying what to install.
pub(crate) fn embedded() -> Result<()> {
    if MODULES.is_empty() {
        return Err(Error::Unavailable {
            what: "the CUDA engine".into(),
            reason: "this binary was built without nvcc, so it holds no kernels; run scripts/install-nvcc.sh, or set \
                     CUDA_HOME, and build again"
                .into(),
        });
    }
    Ok(())
}

/// The fatbin of a unit.
///
/// # Errors
/// [`Error::Unavailable`] if this build has none.
pub(crate) fn image(unit: &str) -> Result<&'static [u8]> {
    embedded()?;
    let image = MODULES.iter().find(|(name, _)| *name == unit).map(|(_, image)| *image);
    image.ok_or_else(|| Error::Unavailable {
        what: format!("the CUDA kernels for {unit}"),
        reason: "this binary was built without them".into(),
    })
}

type Key = (usize, DataType);

/// Kernels already loaded, by context address and type. Weak: the communicators that use them keep them.
static LOADED: LazyLock<Mutex<HashMap<Key, Weak<Kernels>>>> = LazyLock::new(Default::default);

/// The kernels of a type in a context, loaded at most once for all communicators.
pub(crate) fn load(who: Who, context: &Arc<CudaContext>, dtype: DataType) -> Result<Arc<Kernels>> {
    let key = (context.cu_ctx() as usize, dtype);
    let mut loaded = LOADED.lock();
    if let Some(kernels) = loaded.get(&key).and_then(Weak::upgrade) {
        return Ok(kernels);
    }
    let module = Module::load(who, context, image(dtype.name())?)?;
    let load = |names| Family::load(who, &module, names);
    let kernels = Arc::new(Kernels {
        program: load([c"fold_sum", c"fold_prod", c"fold_min", c"fold_max"])?,
        exchange16: load([c"exchange16_sum", c"exchange16_prod", c"exchange16_min", c"exchange16_max"])?,
        exchange128: load([c"exchange128_sum", c"exchange128_prod", c"exchange128_min", c"exchange128_max"])?,
    });
    loaded.insert(key, Arc::downgrade(&kernels));
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every program that links the crate carries along, for four architectures by default. Without nvcc there is
    /// nothing to weigh.
    #[test]
    fn embedded_kernels_are_light() {
        let bytes: usize = MODULES.iter().map(|(_, image)| image.len()).sum();
        assert!(bytes <= 16 << 20, "{bytes} bytes of kernels");
        assert_eq!(embedded().is_ok(), bytes > 0);
    }
}
