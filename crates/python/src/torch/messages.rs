//! Messages between two ranks.

// The memory of tensors is known by its address.
#![allow(unsafe_code)]

use pyo3::prelude::*;

use super::call::Call;
use super::group::{Ends, Group};
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
        let (call, pending) = Call::new("send", entry, None, vec![tensor.clone().unbind()], Vec::new());
        let Ends { endpoint, .. } = self.ends(py)?;
        let (address, bytes) = read.bytes();
        let done = move |result: Result<(), weftlink::Error>| pending.complete(result.map(|()| None));
        // SAFETY: `pending` keeps the tensor until the message is sent; a program that writes it meanwhile sends what it writes.
        py.detach(|| unsafe {
            endpoint.of_type(read.data_type).start_send(to, tag, address as *const u8, bytes, deadline, done)
        });
        Ok(call.by(endpoint))
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
        let whom = source.map_or("?".to_owned(), |rank| rank.to_string());
        let entry =
            self.enter_message(format!("recv {}<-{whom}", self.own_rank()), &written, false, deadline);
        let (call, pending) = Call::new("recv", entry, finish, vec![tensor.clone().unbind()], Vec::new());
        let Ends { endpoint, .. } = self.ends(py)?;
        let (address, bytes) = written.bytes();
        let done = move |result: Result<usize, weftlink::Error>| pending.complete(result.map(Some));
        // SAFETY: `pending` keeps the tensor until the message has come; a program that uses it meanwhile sees what has come so far.
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
        Ok(call.by(endpoint))
    }
}
