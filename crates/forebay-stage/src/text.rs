//! Paths in JSON: text if they are UTF-8, otherwise an array of bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path that JSON can hold, whatever bytes are in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(pub PathBuf);

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => to.serialize_str(text),
            None => to.collect_seq(self.0.as_os_str().as_bytes()),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        Ok(match Form::deserialize(from)? {
            Form::Utf8(text) => Text(text.into()),
            Form::Bytes(bytes) => Text(OsString::from_vec(bytes).into()),
        })
    }
}

impl<T: Into<PathBuf>> From<T> for Text {
    fn from(path: T) -> Text {
        Text(path.into())
    }
}

impl AsRef<Path> for Text {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_as_it_was() {
        for bytes in
            [&b"plain/name"[..], b"with \"quotes\"\nand a line", b"not \xff\xfe UTF-8", b""]
        {
            let path = Text(OsString::from_vec(bytes.to_vec()).into());
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), path, "{json}");
            assert!(!json.contains('\n'), "one line: {json}");
        }
    }
}
