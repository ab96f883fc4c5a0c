//! What a rank is told to do, with which memory.

use std::marker::PhantomData;

use crate::engine::Call;
use crate::types::{Collective, Element};

/// A call of one rank with its buffers, which it borrows until the operation is over.
pub(crate) struct Order<'b> {
    pub(super) call: Call,
    /// Where element 0 of the message would be, were the input the whole message; null if there is no input.
    pub(super) input: *const u8,
    /// The same for the output.
    pub(super) output: *mut u8,
    /// Whether input and output are the same memory at the same place of the message.
    pub(super) in_place: bool,
    buffers: PhantomData<&'b mut [u8]>,
}

impl<'b> Order<'b> {
    /// An order with separate buffers; a rank that gives or takes nothing leaves one out.
    ///
    /// # Panics
    /// If a buffer does not have the length that the call means: callers check it first.
    pub(crate) fn new<T: Element>(
        call: Call,
        rank: usize,
        ranks: usize,
        send: Option<&'b [T]>,
        recv: Option<&'b mut [T]>,
    ) -> Self {
        assert_eq!(T::DTYPE, call.dtype);
        let shape = Shape::new(&call, rank, ranks);
        let input = send.map_or(std::ptr::null(), |s| {
            assert_eq!(s.len(), shape.input_len);
            s.as_ptr().wrapping_sub(shape.input_at).cast()
        });
        let output = recv.map_or(std::ptr::null_mut(), |r| {
            assert_eq!(r.len(), shape.output_len);
            r.as_mut_ptr().wrapping_sub(shape.output_at).cast()
        });
        Order { call, input, output, in_place: false, buffers: PhantomData }
    }

    /// An order whose buffer, as long as the whole message, is input and output.
    ///
    /// # Panics
    /// If the buffer does not have the length of the message: callers check it first.
    pub(crate) fn in_place<T: Element>(call: Call, rank: usize, ranks: usize, buffer: &'b mut [T]) -> Self {
        assert_eq!(T::DTYPE, call.dtype);
        assert_eq!(buffer.len(), call.count * call.collective.blocks(ranks));
        let start: *mut u8 = buffer.as_mut_ptr().cast();
        let gives = !matches!(call.collective, Collective::Broadcast { root } if root != rank);
        let takes = !matches!(call.collective, Collective::Reduce { root } if root != rank);
        Order {
            call,
            input: if gives { start } else { std::ptr::null_mut() },
            output: if takes { start } else { std::ptr::null_mut() },
            in_place: true,
            buffers: PhantomData,
        }
    }
}

/// Which part of the message a rank's buffers are, in elements.
struct Shape {
    input_at: usize,
    input_len: usize,
    output_at: usize,
    output_len: usize,
}

impl Shape {
    fn new(call: &Call, rank: usize, ranks: usize) -> Self {
        let count = call.count;
        let (block, whole) = ((rank * count, count), (0, ranks * count));
        let ((input_at, input_len), (output_at, output_len)) = match call.collective {
            Collective::AllGather => (block, whole),
            Collective::ReduceScatter => (whole, block),
            _ => ((0, count), (0, count)),
        };
        Shape { input_at, input_len, output_at, output_len }
    }
}

/// The elements of the message that a rank's input holds.
pub(super) fn input_range(call: &Call, rank: usize, ranks: usize) -> std::ops::Range<usize> {
    let shape = Shape::new(call, rank, ranks);
    shape.input_at..shape.input_at + shape.input_len
}
