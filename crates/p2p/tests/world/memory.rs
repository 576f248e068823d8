//! The memory of operations: addresses, contents, and accesses that are checked.

use super::Operation;

/// Addresses of one operation.
pub(super) const MEMORY: u64 = 1 << 20;

/// The operation whose memory an address lies in.
pub(super) fn key_of(address: u64) -> Option<usize> {
    ((address / MEMORY) as usize).checked_sub(1)
}

/// What an operation sends: its number, and bytes that depend on it.
pub(super) fn contents(key: usize, bytes: usize) -> Vec<u8> {
    let number = (key as u64).to_le_bytes().into_iter();
    number.chain((8..).map(|at: usize| (key * 31 + at * 7) as u8)).take(bytes).collect()
}

pub(super) fn read(operations: &[Operation], address: u64, bytes: usize) -> Result<&[u8], String> {
    if bytes == 0 {
        return Ok(&[]);
    }
    let (key, at) = ((address / MEMORY) as usize, (address % MEMORY) as usize);
    let operation = key.checked_sub(1).and_then(|key| operations.get(key));
    operation
        .and_then(|operation| operation.memory.get(at..at + bytes))
        .ok_or_else(|| format!("{bytes} bytes read at {address:#x}"))
}

pub(super) fn write(operations: &mut [Operation], address: u64, bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (key, at) = ((address / MEMORY) as usize, (address % MEMORY) as usize);
    let operation = key.checked_sub(1).and_then(|key| operations.get_mut(key)).ok_or("no such memory")?;
    if operation.outcome.is_some() {
        return Err(format!("memory of operation {} is written after it ended", key - 1));
    }
    let target = operation.memory.get_mut(at..at + bytes.len()).ok_or("written past the end")?;
    target.copy_from_slice(bytes);
    Ok(())
}
