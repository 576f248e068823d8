//! Calibrations: the reader never panics, and what it read is written and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_sim::calibrate::file::Calibration;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Calibration::read(text) {
        Ok(calibration) => {
            // Numbers are written with six digits.
            let once = Calibration::read(&calibration.to_string()).expect("what was written can be read");
            assert_eq!(Calibration::read(&once.to_string()).expect("and again"), once);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
