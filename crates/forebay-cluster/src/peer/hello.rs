//! What is said at the start of a connection with a cluster key, and what a refusal says.

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

/// The door's part.
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
    /// The status of HTTP: here it is below the seal.
    pub status: u16,
    pub error: String,
}

pub fn other_protocol(here: u32, there: u32) -> String {
    format!(
        "this member speaks protocol {here} and whoever asks speaks {there}: run one release of forebay on all nodes"
    )
}
