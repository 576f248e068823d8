//! What only the ranks of one job know, and how two of them prove it to each other.
//!
//! The proof is a Noise handshake with the secret as its pre-shared key (`NNpsk0`): each side sends a fresh key of its own,
//! and neither can read or write the first message without the secret. The handshake is bound to random bytes of the side that
//! was come to (`channel.rs`), so what is recorded and sent again fits no later one. What follows is encrypted and numbered by the keys that come out of it, so a connection cannot be taken over
//! half way either.
//!
//! Deliberately absent: certificates, and who may know the secret. That is up to the launcher.

use std::fmt;

use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{HandshakeState, StatelessTransportState};

use super::environment::Secret;
use super::error::BootstrapError;

/// What only the ranks of one job know. It never shows in messages.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: Vec<u8>,
    is_guessable: bool,
}

const TOKEN_BYTES_MAX: usize = 4096;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const KEY_BYTES: usize = 32;

/// The most bytes that go into one sealed message, which has 65,535 with its tag.
pub const SEALED_BYTES_MAX: usize = 65_535 - TAG_BYTES;
/// What sealing adds.
pub const TAG_BYTES: usize = 16;
/// The messages of the handshake have a key and a tag each.
pub(super) const HANDSHAKE_BYTES: usize = KEY_BYTES + TAG_BYTES;

impl Token {
    /// A token of at most 4096 bytes; the same for all ranks of a job, another for every job.
    pub fn new(text: impl AsRef<[u8]>) -> Result<Token, BootstrapError> {
        let text = text.as_ref().to_vec();
        if text.len() > TOKEN_BYTES_MAX {
            let what = format!("a token may have {TOKEN_BYTES_MAX} bytes, this has {}", text.len());
            return Err(BootstrapError::BadCall { what });
        }
        if text.is_empty() {
            return Err(BootstrapError::BadCall { what: "a token must not be empty".to_owned() });
        }
        Ok(Token { text, is_guessable: false })
    }

    /// The same, but made of what others can find out: ranks then look at the user of connections within their host, too.
    pub(super) fn guessable(self) -> Token {
        Token { is_guessable: true, ..self }
    }

    pub(super) fn is_guessable(&self) -> bool {
        self.is_guessable
    }

    /// A token that nobody can guess: 256 random bits, as text.
    pub fn random() -> Result<Token, BootstrapError> {
        let mut bytes = [0; 32];
        random_bytes(&mut bytes)?;
        Token::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    /// A token that only those make who know both this one and a secret.
    pub fn mixed_with(&self, secret: &Secret) -> Result<Token, BootstrapError> {
        let missing =
            || BootstrapError::BadCall { what: "there is no hash function to mix secrets with".to_owned() };
        let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).ok_or_else(missing)?;
        let mut mixed = [0; KEY_BYTES];
        hash.input(b"weft: a token and the secret of a job\0");
        hash.input(&(self.text.len() as u64).to_le_bytes());
        hash.input(&self.text);
        hash.input(secret.bytes());
        hash.result(&mut mixed);
        Token::new(mixed)
    }

    /// The side that comes. `context` is what both must say alike in the clear before.
    pub(super) fn initiate(&self, context: &[u8]) -> Result<HandshakeState, snow::Error> {
        self.handshake(context, |builder| builder.build_initiator())
    }

    /// The accepting side.
    pub(super) fn respond(&self, context: &[u8]) -> Result<HandshakeState, snow::Error> {
        self.handshake(context, |builder| builder.build_responder())
    }

    fn handshake(
        &self,
        context: &[u8],
        build: impl FnOnce(snow::Builder<'_>) -> Result<HandshakeState, snow::Error>,
    ) -> Result<HandshakeState, snow::Error> {
        let mut key = [0; KEY_BYTES];
        let mut hash = DefaultResolver
            .resolve_hash(&HashChoice::Blake2s)
            .ok_or(snow::Error::Init(snow::error::InitStage::GetHashImpl))?;
        hash.input(b"weft: the secret of a job\0");
        hash.input(&self.text);
        hash.result(&mut key);
        build(snow::Builder::new(PATTERN.parse()?).psk(0, &key)?.prologue(context)?)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Numbers that nobody can guess.
pub(crate) fn random_bytes(bytes: &mut [u8]) -> Result<(), BootstrapError> {
    let filled = DefaultResolver.resolve_rng().map(|mut random| random.try_fill_bytes(bytes));
    match filled {
        Some(Ok(())) => Ok(()),
        _ => Err(BootstrapError::System { what: "this system gives no random numbers".to_owned() }),
    }
}

/// A number that nobody can guess and nobody else has.
pub fn random_number() -> Result<u64, BootstrapError> {
    let mut bytes = [0; 8];
    random_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The keys of one connection: what one side seals under a number, only the other opens, under the same number.
pub struct Seal(StatelessTransportState);

impl Seal {
    pub(super) fn new(handshake: HandshakeState) -> Result<Seal, snow::Error> {
        handshake.into_stateless_transport_mode().map(Seal)
    }

    /// Appends `plain`, sealed, to `sealed`.
    pub fn seal(&self, number: u64, plain: &[u8], sealed: &mut [u8]) -> Option<usize> {
        self.0.write_message(number, plain, sealed).ok()
    }

    /// Opens what was sealed under that number; nothing if it was not, or was changed since.
    pub fn open(&self, number: u64, sealed: &[u8], plain: &mut [u8]) -> Option<usize> {
        self.0.read_message(number, sealed, plain).ok()
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(..)")
    }
}
