//! Arguments that C passes as addresses. A null pointer becomes an error that names the argument.

use std::ffi::{CStr, c_char, c_int};
use std::slice::from_raw_parts;

use crate::error::Failure;

fn null(name: &str) -> Failure {
    Failure::misuse(format!("the argument {name} is a null pointer"))
}

/// # Safety
/// The pointer is null, or valid as long as the reference is used.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Refuses a null pointer, before a function does what it would write there.
pub(crate) fn check_not_null<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() { Err(null(name)) } else { Ok(()) }
}

/// # Safety
/// The pointer is null, or has `count` elements as long as the slice is used.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_not_null(pointer, name)?;
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::misuse(format!("{name} has too many elements: {count}")));
    }
    // SAFETY: the caller's.
    Ok(unsafe { from_raw_parts(pointer, count) })
}

/// # Safety
/// The pointer is null, or a text that ends with a zero byte and stays as long as the result is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check_not_null(pointer, name)?;
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::misuse(format!("{name} is not UTF-8: {text:?}")))
}

/// A number of ranks or of a rank.
pub(crate) fn rank(number: c_int, name: &str) -> Result<usize, Failure> {
    usize::try_from(number).map_err(|_| Failure::misuse(format!("{name} is negative: {number}")))
}

/// Checks the size of a structure that may grow. `first` is the size in the first version: a program that was compiled with a later header
/// than this library passes more than `known`, and one that forgot to initialise it anything.
pub(crate) fn check_size(size: usize, first: usize, known: usize, name: &str) -> Result<(), Failure> {
    if size > known {
        return Err(Failure::misuse(format!(
            "{name} has {size} bytes and this library knows {known}: the program was compiled with the header of a later version"
        )));
    }
    if size < first {
        return Err(Failure::misuse(format!(
            "{name} has {size} bytes, not sizeof({name}): is it initialised?"
        )));
    }
    Ok(())
}
