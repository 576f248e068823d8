//! Measured copies between a GPU and host memory, and between GPUs; with one GPU, within it.

use super::*;
use crate::copies::{Copied, between, from_host, to_host};
use crate::devices;

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn copies_arrive_and_have_a_rate() {
    let all = devices().unwrap();
    let first = Context::primary(&all[0]).unwrap();
    let last = Context::primary(&all[all.len() - 1]).unwrap();
    let bytes = 64 << 20;
    for copied in [from_host(&first, bytes), to_host(&first, bytes), between(&first, &last, bytes)] {
        let Copied { bytes_per_s, wrong_at } = copied.unwrap();
        println!("{:.1} GB/s", bytes_per_s / 1e9);
        assert_eq!(wrong_at, None);
        assert!((1e8..1e14).contains(&bytes_per_s), "{bytes_per_s}");
    }
}
