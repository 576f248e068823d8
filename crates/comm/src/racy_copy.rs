//! Copies to and from memory that other ranks may be writing. A racing copy yields old bytes, new bytes or a mixture; it is never
//! undefined behaviour.
//!
//! An ordinary copy may assume that no other thread or process writes, so this one is inline assembly (x86-64), or atomic bytes.

#![allow(unsafe_code)] // Addresses in mapped memory.

/// Copies bytes between ranges that do not overlap, at least one of which others may be using.
///
/// # Safety
/// `source` can be read and `target` written for `bytes`. No reference to the written memory exists.
pub(crate) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: the caller's promise; the instruction touches exactly these bytes and changes no register but those named.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") target => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    {
        use std::sync::atomic::{AtomicU8, Ordering};
        for at in 0..bytes {
            // SAFETY: the caller's promise; bytes have no alignment.
            let (to, from) =
                unsafe { (AtomicU8::from_ptr(target.add(at)), &*source.add(at).cast::<AtomicU8>()) };
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
