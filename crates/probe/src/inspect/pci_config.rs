//! The configuration space of PCI functions, as hexadecimal text. Without root, the kernel returns its first 64 bytes.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The size of PCIe configuration space.
const BYTES_MAX: u64 = 4096;
/// The extended capabilities start here.
const EXTENDED: usize = 0x100;
/// The capability that contains a serial number, which an inspection must not.
const SERIAL_NUMBER: u32 = 0x0003;
/// Capabilities in a list: the space has no room for more.
const CAPABILITIES_MAX: usize = 960;

/// The bytes of `config`, a file of sysfs, that can be read. None if there are none.
pub(super) fn read(config: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(config).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    remove_serial_number(&mut bytes);
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in &bytes {
        let _ = write!(text, "{byte:02x}");
    }
    (!text.is_empty()).then_some(text)
}

fn remove_serial_number(bytes: &mut [u8]) {
    let mut at = EXTENDED;
    for _ in 0..CAPABILITIES_MAX {
        let Some(header) =
            bytes.get(at..at + 4).and_then(|header| header.try_into().ok()).map(u32::from_le_bytes)
        else {
            return;
        };
        if header & 0xffff == SERIAL_NUMBER {
            let end = bytes.len().min(at + 12);
            bytes[at + 4..end].fill(0);
        }
        let next = (header >> 20) as usize;
        if next < EXTENDED {
            return;
        }
        at = next & !3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_removed() {
        let mut bytes = vec![0xab; 4096];
        // Access control at 0x100, a serial number at 0x140, then a loop.
        bytes[0x100..0x104].copy_from_slice(&0x1401_000d_u32.to_le_bytes());
        bytes[0x140..0x144].copy_from_slice(&0x1001_0003_u32.to_le_bytes());
        remove_serial_number(&mut bytes);
        assert_eq!(bytes[0x144..0x14c], [0; 8]);
        assert_eq!((bytes[0x143], bytes[0x14c], bytes[0x104]), (0x10, 0xab, 0xab));
        for length in [0, 64, 0x101, 0x142] {
            remove_serial_number(&mut vec![0xff; length]);
        }
    }

    #[test]
    fn a_missing_file_is_none() {
        assert_eq!(read(Path::new("/sys/bus/pci/devices/none/config")), None);
    }
}
