//! Predictions

use std::ffi::{c_char, c_double, c_int};
use std::mem::offset_of;

use weftlink::plan::{Kind, UnknownKind};
use weftlink::sim::library::{parse_library, version_of};
use weftlink::sim::predict::{Options, PredictError};

use crate::error::{Failure, guard, weft_status};
use crate::pointer::{check_not_null, check_size, text};

/// The bytes of a text in a prediction, with the zero at its end.
const TEXT: usize = 128;

/// The predicted time of a call, and where it comes from.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weft_prediction {
    /// Microseconds of the call.
    pub time_us: c_double,
    /// Bytes over time, in 1e9 bytes per second.
    pub algbw_gb_per_s: c_double,
    /// Bus bandwidth as nccl-tests defines it, in 1e9 bytes per second.
    pub busbw_gb_per_s: c_double,
    /// The time is expected between low50_us and high50_us on half of all machines like this. Microseconds; -1 if there are no
    /// published measurements of the library.
    pub low50_us: c_double,
    /// See low50_us.
    pub high50_us: c_double,
    /// The time is expected between low90_us and high90_us on nine of ten machines like this. -1 as for low50_us.
    pub low90_us: c_double,
    /// See low90_us.
    pub high90_us: c_double,
    /// The GPUs of the fabric.
    pub ranks: c_int,
    /// The library that makes the call, with its version: "nccl 2.32".
    pub library: [c_char; 128],
    /// The algorithm that it chooses.
    pub algorithm: [c_char; 128],
    /// The protocol that it chooses.
    pub protocol: [c_char; 128],
    /// Where the prediction comes from: the measurements that the model was compared with.
    pub origin: [c_char; 128],
}

/// Predicts the time of a collective, as `weft sim` does. `collective` is its name ("all-reduce"),
/// `fabric` a preset ("hgx-h100"; `weft topo --list` prints them), a cluster ("2x hgx-h100 + 8x ndr") or
/// the path of a topology file, `library` the library that makes the call ("nccl:2.27"; null: the newest
/// known one for these GPUs). `bytes` counts as in nccl-tests. `size` is sizeof(weft_prediction).
///
/// # Safety
/// `collective` and `fabric` are null or texts, `library` too; `prediction` is null or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_predict(
    collective: *const c_char,
    fabric: *const c_char,
    library: *const c_char,
    bytes: u64,
    prediction: *mut weft_prediction,
    size: usize,
) -> weft_status {
    guard(|| {
        check_not_null(prediction, "prediction")?;
        let first = offset_of!(weft_prediction, origin) + TEXT;
        check_size(size, first, size_of::<weft_prediction>(), "weft_prediction")?;
        // SAFETY: the caller's.
        let (collective, fabric) = unsafe { (text(collective, "collective")?, text(fabric, "fabric")?) };
        // SAFETY: as above.
        let library = if library.is_null() { None } else { Some(unsafe { text(library, "library") }?) };
        let predicted = predicted(collective, fabric, library, bytes)?;
        let from = (&raw const predicted).cast::<u8>();
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, prediction.cast::<u8>(), size) };
        Ok(())
    })
}

fn predicted(
    collective: &str,
    fabric: &str,
    library: Option<&str>,
    bytes: u64,
) -> Result<weft_prediction, Failure> {
    let kind: Kind = collective.parse().map_err(|error: UnknownKind| Failure::misuse(error.to_string()))?;
    let library =
        library.map(parse_library).transpose().map_err(|error| Failure::misuse(error.to_string()))?;
    if let Some(program) = library.as_ref().and_then(|library| library.program.as_ref()) {
        return Err(Failure::misuse(format!(
            "weft_predict does not run the program {program}; `weft sim` does"
        )));
    }
    let opened = weftlink_probe::open(Some(fabric), None);
    let opened = opened.map_err(|error| unanswered(error.is_misuse(), error.to_string()))?;
    let options = Options { library, ..Options::default() };
    let wrong = |error: PredictError| unanswered(error.is_misuse(), error.to_string());
    let predicted = weftlink::sim::predict(kind, &opened, &[bytes], &options).map_err(wrong)?;
    let (setup, row) = (&predicted.case.setup, &predicted.rows[0]);
    let name = setup.library.name();
    let library = version_of(setup).map_or(name.to_owned(), |version| format!("{name} {version}"));
    let unknown = (-1.0, -1.0);
    let (half, most) = row.intervals.map_or((unknown, unknown), |of| (of.half_us, of.most_us));
    Ok(weft_prediction {
        time_us: row.time_us(),
        algbw_gb_per_s: row.algbw_gb_per_s,
        busbw_gb_per_s: row.busbw_gb_per_s,
        low50_us: half.0,
        high50_us: half.1,
        low90_us: most.0,
        high90_us: most.1,
        ranks: setup.ranks() as c_int,
        library: fixed(&library),
        algorithm: fixed(row.execution.algorithm),
        protocol: fixed(&row.execution.chosen.protocol.to_string()),
        origin: fixed(&format!("predicted; {}", setup.library.evidence())),
    })
}

/// The failure of a question without an answer: misuse if other arguments would have one.
fn unanswered(is_misuse: bool, text: String) -> Failure {
    let status = if is_misuse { weft_status::WEFT_MISUSE } else { weft_status::WEFT_FAILED };
    Failure { status, ..Failure::misuse(text) }
}

/// A text that ends with a zero byte, cut at a whole character.
fn fixed(text: &str) -> [c_char; TEXT] {
    let mut fixed = [0; TEXT];
    let end = (0..TEXT).rev().find(|end| text.is_char_boundary((*end).min(text.len()))).unwrap_or(0);
    for (place, byte) in fixed.iter_mut().zip(text.bytes().take(end)) {
        *place = byte as c_char;
    }
    fixed
}
