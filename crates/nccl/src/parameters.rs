//! The parameters of NCCL as programs read them: the variables that mean something here ([`KNOWN`]).

// Reads names and writes values in the program's memory.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::failure::{Failure, check_place};
use crate::log;
use crate::settings::{KNOWN, given};

/// A parameter: its place among the known ones, from 1.
type Handle = *mut c_void;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
    static KEYS: RefCell<Vec<CString>> = const { RefCell::new(Vec::new()) };
    static TABLE: RefCell<Vec<*const c_char>> = const { RefCell::new(Vec::new()) };
}

fn numbered(handle: Handle) -> Result<&'static str, Failure> {
    let found = (handle as usize).checked_sub(1).and_then(|at| KNOWN.get(at));
    found
        .map(|known| known.name)
        .ok_or_else(|| Failure::argument(format!("there is no parameter {handle:p}")))
}

fn named(key: *const c_char) -> Result<usize, Failure> {
    check_place(key, "the key")?;
    // SAFETY: the program's text.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    let found = KNOWN.iter().position(|known| known.name == key);
    found.ok_or_else(|| Failure::argument(format!("there is no parameter {key}")))
}

/// Keeps a text for the program until the next one on this thread.
fn kept(text: String) -> (*const c_char, usize) {
    let text = CString::new(text).unwrap_or_default();
    TEXT.with_borrow_mut(|kept| {
        *kept = text;
        (kept.as_ptr(), kept.as_bytes().len())
    })
}

fn number<T: TryFrom<i128>>(handle: Handle, place: *mut T) -> Result<(), Failure> {
    check_place(place, "the value")?;
    let name = numbered(handle)?;
    let text = given(name).unwrap_or_else(|| "0".to_owned());
    let value = text.trim().parse::<i128>().ok().and_then(|value| T::try_from(value).ok());
    let value = value.ok_or_else(|| Failure::argument(format!("{name}={text} is no number of this type")))?;
    // SAFETY: the program's place.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

nccl! {
    fn ncclParamBind(place: *mut Handle, key: *const c_char) {
        check_place(place, "the handle")?;
        // SAFETY: the program's place.
        unsafe { place.write_unaligned((named(key)? + 1) as Handle) };
        Ok(())
    }
}

nccl! { fn ncclParamGetI8(handle: Handle, place: *mut i8) { number(handle, place) } }
nccl! { fn ncclParamGetI16(handle: Handle, place: *mut i16) { number(handle, place) } }
nccl! { fn ncclParamGetI32(handle: Handle, place: *mut i32) { number(handle, place) } }
nccl! { fn ncclParamGetI64(handle: Handle, place: *mut i64) { number(handle, place) } }
nccl! { fn ncclParamGetU8(handle: Handle, place: *mut u8) { number(handle, place) } }
nccl! { fn ncclParamGetU16(handle: Handle, place: *mut u16) { number(handle, place) } }
nccl! { fn ncclParamGetU32(handle: Handle, place: *mut u32) { number(handle, place) } }
nccl! { fn ncclParamGetU64(handle: Handle, place: *mut u64) { number(handle, place) } }

nccl! {
    fn ncclParamGetStr(handle: Handle, place: *mut *const c_char) {
        check_place(place, "the text")?;
        let (text, _) = kept(given(numbered(handle)?).unwrap_or_default());
        // SAFETY: the program's place.
        unsafe { place.write_unaligned(text) };
        Ok(())
    }
}

nccl! {
    fn ncclParamGet(handle: Handle, place: *mut c_void, most: c_int, length: *mut c_int) {
        check_place(place, "the value")?;
        check_place(length, "the length")?;
        let text = given(numbered(handle)?).unwrap_or_default();
        let copied = text.len().min(usize::try_from(most).unwrap_or(0));
        // SAFETY: the program's places; the value has `most` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), copied);
            length.write_unaligned(copied as c_int);
        }
        Ok(())
    }
}

nccl! {
    fn ncclParamGetParameter(key: *const c_char, value: *mut *const c_char, length: *mut c_int) {
        check_place(value, "the value")?;
        let (text, bytes) = kept(given(KNOWN[named(key)?].name).unwrap_or_default());
        // SAFETY: the program's places.
        unsafe {
            value.write_unaligned(text);
            if !length.is_null() {
                length.write_unaligned(bytes as c_int);
            }
        }
        Ok(())
    }
}

nccl! {
    fn ncclParamGetAllParameterKeys(table: *mut *const *const c_char, length: *mut c_int) {
        check_place(table, "the table")?;
        check_place(length, "the length")?;
        let keys = KNOWN.iter().map(|known| CString::new(known.name).unwrap_or_default()).collect();
        let keys = KEYS.with_borrow_mut(|kept| {
            *kept = keys;
            kept.iter().map(|key| key.as_ptr()).collect()
        });
        let first = TABLE.with_borrow_mut(|kept| {
            *kept = keys;
            kept.as_ptr()
        });
        // SAFETY: the program's places.
        unsafe {
            table.write_unaligned(first);
            length.write_unaligned(KNOWN.len() as c_int);
        }
        Ok(())
    }
}

nccl! {
    fn ncclParamDumpAll() -> (), or_if_it_panics (); {
        for known in &KNOWN {
            let value = given(known.name).unwrap_or_else(|| "not set".to_owned());
            log::info(None, &format!("{}: {value} ({})", known.name, known.meaning));
        }
    }
}
