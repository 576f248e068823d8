//! The constants in a calibration: the reader never panics, and what it read is written and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weftlink_sim::Constants;
use weftlink_sim::calibrate::file::Calibration;
use weftlink_sim::corrections::Corrections;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // The head names the shipped constants, which inputs cannot guess.
    let (machine, library) = ("m".to_owned(), "nccl".to_owned());
    let (constants, corrections) = (Constants::shipped(), Corrections::default());
    let head = Calibration { machine, library, calls: 1, constants, found: Vec::new(), corrections };
    match Calibration::read(&format!("{head}{text}")) {
        Ok(calibration) => {
            // Numbers are written with six digits.
            let once = Calibration::read(&calibration.to_string()).expect("what was written can be read");
            assert_eq!(Calibration::read(&once.to_string()).expect("and again"), once);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
