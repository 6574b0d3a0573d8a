//! etcd's messages as its gateway writes them: bytes in base64, numbers as text, and zero values
//! left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// The answer of etcd to one request.
pub trait Answer: DeserializeOwned {
    /// The answer's header, if etcd's members agreed on it after the request had come: any other
    /// answer shows what the member has, however old that is.
    fn as_of_now(&self) -> Option<&Header> {
        None
    }
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Number(pub i64);

impl Number {
    pub fn unsigned(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i64),
            Unsigned(u64),
            Text(String),
        }
        match Either::deserialize(from)? {
            Either::Number(number) => Ok(Number(number)),
            // Ids of clusters use all 64 bits.
            Either::Unsigned(number) => Ok(Number(number.cast_signed())),
            Either::Text(text) => match (text.parse(), text.parse::<u64>()) {
                (Ok(number), _) => Ok(Number(number)),
                (_, Ok(number)) => Ok(Number(number.cast_signed())),
                (Err(error), _) => Err(serde::de::Error::custom(error)),
            },
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Bytes).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    pub cluster_id: Number,
    pub revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kv {
    pub key: Bytes,
    pub value: Bytes,
    pub mod_revision: Number,
    pub lease: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Range {
    pub header: Header,
    pub kvs: Vec<Kv>,
    pub more: bool,
}

impl Answer for Range {
    fn as_of_now(&self) -> Option<&Header> {
        Some(&self.header)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Txn {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<Response>,
}

impl Answer for Txn {
    fn as_of_now(&self) -> Option<&Header> {
        Some(&self.header)
    }
}

impl Answer for Granted {}
impl Answer for Streamed<Granted> {}
impl Answer for Status {}
impl Answer for Alarms {}
impl Answer for serde_json::Value {}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Response {
    pub response_range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Granted {
    #[serde(rename = "TTL")]
    pub ttl: Number,
}

/// One answer of a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Streamed<T> {
    pub result: Option<T>,
    pub error: Option<StreamError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamError {
    pub message: String,
    #[serde(alias = "code")]
    pub grpc_code: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Watched {
    pub header: Header,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: Number,
    pub cancel_reason: String,
    pub events: Vec<Watch>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Watch {
    #[serde(rename = "type")]
    pub kind: String,
    pub kv: Kv,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub header: Header,
    pub version: String,
    #[serde(rename = "dbSize")]
    pub bytes: Number,
    #[serde(rename = "dbSizeInUse")]
    pub bytes_in_use: Number,
    /// Present since 3.6.
    #[serde(rename = "dbSizeQuota")]
    pub quota: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Alarms {
    pub alarms: Vec<AlarmOf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct AlarmOf {
    pub alarm: String,
}

/// The answer in case of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refusal {
    pub message: String,
    pub code: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Token {
    pub token: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_as_text_or_not_at_all() {
        let text = r#"{"cluster_id":"18446744073709551615","revision":7,"member_id":"1"}"#;
        let header: Header = serde_json::from_str(text).expect("it can be read");
        assert_eq!((header.cluster_id.0, header.revision.0), (-1, 7));
        let none: Header = serde_json::from_str("{}").expect("it can be read");
        assert_eq!(none.revision, Number(0));
        assert!(serde_json::from_str::<Header>(r#"{"revision":"x"}"#).is_err());
    }
}
