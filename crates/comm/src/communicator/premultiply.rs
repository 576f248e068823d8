//! Pre-multiplied sums.
//!
//! Plans add inputs as they are in memory, and peers read them there. So inputs are multiplied before the call begins: in place if
//! the call may write there, and otherwise in scratch memory, which costs one more pass.

// Kernels take addresses.
#![allow(unsafe_code)]

use weftlink_plan::Aliasing;
use weftlink_recorder::header::Location;

use super::Communicator;
use crate::engine::Tracer;
use crate::error::Error;
use crate::operation::{Detail, Factor, OperationRef};
use crate::request::CallArgs;

impl Communicator {
    /// A call whose operation has a factor.
    #[cold]
    pub(super) fn perform_multiplied(
        &mut self,
        request: CallArgs<'_>,
        tracer: &mut impl Tracer,
    ) -> Result<(), Error> {
        let Some(OperationRef { detail: Detail::Factor(Factor { bytes: factor, data_type }), reduction }) =
            request.operation
        else {
            unreachable!("checked by the caller");
        };
        let elements = request.buffers.elements;
        let misuse = |what: String| Err(Error::Misuse(what));
        let Some(data_type) = data_type.filter(|data_type| elements.data_type == Some(*data_type)) else {
            return misuse(
                "the factor of a pre-multiplied sum must have the type of the elements".to_owned(),
            );
        };
        let Some(scale) = self.shared.kernels.scale(data_type) else {
            return misuse(format!("there is no {reduction} of {}", data_type.name()));
        };
        let request =
            CallArgs { operation: Some(OperationRef { reduction, detail: Detail::Multiplied }), ..request };
        // A call that is refused leaves the buffers as they were.
        self.check_own(&request)?;
        let gets = request.collective.gets(self.rank as u32, self.size as u32) > 0;
        let in_place = request.buffers.aliasing == Aliasing::InPlace && gets;
        let mut multiplied = std::mem::take(&mut self.multiplied);
        let mut request = request;
        let buffers = &mut request.buffers;
        let length = buffers.input_length;
        let target = if in_place {
            buffers.output
        } else {
            multiplied.resize(length * elements.bytes, 0);
            multiplied.as_mut_ptr()
        };
        // SAFETY: the input has `length` elements and so has the target, which is the same or library memory; the buffers
        // are borrowed for the call, which no peer has entered.
        unsafe { scale(target, buffers.input, length, factor.as_ptr()) };
        if !in_place {
            buffers.input = target;
            buffers.input_location = Location::Private { address: target as u64 };
            if buffers.aliasing == Aliasing::InPlace {
                buffers.output = target;
                buffers.output_location = buffers.input_location;
            }
        }
        let done = self.perform(request, tracer);
        self.multiplied = multiplied;
        done
    }
}
