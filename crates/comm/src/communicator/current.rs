//! The call that is being made, and was made last: when the next one is the same again, which it most often is, what was
//! found out about it need not be found out again.

// Addresses of a call's buffers are kept, for its time.
#![allow(unsafe_code)]

use weftlink_plan::{Aliasing, Collective, Reduction};

use super::check::Fitted;
use super::{PlanId, Request};
use crate::buffers::Buffers;
use crate::compile::Shape;
use crate::data::Elements;
use crate::header::Header;
use crate::kernels::Kernel;
use crate::line::PAYLOAD_WORDS;
use crate::operation::{Arithmetic, Detail};

/// What a call is and what it comes to.
pub(super) struct Current {
    asked: Asked,
    /// Whether a call that asks for the same is the same.
    repeatable: bool,
    /// Bytes from the buffers passed to the blocks of the rank; nothing where it has none.
    shifts: (Option<usize>, Option<usize>),
    kernel: Option<Kernel>,
    pub(super) fitted: Fitted,
    pub(super) header: Header,
    pub(super) words: [u64; PAYLOAD_WORDS],
    pub(super) signature: u32,
    /// The engines for ordinary and for symmetric memory.
    pub(super) engines: (usize, usize),
}

// SAFETY: the addresses are those of a call's buffers, and are used only while the call borrows them.
unsafe impl Send for Current {}

/// What was asked for, but for where the buffers lie.
#[derive(PartialEq)]
struct Asked {
    lengths: (usize, usize),
    count: Option<usize>,
    elements: Elements,
    aliasing: Aliasing,
    reduction: Option<Reduction>,
    plan: Option<PlanId>,
    owner: u64,
    tag: u32,
}

impl Asked {
    #[inline]
    fn by(request: &Request<'_>) -> Self {
        let Request { buffers, operation, count, plan, tag, .. } = request;
        let Buffers { input_length, output_length, elements, aliasing, owner, .. } = buffers;
        Self {
            lengths: (*input_length, *output_length),
            count: *count,
            elements: *elements,
            aliasing: *aliasing,
            reduction: operation.as_ref().map(|operation| operation.reduction),
            plan: *plan,
            owner: *owner,
            tag: *tag,
        }
    }
}

impl Current {
    /// No call that any other could be the same as.
    pub(super) fn none() -> Self {
        let none = Buffers::none();
        let shape = Shape { aliasing: none.aliasing, element_bytes: 1, count: 0, uneven: None };
        let request = Request::new(&Collective::Barrier, none);
        let fitted = Fitted::nothing(shape);
        let header = Header::allocating(crate::header::What::Load, 0, 0, Elements::BYTES);
        let mut none = Self::new(&request, fitted, &Arithmetic::None, header, (0, 0));
        none.repeatable = false;
        none
    }

    pub(super) fn new(
        request: &Request<'_>,
        fitted: Fitted,
        arithmetic: &Arithmetic<'_>,
        header: Header,
        engines: (usize, usize),
    ) -> Self {
        let kernel = match arithmetic {
            Arithmetic::Kernel(kernel) => Some(*kernel),
            Arithmetic::None | Arithmetic::User(_) => None,
        };
        let shift =
            |from: *const u8, to: *const u8| (!to.is_null()).then(|| to.addr().wrapping_sub(from.addr()));
        Self {
            asked: Asked::by(request),
            repeatable: request.counts.is_none() && !matches!(arithmetic, Arithmetic::User(_)),
            shifts: (
                shift(request.buffers.input, fitted.input),
                shift(request.buffers.output, fitted.output),
            ),
            kernel,
            fitted,
            words: header.pack(),
            signature: header.signature(),
            header,
            engines,
        }
    }

    /// Takes the buffers of a call that is the same again, and tells how it combines; nothing if it is another call.
    #[inline]
    pub(super) fn again(&mut self, request: &Request<'_>) -> Option<Arithmetic<'static>> {
        let is_plain = |detail: &Detail<'_>| matches!(detail, Detail::None);
        let same = self.repeatable
            && self.asked == Asked::by(request)
            && self.header.is_of(request.collective)
            && request.counts.is_none()
            && request.operation.as_ref().is_none_or(|operation| is_plain(&operation.detail));
        if !same {
            return None;
        }
        let buffers = &request.buffers;
        if let Some(shift) = self.shifts.0 {
            self.fitted.input = buffers.input.wrapping_add(shift);
            self.header.input = buffers.input_location.after(shift);
        }
        if let Some(shift) = self.shifts.1 {
            self.fitted.output = buffers.output.wrapping_add(shift);
            self.header.output = buffers.output_location.after(shift);
        }
        self.header.pack_places(&mut self.words);
        Some(self.kernel.map_or(Arithmetic::None, Arithmetic::Kernel))
    }
}
