//! Pieces of messages.

use crate::log::model::Interface;

/// The word after a word.
pub(super) fn after<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut words = text.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()
}

/// The number after a word.
pub(super) fn number_after<T: std::str::FromStr>(text: &str, name: &str) -> Option<T> {
    let word = after(text, name)?;
    let end = word.find(|letter: char| letter != '-' && !letter.is_ascii_digit()).unwrap_or(word.len());
    word[..end].trim_end_matches('-').parse().ok()
}

/// The address of a communicator: the word after `comm`.
pub(super) fn address(text: &str) -> Option<&str> {
    after(text, "comm").filter(|address| address.starts_with("0x"))
}

/// `1` in `1[1b000]`, `[1]` alone gives nothing.
pub(super) fn leading_number(word: &str) -> Option<u32> {
    let end = word.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(word.len());
    word[..end].parse().ok()
}

/// A rank of a tree: -1 is none.
pub(super) fn tree_rank(text: &str) -> Option<Option<u32>> {
    match text.trim().parse::<i64>().ok()? {
        rank if rank < 0 => Some(None),
        rank => u32::try_from(rank).ok().map(Some),
    }
}

/// Interfaces in `[0]eth0:10.0.0.1<0> [1]eth1:fe80::1%eth1<0>`, with or without their numbers.
pub(super) fn interfaces(text: &str) -> Vec<Interface> {
    text.split_whitespace().filter_map(interface).take(64).collect()
}

/// An interface in `[0]eth0:10.0.0.1<0>`.
pub(super) fn interface(word: &str) -> Option<Interface> {
    let word = word.trim_end_matches([';', ',']);
    let word = word.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(word, |(_, rest)| rest);
    let (name, address) = word.split_once(':')?;
    let address = address.split('<').next().unwrap_or("");
    // `mlx5_0:1` is a NIC and its port.
    let is_name = !name.is_empty() && name.len() < 64 && address.contains(['.', ':']);
    is_name.then(|| Interface { name: name.to_owned(), address: address.to_owned() })
}
