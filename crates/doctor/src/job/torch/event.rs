//! One event of a trace.
//!
//! Events are read by hand and not by a derived reader: keys may come twice, numbers may be text, and one event that is unlike the
//! others must not end the reading.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Texts are cut to this many bytes. The names of kernels are of any length.
const TEXT_MAX: usize = 256;

/// What is needed of an event.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Event {
    pub(super) category: Option<String>,
    pub(super) name: Option<String>,
    /// The process, or the device of a kernel.
    pub(super) process: Option<i64>,
    pub(super) start_ns: Option<i64>,
    pub(super) duration_ns: Option<u64>,
    pub(super) args: Args,
}

/// What is needed of its arguments.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Args {
    pub(super) external_id: Option<i64>,
    pub(super) device: Option<i64>,
    pub(super) collective: Option<String>,
    pub(super) data_type: Option<String>,
    pub(super) elements_in: Option<u64>,
    pub(super) elements_out: Option<u64>,
    pub(super) group_size: Option<u64>,
    pub(super) group: Option<String>,
    pub(super) group_ranks: Option<String>,
    pub(super) sequence: Option<u64>,
}

/// The fields of an event, or of its arguments.
enum Key {
    Category,
    Name,
    Process,
    Start,
    Duration,
    Args,
    ExternalId,
    Device,
    Collective,
    DataType,
    ElementsIn,
    ElementsOut,
    GroupSize,
    Group,
    GroupRanks,
    Sequence,
    Other,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl Visitor<'_> for Keys {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(match key {
                    "cat" => Key::Category,
                    "name" => Key::Name,
                    "pid" => Key::Process,
                    "ts" => Key::Start,
                    "dur" => Key::Duration,
                    "args" => Key::Args,
                    "External id" | "external id" => Key::ExternalId,
                    "device" => Key::Device,
                    "Collective name" => Key::Collective,
                    "dtype" => Key::DataType,
                    "In msg nelems" => Key::ElementsIn,
                    "Out msg nelems" => Key::ElementsOut,
                    "Group size" => Key::GroupSize,
                    "Process Group Name" => Key::Group,
                    "Process Group Ranks" => Key::GroupRanks,
                    "Seq" => Key::Sequence,
                    _ => Key::Other,
                })
            }
        }
        deserializer.deserialize_identifier(Keys)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Event;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Event, A::Error> {
                let mut event = Event::default();
                while let Some(key) = fields.next_key()? {
                    match key {
                        Key::Category => event.category = fields.next_value::<Loose>()?.text(),
                        Key::Name => event.name = fields.next_value::<Loose>()?.text(),
                        Key::Process => event.process = fields.next_value::<Loose>()?.integer(),
                        Key::Start => event.start_ns = fields.next_value::<Loose>()?.us_to_ns(),
                        Key::Duration => {
                            let ns = fields.next_value::<Loose>()?.us_to_ns();
                            event.duration_ns = ns.map(|ns| u64::try_from(ns).unwrap_or(0));
                        }
                        Key::Args => event.args = fields.next_value()?,
                        _ => drop(fields.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(event)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Args {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Args;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments of an event")
            }

            fn visit_unit<E>(self) -> Result<Args, E> {
                Ok(Args::default())
            }

            fn visit_str<E>(self, _: &str) -> Result<Args, E> {
                Ok(Args::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Args, A::Error> {
                let mut args = Args::default();
                while let Some(key) = fields.next_key()? {
                    let field = match key {
                        Key::ExternalId => Field::Signed(&mut args.external_id),
                        Key::Device => Field::Signed(&mut args.device),
                        Key::Collective => Field::Text(&mut args.collective),
                        Key::DataType => Field::Text(&mut args.data_type),
                        Key::ElementsIn => Field::Unsigned(&mut args.elements_in),
                        Key::ElementsOut => Field::Unsigned(&mut args.elements_out),
                        Key::GroupSize => Field::Unsigned(&mut args.group_size),
                        Key::Group => Field::Text(&mut args.group),
                        Key::GroupRanks => Field::Text(&mut args.group_ranks),
                        Key::Sequence => Field::Unsigned(&mut args.sequence),
                        _ => {
                            fields.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    let value: Loose = fields.next_value()?;
                    match field {
                        Field::Signed(field) => *field = value.integer(),
                        Field::Unsigned(field) => {
                            *field = value.integer().and_then(|number| u64::try_from(number).ok());
                        }
                        Field::Text(field) => *field = value.text(),
                    }
                }
                Ok(args)
            }
        }
        deserializer.deserialize_any(Fields)
    }
}

enum Field<'a> {
    Signed(&'a mut Option<i64>),
    Unsigned(&'a mut Option<u64>),
    Text(&'a mut Option<String>),
}

/// A value of any type.
pub(super) enum Loose {
    Integer(i64),
    Number(f64),
    Text(String),
    Other,
}

impl Loose {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Integer(number) => Some(number.to_string()),
            Self::Number(_) | Self::Other => None,
        }
    }

    pub(super) fn integer(self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(number),
            // Numbers above the range of integers are cut to it.
            Self::Number(number) if number.fract() == 0.0 => Some(number as i64),
            Self::Text(text) => text.trim().parse().ok(),
            Self::Number(_) | Self::Other => None,
        }
    }

    /// Microseconds, possibly with decimals, as nanoseconds.
    fn us_to_ns(self) -> Option<i64> {
        match self {
            Self::Integer(us) => Some(us.saturating_mul(1000)),
            Self::Number(us) => Some((us * 1e3).round() as i64),
            Self::Text(text) => text
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|us| us.is_finite())
                .map(|us| (us * 1e3).round() as i64),
            Self::Other => None,
        }
    }
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Loose;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_bool<E>(self, _: bool) -> Result<Loose, E> {
                Ok(Loose::Other)
            }

            fn visit_unit<E>(self) -> Result<Loose, E> {
                Ok(Loose::Other)
            }

            fn visit_i64<E>(self, number: i64) -> Result<Loose, E> {
                Ok(Loose::Integer(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Loose, E> {
                Ok(i64::try_from(number).map_or(Loose::Number(number as f64), Loose::Integer))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Loose, E> {
                Ok(Loose::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Loose, E> {
                Ok(Loose::Text(cut(text)))
            }

            /// A list of ranks is the same text as PyTorch writes for one: `[0, 1]`.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Loose, A::Error> {
                let mut text = String::new();
                while let Some(value) = list.next_element::<Loose>()? {
                    if let (Some(value), true) = (value.text(), text.len() < TEXT_MAX) {
                        text += if text.is_empty() { "[" } else { ", " };
                        text += &value;
                    }
                }
                Ok(if text.is_empty() { Loose::Other } else { Loose::Text(cut(&(text + "]"))) })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Loose::Other)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The start of a text, without control characters, because it is printed.
fn cut(text: &str) -> String {
    let end = text.len().min(TEXT_MAX);
    let end = (0..=end).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let mut text = text[..end].to_owned();
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_whatever_its_types() {
        let event: Event = serde_json::from_str(
            r#"{"ph":"X","cat":"kernel","cat":"kernel","name":"n","pid":"0","ts":"12.5","dur":3,
            "args":{"Group size":"8","Process Group Ranks":[0,1,2],"dtype":null,"In msg nelems":4.0,"Seq":-1,"stream":[[1]],"x":{"y":{}}}}"#,
        )
        .unwrap();
        assert_eq!((event.process, event.start_ns, event.duration_ns), (Some(0), Some(12_500), Some(3_000)));
        assert_eq!((event.args.group_size, event.args.elements_in), (Some(8), Some(4)));
        assert_eq!(event.args.group_ranks.as_deref(), Some("[0, 1, 2]"));
        assert_eq!((event.args.data_type, event.args.sequence), (None, None));
    }

    #[test]
    fn times_keep_their_nanoseconds() {
        let event: Event = serde_json::from_str(r#"{"ts":3569824056354.781,"dur":-2,"args":null}"#).unwrap();
        assert_eq!((event.start_ns, event.duration_ns), (Some(3_569_824_056_354_781), Some(0)));
        let event: Event = serde_json::from_str(r#"{"ts":1e300,"dur":18446744073709551615}"#).unwrap();
        assert_eq!(event.start_ns, Some(i64::MAX));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = format!("a{}", "é".repeat(TEXT_MAX));
        assert_eq!(cut(&text).len(), TEXT_MAX - 1);
        assert_eq!(cut("a\nb"), "a b");
    }
}
