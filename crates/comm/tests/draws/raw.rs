//! A blocking all-reduce on raw addresses, as bindings to other languages use it.

// The call takes addresses.
#![allow(unsafe_code)]

use std::time::Duration;

use weftlink_comm::{Background, DataType, Error, RawBuffers, Reduction, Request};
use weftlink_plan::Collective;

/// Sums the values of all ranks in place. `values` may be part of a window.
pub(crate) fn sum(comm: &Background, values: &mut [f32], deadline: Option<Duration>) -> Result<(), Error> {
    let (address, length) = (values.as_mut_ptr().cast::<u8>(), values.len());
    let buffers = RawBuffers {
        data_type: DataType::F32,
        input: address.cast_const(),
        input_length: length,
        output: address,
        output_length: length,
    };
    let request = Request::new(Collective::AllReduce, buffers).operation(Reduction::Sum);
    let request = Request { deadline, ..request };
    // SAFETY: `values` is borrowed until this function returns, and the call has ended by then.
    match unsafe { comm.run_raw(request) } {
        Ok(made) => made,
        Err(_) => Err(Error::Misuse("another call is in progress".to_owned())),
    }
}
