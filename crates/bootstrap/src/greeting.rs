//! What both sides of a connection send in the clear, before either has proved anything.

use std::os::fd::AsFd;

use super::broken::Broken;
use super::error::Refusal;
use super::outgoing::write_some;
use super::secret::{HANDSHAKE_BYTES, random_bytes};

/// The version of the protocol: of frames, messages and their order.
const VERSION: u32 = 9;

const MAGIC: [u8; 8] = *b"weftlink";
pub(super) const GREETING_BYTES: usize = 12;
pub(super) const CHALLENGE_BYTES: usize = 16;
/// What a rank that connects sends until it has proved that it knows the secret.
pub(super) const FIRST_BYTES: usize = GREETING_BYTES + HANDSHAKE_BYTES;

/// Random bytes that the accepting side sends first, so that the peer's proof is made for this connection.
#[derive(Debug)]
pub(super) struct Challenge(pub(super) [u8; CHALLENGE_BYTES]);

impl Challenge {
    /// Greets a new connection. Never blocks: its socket buffer is empty.
    pub(super) fn greet(socket: &impl AsFd) -> Option<Challenge> {
        let mut challenge = Challenge([0; CHALLENGE_BYTES]);
        random_bytes(&mut challenge.0).ok()?;
        let said = challenge.context();
        (write_some(socket, &said, None) == Ok(said.len())).then_some(challenge)
    }

    /// The greeting and the challenge.
    pub(super) fn context(&self) -> Vec<u8> {
        [&greeting()[..], &self.0].concat()
    }
}

pub(super) fn greeting() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Whether a greeting is one of this version.
pub(super) fn check(greeting: [u8; GREETING_BYTES]) -> Result<(), Broken> {
    let [magic @ .., a, b, c, d] = greeting;
    match u32::from_le_bytes([a, b, c, d]) {
        _ if magic != MAGIC => Err(Broken::Stranger(Refusal::NotWeft)),
        _ if mutant!("any-version-will-do") => Ok(()),
        VERSION => Ok(()),
        theirs => Err(Broken::Stranger(Refusal::Version { theirs, ours: VERSION })),
    }
}

/// Whether a new connection has sent enough to be answered without waiting for more: all that a rank sends first, or
/// something that no rank of this version says.
pub(super) fn is_worth_hearing(said: &[u8]) -> bool {
    let greeting = said.first_chunk::<GREETING_BYTES>();
    said.len() >= FIRST_BYTES || greeting.is_some_and(|greeting| check(*greeting).is_err())
}
