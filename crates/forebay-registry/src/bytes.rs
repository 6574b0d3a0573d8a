//! The encoding of values in JSON: as text if they are text, which forebay's are, else as a list of
//! bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Text(String),
    Bytes(Vec<u8>),
}

pub fn serialize<S: Serializer>(value: &[u8], to: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(value) {
        Ok(text) => to.serialize_str(text),
        Err(_) => value.serialize(to),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    Ok(match Either::deserialize(from)? {
        Either::Text(text) => text.into_bytes(),
        Either::Bytes(bytes) => bytes,
    })
}

#[cfg(test)]
mod tests {
    use crate::Commit;

    #[test]
    fn values_come_back_from_json_whatever_they_are() {
        let commit = Commit::new().if_value("a", "text").put("b", vec![0, 255]).put("c", "");
        let json = serde_json::to_string(&commit).expect("it can be written");
        assert!(json.contains(r#"["a","text"]"#), "{json}");
        assert_eq!(serde_json::from_str::<Commit>(&json).expect("it can be read"), commit);
    }
}
