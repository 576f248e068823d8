//! Parsers of values: tori, messages and ranges of sizes.

use std::str::FromStr;

use weftlink_fabric::bytes::Bytes;

/// `8..1GiB`, both included.
#[derive(Clone, Copy)]
pub(crate) struct Sizes(pub(crate) u64, pub(crate) u64);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once("..").filter(|(from, to)| !from.is_empty() && !to.is_empty());
        let (from, to) = ends.ok_or("write two sizes with two dots between them: 8..1GiB")?;
        let size = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
        let (from, to) = (size(from)?, size(to)?);
        if from > to { Err(format!("{from} is larger than {to}")) } else { Ok(Self(from.0, to.0)) }
    }
}

/// `2x2x2`; dimensions that are left out have one rank.
#[derive(Clone, Copy)]
pub(super) struct Torus(pub(super) [u32; 3]);

impl FromStr for Torus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sizes: Result<Vec<u32>, _> = text.split('x').map(str::parse).collect();
        match sizes.as_deref() {
            Ok([z]) => Ok(Self([1, 1, *z])),
            Ok([y, z]) => Ok(Self([1, *y, *z])),
            Ok([x, y, z]) => Ok(Self([*x, *y, *z])),
            _ => Err("write up to three sizes: 8, 4x2 or 2x2x2".to_owned()),
        }
    }
}

/// `0:1,1:0`.
#[derive(Clone)]
pub(super) struct Messages(pub(super) Vec<(u32, u32)>);

impl FromStr for Messages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let message = |text: &str| {
            let (from, to) = text.split_once(':')?;
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        };
        let messages: Option<Vec<_>> = text.split(',').map(message).collect();
        messages.map(Self).ok_or_else(|| "write pairs of sender and receiver: 0:1,1:0".to_owned())
    }
}
