//! How a communicator behaves: what the program passes as `ncclConfig_t`.

// Reads a structure of the program, whose length it says itself.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::mem::offset_of;

use crate::abi;
use crate::failure::Failure;
use crate::log;
use crate::settings::switch;

/// How a communicator behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Whether functions wait until they are done.
    pub(crate) blocking: bool,
    /// For the log.
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
    // SAFETY: the caller's.
    for field in unsafe { ignored(config) } {
        log::info(None, &format!("ncclConfig_t.{field} is set, and means nothing here"));
    }
    let blocking = switch("NCCL_COMM_BLOCKING").unwrap_or(blocking);
    Ok(Config { blocking, name: name.or_else(|| inherited.name.clone()) })
}

/// Numbers that tune NCCL, with their places.
const IGNORED: [(&str, usize); 13] = [
    ("cgaClusterSize", offset_of!(abi::Config, cga_cluster_size)),
    ("minCTAs", offset_of!(abi::Config, min_ctas)),
    ("maxCTAs", offset_of!(abi::Config, max_ctas)),
    ("splitShare", offset_of!(abi::Config, split_share)),
    ("trafficClass", offset_of!(abi::Config, traffic_class)),
    ("collnetEnable", offset_of!(abi::Config, collnet_enable)),
    ("CTAPolicy", offset_of!(abi::Config, cta_policy)),
    ("shrinkShare", offset_of!(abi::Config, shrink_share)),
    ("nvlsCTAs", offset_of!(abi::Config, nvls_ctas)),
    ("nChannelsPerNetPeer", offset_of!(abi::Config, channels_per_net_peer)),
    ("nvlinkCentricSched", offset_of!(abi::Config, nvlink_centric_sched)),
    ("graphUsageMode", offset_of!(abi::Config, graph_usage_mode)),
    ("numRmaCtx", offset_of!(abi::Config, rma_contexts)),
];

/// The numbers that the program has set and that mean nothing here.
///
/// # Safety
/// The address is of a structure as long as it says.
unsafe fn ignored(config: *const abi::Config) -> Vec<&'static str> {
    // SAFETY: every version begins with this field.
    let size = unsafe { (*config).size };
    let is_set = |&(_, at): &(&str, usize)| {
        // SAFETY: the structure is that long.
        size >= at + size_of::<c_int>() && unsafe { config.byte_add(at).cast::<c_int>().read() } != abi::UNSET
    };
    IGNORED.iter().filter(|field| is_set(field)).map(|(name, _)| *name).collect()
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
        // All are 0, and not unset.
        let all = IGNORED.map(|(name, _)| name);
        for (size, fields) in [(20, &all[..0]), (24, &all[..1]), (48, &all[..5]), (96, &all[..])] {
            config.size = size;
            // SAFETY: it is as long.
            assert_eq!(unsafe { ignored(&raw const config) }, fields, "{size}");
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
