//! How a communicator behaves: what the program passes as `ncclConfig_t`.

// Reads a structure of the program, whose length it says itself.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::offset_of;

use crate::abi;
use crate::failure::Failure;
use crate::settings::switch;

/// How a communicator behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Whether functions wait until they are done.
    pub(crate) blocking: bool,
    /// For messages.
    pub(crate) name: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config { blocking: switch("NCCL_COMM_BLOCKING").unwrap_or(true), name: None }
    }
}

/// The shortest structure that NCCL ever had: it ends with `blocking`.
const BYTES_MIN: usize = offset_of!(abi::Config, cga_cluster_size);

/// Reads a configuration; what is not set is as in `inherited`.
///
/// # Safety
/// The address is null or of a structure as long as it says.
pub(crate) unsafe fn read(config: *const abi::Config, inherited: &Config) -> Result<Config, Failure> {
    if config.is_null() {
        return Ok(inherited.clone());
    }
    // SAFETY: every version begins with these fields.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    if magic != abi::MAGIC {
        return Err(Failure::argument("the configuration was not set to NCCL_CONFIG_INITIALIZER"));
    }
    if size < BYTES_MIN {
        return Err(Failure::argument(format!(
            "the configuration has {size} bytes, and the shortest has {BYTES_MIN}"
        )));
    }
    let has = |end: usize| size >= end;
    // SAFETY: the structure has these fields if it is long enough.
    let blocking = unsafe { (*config).blocking };
    let blocking = match blocking {
        abi::UNSET => inherited.blocking,
        0 => false,
        1 => true,
        other => return Err(Failure::argument(format!("blocking is {other}, and must be 0 or 1"))),
    };
    let name = match has(offset_of!(abi::Config, collnet_enable)) {
        // SAFETY: as above.
        true => unsafe { (*config).comm_name },
        false => std::ptr::null(),
    };
    // SAFETY: it is null or a text.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    let blocking = switch("NCCL_COMM_BLOCKING").unwrap_or(blocking);
    Ok(Config { blocking, name: name.or_else(|| inherited.name.clone()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_of_every_version_are_read() {
        let mut config: abi::Config = abi::Config {
            size: 0,
            magic: abi::MAGIC,
            version: 23007,
            blocking: 0,
            comm_name: c"mine".as_ptr(),
            // SAFETY: integers and null pointers.
            ..unsafe { std::mem::zeroed() }
        };
        let usual = Config { blocking: true, name: None };
        let named = |name: Option<&str>| Config { blocking: false, name: name.map(str::to_owned) };
        // 2.14, 2.18, 2.27, 2.28, 2.30 and a later one.
        for (size, name) in
            [(24, None), (48, None), (56, Some("mine")), (80, Some("mine")), (96, Some("mine"))]
        {
            config.size = size;
            // SAFETY: it is as long.
            assert_eq!(unsafe { read(&raw const config, &usual) }.unwrap(), named(name), "{size}");
        }
        assert_eq!(size_of::<abi::Config>(), 96, "as the header of 2.30 has it");
        config.blocking = abi::UNSET;
        // SAFETY: as above; null.
        unsafe {
            assert!(read(&raw const config, &usual).unwrap().blocking);
            assert_eq!(read(std::ptr::null(), &usual).unwrap(), usual);
        }
        config.blocking = 7;
        // SAFETY: as above.
        assert!(unsafe { read(&raw const config, &usual) }.unwrap_err().text.contains("must be 0 or 1"));
        config.magic = 0;
        // SAFETY: as above.
        let refused = unsafe { read(&raw const config, &usual) }.unwrap_err();
        assert!(refused.text.contains("NCCL_CONFIG_INITIALIZER"), "{}", refused.text);
    }
}
