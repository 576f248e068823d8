//! Options of communicators

use std::ffi::{c_double, c_int};
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::time::Duration;

use weftlink::Options;
use weftlink::knobs::Knobs;

use crate::error::{Failure, guard, weft_status};
use crate::pointer::{self, check_not_null};

/// Options of a communicator. Call weft_options_init first, then set those that you need; the others
/// come from the environment (`weft knobs` lists the variables) or have their defaults. New options
/// will be added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weft_options {
    /// sizeof(weft_options), set by weft_options_init.
    pub size: usize,
    /// Seconds that a call waits for other ranks before it fails; 0: not set.
    pub timeout_s: c_double,
    /// Seconds after which a stalled call logs which ranks it waits for; 0: not set.
    pub warn_after_s: c_double,
    /// 1: results depend on inputs and the order of ranks alone, bit by bit. 0: no, -1: not set.
    pub deterministic: c_int,
    /// 1: waiting ranks spin. 0: they yield, -1: not set.
    pub spin: c_int,
    /// 1: the kernel reads peers' memory, which saves a copy. 0: no, -1: not set.
    pub single_copy: c_int,
    /// 1: encrypt data between hosts. 0: no, -1: not set.
    pub encrypt: c_int,
    /// Connections to each rank on another host, 1 to 16; 0: not set.
    pub streams: u32,
    /// Calls that the flight recorder keeps, 16 to 65536; 0: not set.
    pub record: u32,
}

/// No option is set.
const UNSET: weft_options = weft_options {
    size: size_of::<weft_options>(),
    timeout_s: 0.0,
    warn_after_s: 0.0,
    deterministic: -1,
    spin: -1,
    single_copy: -1,
    encrypt: -1,
    streams: 0,
    record: 0,
};

/// Initialises options: weft_options_init(&options, sizeof(options)).
///
/// # Safety
/// `options` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_options_init(options: *mut weft_options, size: usize) -> weft_status {
    guard(|| {
        check_not_null(options, "options")?;
        check_size(size)?;
        let unset = weft_options { size, ..UNSET };
        // SAFETY: the caller's; `check_size` bounds the length by that of a whole structure.
        unsafe { std::ptr::copy_nonoverlapping((&raw const unset).cast::<u8>(), options.cast::<u8>(), size) };
        Ok(())
    })
}

fn check_size(size: usize) -> Result<(), Failure> {
    let first = offset_of!(weft_options, record) + size_of::<u32>();
    pointer::check_size(size, first, size_of::<weft_options>(), "weft_options")
}

/// The settings of the environment, with the options that the program has set.
///
/// # Safety
/// `options` is null or as `weft_options_init` left it, with fields changed.
pub(crate) unsafe fn settings(options: *const weft_options) -> Result<(Knobs, Options), Failure> {
    let mut knobs = Knobs::from_environment().map_err(weftlink::Error::from)?;
    let mut chosen = Options::of(&knobs);
    if !options.is_null() {
        // SAFETY: the caller's: the size is the first field.
        let size = unsafe { (&raw const (*options).size).read() };
        check_size(size)?;
        let mut given = UNSET;
        // SAFETY: the caller's; both have `size` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut given).cast::<u8>(), size);
        }
        given.apply(&mut chosen)?;
    }
    // The rendezvous waits as long as calls do.
    knobs.deadline = chosen.deadline;
    Ok((knobs, chosen))
}

impl weft_options {
    fn apply(&self, options: &mut Options) -> Result<(), Failure> {
        if let Some(timeout) = seconds(self.timeout_s, "timeout_s")? {
            options.deadline = timeout;
        }
        if let Some(interval) = seconds(self.warn_after_s, "warn_after_s")? {
            options.warn_after = interval;
        }
        let Options { spin, single_copy, .. } = *options;
        options.spin = choice(self.spin, "spin")?.or(spin);
        options.single_copy = choice(self.single_copy, "single_copy")?.or(single_copy);
        let deterministic = choice(self.deterministic, "deterministic")?;
        options.deterministic = deterministic.unwrap_or(options.deterministic);
        options.encrypt = choice(self.encrypt, "encrypt")?.unwrap_or(options.encrypt);
        options.streams = number(self.streams, 1..=16, "streams")?.unwrap_or(options.streams);
        options.record = number(self.record, 16..=1 << 16, "record")?.unwrap_or(options.record);
        Ok(())
    }
}

/// A duration, unless it is 0.
fn seconds(seconds: c_double, name: &str) -> Result<Option<Duration>, Failure> {
    let wrong = |_| Failure::misuse(format!("{name} = {seconds} s is not possible"));
    let duration = Duration::try_from_secs_f64(seconds).map_err(wrong)?;
    Ok(Some(duration).filter(|duration| !duration.is_zero()))
}

/// Yes or no, unless it is -1.
fn choice(value: c_int, name: &str) -> Result<Option<bool>, Failure> {
    match value {
        -1 => Ok(None),
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        other => Err(Failure::misuse(format!("{name} = {other}: it is 1 (yes), 0 (no) or -1 (not set)"))),
    }
}

/// A number, unless it is 0.
fn number(value: u32, range: RangeInclusive<u32>, name: &str) -> Result<Option<u32>, Failure> {
    if value != 0 && !range.contains(&value) {
        let (least, most) = range.into_inner();
        return Err(Failure::misuse(format!("{name} = {value}: it is {least} to {most}, or 0 (not set)")));
    }
    Ok(Some(value).filter(|value| *value != 0))
}
