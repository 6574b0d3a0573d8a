//! The protection of a connection by the cluster key.
//!
//! Both ends send a fresh nonce and prove with HMAC-SHA256 over both nonces that they have the key. Out of the key
//! and the nonces come two keys for this connection, one for each direction. Each message has a seal, a tag over
//! its JSON: AES-256-GCM without anything to encrypt, that is GMAC (NIST SP 800-38D). The nonce is the message's
//! running number, which never comes twice, and the number of bytes that go with it. The bytes themselves are not
//! sealed: the cost of that is in `docs/decisions/peers.md`.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::key::{Key, from_hex, hex};
use crate::keys::PROTOCOL;

/// The end that proves.
#[derive(Clone, Copy)]
pub enum Side {
    Asker,
    Door,
}

/// Both nonces of a connection.
pub struct Nonces {
    pub asker: [u8; 32],
    pub door: [u8; 32],
}

impl Nonces {
    pub fn prove(&self, key: &Key, side: Side) -> String {
        hex(&key.sign(&self.parts(label(side))))
    }

    pub fn check(&self, key: &Key, side: Side, proof: &str) -> bool {
        let proof = from_hex::<32>(proof);
        proof.is_some_and(|proof| key.check(&self.parts(label(side)), &proof))
    }

    /// Makes the session that seals the messages of one end, and checks those of the other.
    pub fn session(&self, key: &Key, ours: Side) -> Session {
        let make = |label| {
            let secret = key.sign(&self.parts(label));
            let key = UnboundKey::new(&AES_256_GCM, &secret).expect("the key has 32 bytes");
            LessSafeKey::new(key)
        };
        let (asker, door) = (make(b"forebay seal asker"), make(b"forebay seal doors"));
        let (sends, receives) = match ours {
            Side::Asker => (asker, door),
            Side::Door => (door, asker),
        };
        Session { sends, receives, sent: 0, received: 0 }
    }

    /// Labels all have one length, and nonces too: parts cannot be mistaken for each other.
    fn parts<'p>(&'p self, label: &'p [u8; 18]) -> [&'p [u8]; 4] {
        const VERSION: [u8; 4] = PROTOCOL.to_le_bytes();
        [label, &VERSION, &self.asker, &self.door]
    }
}

fn label(side: Side) -> &'static [u8; 18] {
    match side {
        Side::Asker => b"forebay proof asks",
        Side::Door => b"forebay proof door",
    }
}

pub struct Session {
    sends: LessSafeKey,
    receives: LessSafeKey,
    sent: u64,
    received: u64,
}

impl Session {
    /// The seal of the next message, with which this many bytes go.
    pub fn seal(&mut self, words: &[u8], bytes: usize) -> String {
        let nonce = nonce(self.sent, bytes);
        self.sent += 1;
        let tag = self.sends.seal_in_place_separate_tag(nonce, Aad::from(words), &mut []);
        hex(tag.expect("its length is within what GCM takes").as_ref())
    }

    /// Whether this is the next message of the other end.
    pub fn check(&mut self, seal: &str, words: &[u8], bytes: usize) -> bool {
        let nonce = nonce(self.received, bytes);
        self.received += 1;
        from_hex::<16>(seal).is_some_and(|mut tag| {
            self.receives.open_in_place(nonce, Aad::from(words), &mut tag).is_ok()
        })
    }
}

fn nonce(number: u64, bytes: usize) -> Nonce {
    let length = u32::try_from(bytes).expect("lengths are checked before (BYTES_MAX)");
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce[8..].copy_from_slice(&length.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}
