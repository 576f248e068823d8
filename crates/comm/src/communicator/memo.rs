//! The call before, which most often is the next one too: what was found out about it need not be found out again.

use weftlink_plan::{Aliasing, Collective, Reduction};

use super::check::Fitted;
use super::{PlanId, Request};
use crate::buffers::Buffers;
use crate::compile::Shape;
use crate::data::Elements;
use crate::header::Header;
use crate::kernels::Kernel;
use crate::operation::{Arithmetic, Detail};

/// What a call was and what it came to.
pub(super) struct Memo {
    collective: Collective,
    aliasing: Aliasing,
    elements: Elements,
    lengths: (usize, usize),
    count: Option<usize>,
    reduction: Option<Reduction>,
    plan: Option<PlanId>,
    owner: u64,
    tag: u32,
    shape: Shape,
    call_elements: Elements,
    /// Bytes from the buffers passed to the blocks of the rank; nothing where it has none.
    shifts: (Option<usize>, Option<usize>),
    kernel: Option<Kernel>,
    header: Header,
    signature: u32,
    engines: (usize, usize),
}

/// A call that is ready to be announced.
pub(super) struct Prepared<'a> {
    pub(super) fitted: Fitted,
    pub(super) arithmetic: Arithmetic<'a>,
    pub(super) header: Header,
    pub(super) signature: u32,
    /// The engines for ordinary and for symmetric memory.
    pub(super) engines: (usize, usize),
}

impl Memo {
    /// What is worth keeping of a call; nothing if it depends on more than is compared.
    pub(super) fn of(request: &Request<'_>, prepared: &Prepared<'_>) -> Option<Self> {
        let Prepared { fitted, arithmetic, header, signature, engines } = prepared;
        let kernel = match arithmetic {
            Arithmetic::None => None,
            Arithmetic::Kernel(kernel) => Some(*kernel),
            Arithmetic::User(_) => return None,
        };
        let plain = request.operation.is_none_or(|operation| matches!(operation.detail, Detail::None));
        let buffers = &request.buffers;
        let shift =
            |from: *const u8, to: *const u8| (!to.is_null()).then(|| to.addr().wrapping_sub(from.addr()));
        (request.counts.is_none() && plain).then(|| Self {
            collective: request.collective.clone(),
            aliasing: buffers.aliasing,
            elements: buffers.elements,
            lengths: (buffers.input_length, buffers.output_length),
            count: request.count,
            reduction: request.operation.map(|operation| operation.reduction),
            plan: request.plan,
            owner: buffers.owner,
            tag: request.tag,
            shape: fitted.shape.clone(),
            call_elements: fitted.elements,
            shifts: (shift(buffers.input, fitted.input), shift(buffers.output, fitted.output)),
            kernel,
            header: *header,
            signature: *signature,
            engines: *engines,
        })
    }

    /// Whether a call is the same again, on whatever buffers of the same lengths.
    #[inline]
    fn is(&self, request: &Request<'_>) -> bool {
        let Request { collective, buffers, operation, counts, count, plan, tag } = request;
        let Buffers { input_length, output_length, elements, aliasing, owner, .. } = buffers;
        let plain = operation.as_ref().is_none_or(|operation| matches!(operation.detail, Detail::None));
        self.lengths == (*input_length, *output_length)
            && self.elements == *elements
            && (self.aliasing, self.owner, self.tag, self.plan) == (*aliasing, *owner, *tag, *plan)
            && self.reduction == operation.as_ref().map(|operation| operation.reduction)
            && plain
            && counts.is_none()
            && self.count == *count
            && self.collective == **collective
    }

    /// The call made ready as it was before, if it is the same again.
    #[inline]
    pub(super) fn recall(&self, request: &Request<'_>) -> Option<Prepared<'static>> {
        if !self.is(request) {
            return None;
        }
        let buffers = &request.buffers;
        let (into_input, into_output) = self.shifts;
        let mut header = self.header;
        let (mut input, mut output) = (std::ptr::null(), std::ptr::null_mut());
        if let Some(shift) = into_input {
            input = buffers.input.wrapping_add(shift);
            header.input = buffers.input_location.after(shift);
        }
        if let Some(shift) = into_output {
            output = buffers.output.wrapping_add(shift);
            header.output = buffers.output_location.after(shift);
        }
        let fitted = Fitted {
            input,
            output,
            input_location: header.input,
            output_location: header.output,
            elements: self.call_elements,
            shape: self.shape.clone(),
        };
        let arithmetic = self.kernel.map_or(Arithmetic::None, Arithmetic::Kernel);
        Some(Prepared { fitted, arithmetic, header, signature: self.signature, engines: self.engines })
    }
}
