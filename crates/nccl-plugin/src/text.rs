//! Texts in memory of C: names that a plugin exports, and names that NCCL passes.

#![allow(unsafe_code)] // Addresses of C.

use std::ffi::{CStr, c_char};

/// The name of a plugin, in the structure that it exports.
#[repr(transparent)]
#[derive(Debug)]
pub struct Name(*const c_char);

// SAFETY: it refers to a text that lives as long as the process and is never written.
unsafe impl Sync for Name {}

impl Name {
    /// A name for NCCL's log.
    pub const fn new(name: &'static CStr) -> Self {
        Self(name.as_ptr())
    }
}

/// The longest name that is read.
const NAME_MAX: usize = 128;

/// A name that NCCL passes; nothing where it passes none, or one that is not text. Longer names are cut.
///
/// # Safety
/// The address is null or that of a text with a zero byte at its end, which is not written meanwhile.
pub unsafe fn name<'n>(address: *const c_char) -> Option<&'n str> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(address) }.to_bytes();
    let text = &text[..text.len().min(NAME_MAX)];
    std::str::from_utf8(text).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_up_to_a_limit() {
        let long = std::ffi::CString::new("x".repeat(1000)).unwrap();
        // SAFETY: the texts are terminated and live through the calls.
        let read = |text: &CStr| unsafe { name(text.as_ptr()) }.map(str::to_owned);
        assert_eq!(read(c"AllReduce").as_deref(), Some("AllReduce"));
        assert_eq!(read(&long).map(|text| text.len()), Some(NAME_MAX));
        assert_eq!(read(c""), None);
        assert_eq!(read(c"\xff\xfe"), None);
        // SAFETY: a null address is allowed.
        assert_eq!(unsafe { name(std::ptr::null()) }, None);
    }
}
