//! Slurm's `topology.conf`: the reader never panics, and a network that was read becomes a fabric, alone and with hosts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::format::slurm;
use weftlink_fuzz::exercise_network;

fuzz_target!(|bytes: &[u8]| {
    match slurm::read(bytes) {
        Ok(network) => exercise_network(&network, "fuzz + 2x-rtx4090 + 1x hdr, oversubscribed 2:1"),
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
