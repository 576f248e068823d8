//! Messages between two ranks.

// Raw messages, from and to the memory of tensors.
#![allow(unsafe_code)]

use pyo3::prelude::*;

use super::call::Call;
use super::error::Context;
use super::group::{Group, OpenGroup};
use super::tensor::Tensor;

impl Group {
    pub(super) fn start_send(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        to: usize,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<Call> {
        let (read, deadline) = (Tensor::of(tensor)?, self.deadline(timeout));
        let entry = self.enter_message(format!("send {}->{to}", self.own_rank()), &read, true, deadline);
        let OpenGroup { endpoint, identities, .. } = self.opened(py)?;
        let context = Context { operation: Some("send"), timeout: deadline, identities: Some(identities) };
        let (call, pending) = Call::new(context, entry, None, vec![tensor.clone().unbind()], Vec::new());
        let (address, bytes) = read.bytes();
        let done = move |result: Result<(), weftlink::Error>| pending.complete(result.map(|()| None));
        // SAFETY: `pending` keeps the tensor alive until the message is sent; the program must not write it before.
        py.detach(|| unsafe {
            endpoint.of_type(read.data_type).start_send(to, tag, address as *const u8, bytes, deadline, done)
        });
        Ok(call.on_endpoint(endpoint))
    }

    pub(super) fn start_receive(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: u64,
        timeout: Option<f64>,
        finish: Option<Py<PyAny>>,
    ) -> PyResult<Call> {
        let (written, deadline) = (Tensor::of(tensor)?, self.deadline(timeout));
        let from = source.map_or("?".to_owned(), |rank| rank.to_string());
        let entry =
            self.enter_message(format!("recv {}<-{from}", self.own_rank()), &written, false, deadline);
        let OpenGroup { endpoint, identities, .. } = self.opened(py)?;
        let context = Context { operation: Some("recv"), timeout: deadline, identities: Some(identities) };
        let (call, pending) = Call::new(context, entry, finish, vec![tensor.clone().unbind()], Vec::new());
        let (address, bytes) = written.bytes();
        let done = move |result: Result<usize, weftlink::Error>| pending.complete(result.map(Some));
        // SAFETY: `pending` keeps the tensor alive until the message has arrived; the program must not use it before.
        py.detach(|| unsafe {
            endpoint.of_type(written.data_type).start_receive(
                source,
                tag,
                address as *mut u8,
                bytes,
                deadline,
                done,
            )
        });
        Ok(call.on_endpoint(endpoint))
    }
}
