//! Reads a trace as a stream: each event is handed over and dropped, and nothing else of the file is kept in memory.

use std::cell::RefCell;
use std::fmt;
use std::io::{BufReader, Read};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::{BYTES_MAX, JobError};
use super::event::{Event, Loose};

/// What a trace says besides its events.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Head {
    /// The rank of the process.
    pub(super) rank: Option<u32>,
    /// The time that starts count from, in nanoseconds.
    pub(super) base_ns: i64,
    has_events: bool,
}

/// Hands each event of a trace to `take`: an object with `traceEvents`, or the list of events alone.
pub(super) fn read(
    trace: impl Read,
    take: &mut dyn FnMut(&Event) -> Result<(), JobError>,
) -> Result<Head, JobError> {
    read_limited(trace, BYTES_MAX, take)
}

/// The same for at most `bytes_max` bytes.
pub(super) fn read_limited(
    trace: impl Read,
    bytes_max: u64,
    take: &mut dyn FnMut(&Event) -> Result<(), JobError>,
) -> Result<Head, JobError> {
    let mut limited = trace.take(bytes_max + 1);
    // An error of `take` passes through the reader of JSON, whose errors are text.
    let refused = RefCell::new(None);
    let result = {
        let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, &mut limited));
        let top = Top { take, refused: &refused };
        top.deserialize(&mut json).and_then(|head| json.end().map(|()| head))
    };
    if let Some(error) = refused.take() {
        return Err(error);
    }
    if limited.limit() == 0 {
        return Err(JobError::TooLarge);
    }
    match result {
        Ok(head) if head.has_events => Ok(head),
        Ok(_) => Err(JobError::NoEvents),
        Err(error) if error.is_io() => Err(JobError::Unreadable(error.to_string())),
        Err(error) => Err(JobError::Json(error.to_string())),
    }
}

struct Top<'a> {
    take: &'a mut dyn FnMut(&Event) -> Result<(), JobError>,
    refused: &'a RefCell<Option<JobError>>,
}

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = Head;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Head, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Head;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Head, A::Error> {
        let mut head = Head::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => {
                    head.has_events = true;
                    map.next_value_seed(Events(&mut self))?;
                }
                "baseTimeNanoseconds" => head.base_ns = map.next_value::<Loose>()?.integer().unwrap_or(0),
                "distributedInfo" => head.rank = map.next_value::<Distributed>()?.0.or(head.rank),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(head)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, list: A) -> Result<Head, A::Error> {
        Events(&mut self).visit_seq(list)?;
        Ok(Head { has_events: true, ..Head::default() })
    }
}

/// The list of events.
struct Events<'a, 't>(&'a mut Top<'t>);

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(event) = list.next_element::<Event>()? {
            if let Err(error) = (self.0.take)(&event) {
                let text = A::Error::custom(&error);
                *self.0.refused.borrow_mut() = Some(error);
                return Err(text);
            }
        }
        Ok(())
    }
}

/// The rank in `distributedInfo`.
struct Distributed(Option<u32>);

impl<'de> Deserialize<'de> for Distributed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Distributed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`distributedInfo`")
            }

            fn visit_unit<E>(self) -> Result<Distributed, E> {
                Ok(Distributed(None))
            }

            fn visit_str<E>(self, _: &str) -> Result<Distributed, E> {
                Ok(Distributed(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Distributed, A::Error> {
                let mut rank = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "rank" {
                        rank = map.next_value::<Loose>()?.integer().and_then(|rank| u32::try_from(rank).ok());
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Distributed(rank))
            }
        }
        deserializer.deserialize_any(Fields)
    }
}
