//! The messages at the start of a connection with a cluster key, and the body of a refusal.

use serde::{Deserialize, Serialize};

pub const ASK: &str = "/ask";
pub const HELLO: &str = "/hello";
pub const PROVE: &str = "/prove";

pub const KEYS_DIFFER: &str = "the cluster keys differ: give both members the same key file";

#[derive(Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// 32 bytes in hexadecimal.
    pub nonce: String,
}

/// The door's answer to a hello.
#[derive(Serialize, Deserialize)]
pub struct Welcome {
    pub nonce: String,
    pub proof: String,
}

#[derive(Serialize, Deserialize)]
pub struct Prove {
    pub proof: String,
}

#[derive(Serialize, Deserialize)]
pub struct Refused {
    /// The HTTP status: here it is covered by the seal.
    pub status: u16,
    pub error: String,
}

pub fn other_protocol(here: u32, there: u32) -> String {
    format!(
        "this member speaks protocol {here} and whoever asks speaks {there}: run one release of forebay on all nodes"
    )
}
