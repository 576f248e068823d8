//! The output of `ibnetdiscover`: the reader never panics, and a network that was read becomes a fabric, alone and with hosts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_fabric::format::ibnetdiscover;
use weftlink_fuzz::exercise_network;

fuzz_target!(|bytes: &[u8]| {
    match ibnetdiscover::read(bytes) {
        Ok(network) => exercise_network(&network, "fuzz + 2x-rtx4090"),
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
