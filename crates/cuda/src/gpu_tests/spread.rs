//! Memory in several shares. With one GPU, they are several handles of it.

use super::*;
use crate::driver::SpreadMemory;
use crate::{Collectives, devices};

#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn memory_in_shares_is_one_buffer() {
    let mut all = devices().unwrap();
    while all.len() < 3 {
        all.push(all[0].clone());
    }
    let bytes = 10 << 20;
    let memory = SpreadMemory::over(&all, bytes).unwrap();
    let shares = memory.shares();
    println!("{shares:?}");
    assert!(memory.bytes() >= bytes && shares.len() == all.len().min(5));
    let stream = Stream::new(memory.context()).unwrap();
    // Across the ends of all shares.
    let data: Vec<u8> = (0..bytes - 200).map(|at| (at % 251) as u8).collect();
    memory.fill(&stream, 0, bytes, 0xa5).unwrap();
    memory.write(&stream, 100, &data).unwrap();
    let mut found = vec![0; bytes];
    memory.read(&stream, 0, &mut found).unwrap();
    assert!(found[100..bytes - 100] == data);
    assert_eq!((found[99], found[bytes - 100]), (0xa5, 0xa5));
    assert!(memory.write(&stream, memory.bytes() - 1, &[0; 2]).is_err());
    // A kernel, and a copy of the driver, across shares.
    let mut collectives =
        Collectives::new(Bootstrap::threads(1).remove(0), &shares[0].device, TIMEOUT).unwrap();
    let output = DeviceMemory::new(memory.context(), bytes).unwrap();
    let places = [memory.address(), output.address()];
    let type_of = weftlink_plan::DataType::U8;
    // SAFETY: both have these bytes and live until the stream is idle.
    unsafe {
        collectives.call(&Collective::AllGather, &stream, places, bytes, type_of, Reduction::Sum).unwrap();
    }
    let mut copied = vec![0; bytes];
    output.read(&stream, 0, &mut copied).unwrap();
    assert_eq!(collectives.failure(), None);
    assert!(copied == found);
    output.fill(&stream, 0, bytes, 0).unwrap();
    // SAFETY: as above.
    unsafe { stream.copy(output.address(), memory.address(), bytes).unwrap() };
    output.read(&stream, 0, &mut copied).unwrap();
    assert!(copied == found, "a copy across shares");
}
