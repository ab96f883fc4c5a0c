//! Registered buffers.

use std::sync::Arc;

use cudarc::driver::DevicePtr;

use super::cuda::{Member, Shared};
use super::{Communicator, Inner};
use crate::error::{Error, Result};
use crate::types::Element;

/// One buffer of each rank that the others' copy engines may write; made by [`Communicator::register`].
///
/// While there is a window, calls whose output lies in it, at the same offset on every rank, are carried out by copy engines
/// where that is quicker: no multiprocessor is held while bytes travel. Dropping it makes them calls like others again.
#[derive(Debug)]
pub struct Window {
    shared: Arc<Shared>,
    id: u32,
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(copiers) = self.shared.copiers() {
            copiers.forget(self.id);
        }
    }
}

impl Communicator {
    /// Registers one buffer of each rank, all of one length. `ranks` are all handles of a communicator, in order.
    ///
    /// From then on large all_gathers and broadcasts into them are carried out by copies alone, and with two ranks large
    /// all_reduces and reduce_scatters out of place, but for pre-multiplied sums, by copies and a short kernel that adds.
    /// [`Config::copies_from`](super::Config::copies_from) says what is large. Copies take two streams a rank; a device takes
    /// work from 8 queues at once unless `CUDA_DEVICE_MAX_CONNECTIONS` says more.
    ///
    /// # Safety
    /// The buffers must outlive the window, and what was enqueued while it was there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is not one buffer for each rank, on its device, all of one length;
    /// [`Error::Unavailable`] on CPU ranks, and if a device cannot write another's buffer.
    pub unsafe fn register<T: Element, B: DevicePtr<T>>(
        ranks: &[Communicator],
        buffers: &[B],
    ) -> Result<Window> {
        let wrong = |rank: usize, argument: &'static str, value: String, expected: &str| {
            let expected = expected.to_owned();
            Error::InvalidArgument { call: "register", rank, argument, value, expected }
        };
        let mut members: Vec<&Member> = Vec::new();
        for (place, rank) in ranks.iter().enumerate() {
            match &rank.inner {
                Inner::Cuda(member) if member.rank() == place => members.push(member),
                Inner::Cuda(member) => {
                    let value = format!("rank {} in place {place}", member.rank());
                    return Err(wrong(member.rank(), "ranks", value, "all ranks in order"));
                }
                Inner::Cpu(_) => {
                    return Err(Error::Unavailable {
                        what: "a window of CPU ranks".into(),
                        reason: "they read each other's memory as it is".into(),
                    });
                }
            }
        }
        let Some(first) = members.first() else {
            return Err(wrong(0, "ranks", "an empty list".into(), "all ranks of a communicator"));
        };
        if members.len() != first.ranks() || members.iter().any(|m| !Arc::ptr_eq(m.shared(), first.shared()))
        {
            let expected = format!("the {} ranks of one communicator", first.ranks());
            return Err(wrong(0, "ranks", format!("{} handles", members.len()), &expected));
        }
        if buffers.len() != members.len() {
            let expected = format!("one for each of {} ranks", members.len());
            return Err(wrong(0, "buffers", format!("{} buffers", buffers.len()), &expected));
        }
        let mut addresses = Vec::new();
        for (member, buffer) in members.iter().zip(buffers) {
            if buffer.len() != buffers[0].len() {
                let expected = format!("as many as rank 0 has, {}", buffers[0].len());
                return Err(wrong(member.rank(), "buffers", format!("{} elements", buffer.len()), &expected));
            }
            if buffer.stream().context().cu_device() != member.context().cu_device() {
                let value = format!("memory of device {}", buffer.stream().context().ordinal());
                return Err(wrong(member.rank(), "buffers", value, "memory of the rank's device"));
            }
            let (address, _guard) = buffer.device_ptr(buffer.stream());
            if !member.peers_can_write(address) {
                return Err(Error::Unavailable {
                    what: format!("a window with the buffer of rank {}", member.rank()),
                    reason: "another rank's device cannot write it: there is no peer access, or it is memory of a pool that \
                             the device was not given access to"
                        .into(),
                });
            }
            addresses.push(address);
        }
        let shared = first.shared().clone();
        let id = shared.register(addresses, buffers[0].num_bytes())?;
        Ok(Window { shared, id })
    }
}
