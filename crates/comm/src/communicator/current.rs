//! The running call, which is also the last call: most calls repeat the one before, and reuse its checks and layout.

// Keeps the addresses of a call's buffers while it runs.
#![allow(unsafe_code)]

use weftlink_kernels::{Finish, Kernel};
use weftlink_plan::{Collective, Reduction};
use weftlink_recorder::header::Header;
use weftlink_shm::line::PAYLOAD_WORDS;

use super::announce::Announced;
use super::check::Fitted;
use crate::buffers::{Buffers, ORDINARY};
use crate::compile::Shape;
use crate::operation::{Arithmetic, Detail, OperationRef};
use crate::request::CallArgs;
use crate::shared::Call;
use crate::signatures::SignatureTable;

/// A call with its checks and layout.
pub(super) struct Current {
    fingerprint: Fingerprint,
    /// The collective, if the fingerprint does not identify it.
    collective: Option<Collective>,
    /// Whether a call with the same fingerprint is the same.
    repeatable: bool,
    /// The engine, if the call has run and no other rank accesses its buffers.
    pub(super) private: Option<usize>,
    /// The finishing pass over the result, if it needs one.
    pub(super) finishing: Option<Finish>,
    /// Offsets of this rank's blocks in the buffers, in bytes; `None` if it has no block.
    shifts: (Option<usize>, Option<usize>),
    kernel: Option<Kernel>,
    pub(super) fitted: Fitted,
    pub(super) header: Header,
    pub(super) words: [u64; PAYLOAD_WORDS],
    pub(super) signature: u32,
    pub(super) hash: u64,
    /// Whether ranks have to compare whole headers before any data moves.
    pub(super) is_new: bool,
    /// The engines for ordinary and for symmetric memory.
    pub(super) engines: (usize, usize),
}

// SAFETY: the addresses are those of a call's buffers, and are used only while the call borrows them.
unsafe impl Send for Current {}

/// The arguments of a call except the addresses of its buffers, packed, because every call compares them.
struct Fingerprint([u64; 8]);

impl Fingerprint {
    /// Whether two calls have the same arguments. Word by word: `memcmp` would load what was just stored in other sizes.
    #[inline]
    fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differences, (one, two)| differences | (one ^ two)) == 0
    }

    #[inline]
    fn of(request: &CallArgs<'_>) -> Self {
        let CallArgs { collective, buffers, operation, count, plan, tag, .. } = request;
        let Buffers { input_length, output_length, elements, aliasing, owner, .. } = buffers;
        let reduction = operation.as_ref().map_or(0, |operation| 1 + code(operation.reduction));
        let data_type = elements.data_type.map_or(0, |data_type| 1 + data_type as u64);
        // Buffers in windows: whether both are.
        let is_partly = *owner != ORDINARY
            && !(buffers.input_location.is_symmetric() && buffers.output_location.is_symmetric());
        let (kind, root) = (collective.kind() as u64, u64::from(collective.root().unwrap_or(0)));
        Self([
            *input_length as u64,
            *output_length as u64,
            kind | reduction << 8 | data_type << 16 | (*aliasing as u64) << 24 | root << 32,
            elements.bytes as u64,
            *owner ^ u64::from(is_partly) << 63,
            plan.map_or(0, |plan| 1 + plan.index as u64) | u64::from(*tag) << 32,
            plan.map_or(0, |plan| plan.owner),
            count.map_or(0, |count| (count as u64).saturating_add(1)),
        ])
    }
}

/// Whether an operation is fully described by its reduction.
#[inline]
fn is_plain(operation: Option<&OperationRef<'_>>) -> bool {
    operation.is_none_or(|operation| matches!(operation.detail, Detail::None))
}

/// Whether a collective is more than its kind and root.
fn has_more(collective: &Collective) -> bool {
    matches!(collective, Collective::Neighbours { .. } | Collective::SendReceive { .. })
}

/// A number for each reduction; the same for all user-defined ones.
#[inline]
fn code(reduction: Reduction) -> u64 {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Product => 1,
        Reduction::Minimum => 2,
        Reduction::Maximum => 3,
        Reduction::Average => 4,
        Reduction::PremultipliedSum => 5,
        Reduction::LogicalAnd => 6,
        Reduction::LogicalOr => 7,
        Reduction::LogicalXor => 8,
        Reduction::BitAnd => 9,
        Reduction::BitOr => 10,
        Reduction::BitXor => 11,
        Reduction::UserDefined { .. } => 12,
    }
}

impl Current {
    /// A placeholder that no call repeats.
    pub(super) fn none() -> Self {
        let none = Buffers::none();
        let shape = Shape { aliasing: none.aliasing, element_bytes: 1, count: 0, uneven: None };
        let request = CallArgs::new(&Collective::Barrier, none);
        let fitted = Fitted::nothing(shape);
        let header = Header::allocating(weftlink_recorder::header::CallKind::Load, 0, 0, (None, 1));
        let mut none = Self::new(&request, fitted, &Arithmetic::None, header, (0, 0), None);
        none.repeatable = false;
        none
    }

    pub(super) fn new(
        request: &CallArgs<'_>,
        fitted: Fitted,
        arithmetic: &Arithmetic<'_>,
        header: Header,
        engines: (usize, usize),
        finishing: Option<Finish>,
    ) -> Self {
        let kernel = match arithmetic {
            Arithmetic::Kernel(kernel) => Some(*kernel),
            Arithmetic::None | Arithmetic::User(_) => None,
        };
        let shift =
            |from: *const u8, to: *const u8| (!to.is_null()).then(|| to.addr().wrapping_sub(from.addr()));
        Self {
            fingerprint: Fingerprint::of(request),
            collective: has_more(request.collective).then(|| request.collective.clone()),
            private: None,
            finishing,
            repeatable: request.counts.is_none() && is_plain(request.operation.as_ref()),
            shifts: (
                shift(request.buffers.input, fitted.input),
                shift(request.buffers.output, fitted.output),
            ),
            kernel,
            fitted,
            words: header.pack(),
            signature: 0,
            hash: header.hash(),
            is_new: true,
            header,
            engines,
        }
    }

    /// The call for the engine.
    #[inline]
    pub(super) fn call<'a>(
        &'a self,
        collective: &'a Collective,
        announced: Announced,
        arithmetic: &'a Arithmetic<'a>,
    ) -> Call<'a> {
        let Announced { number, signature } = announced;
        let Self { header, hash, fitted, .. } = self;
        let (input, output) = (fitted.input, fitted.output);
        Call { header, signature, hash: *hash, number, collective, arithmetic, input, output }
    }

    /// Looks up the call's signature, and whether the call is new.
    pub(super) fn compare_with(&mut self, table: &SignatureTable) {
        (self.signature, self.is_new) = table.signature(&self.header, self.hash);
    }

    /// Makes the next call not count as a repetition.
    pub(super) fn forget(&mut self) {
        self.repeatable = false;
    }

    /// If the call repeats this one, takes over its buffers and returns how it combines elements.
    #[inline]
    pub(super) fn again(&mut self, request: &CallArgs<'_>) -> Option<Arithmetic<'static>> {
        let same = self.repeatable
            && self.fingerprint.is(&Fingerprint::of(request))
            && self.collective.as_ref().is_none_or(|collective| collective == request.collective)
            && request.counts.is_none()
            && is_plain(request.operation.as_ref());
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
        self.header.pack_locations(&mut self.words);
        Some(self.kernel.map_or(Arithmetic::None, Arithmetic::Kernel))
    }
}
