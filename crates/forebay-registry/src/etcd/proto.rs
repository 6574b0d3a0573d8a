//! Protocol Buffers, as far as etcd's messages have them: numbers, and bytes, which may be text or a
//! message.

/// A message that is written field by field.
#[derive(Debug, Clone, Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn number(mut self, field: u64, number: u64) -> Message {
        self.varint(field << 3);
        self.varint(number);
        self
    }

    pub fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Message {
        self.varint(field << 3 | 2);
        self.varint(bytes.as_ref().len() as u64);
        self.0.extend_from_slice(bytes.as_ref());
        self
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The value of a field that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// A message that can be read. Its fields are `Default` until they are read.
pub trait Read: Default {
    /// Takes a field; one that is not known is left out. `None` if it is of another kind than it
    /// should be.
    fn field(&mut self, field: u64, value: Value<'_>) -> Option<()>;
}

/// Reads a message; `None` if it is none.
pub fn read<T: Read>(bytes: &[u8]) -> Option<T> {
    let (mut message, mut rest) = (T::default(), bytes);
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut rest)?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                Value::Bytes(split(&mut rest, length)?)
            }
            // Numbers of 8 and of 4 bytes, which no message here has.
            1 => Value::Bytes(split(&mut rest, 8)?),
            5 => Value::Bytes(split(&mut rest, 4)?),
            _ => return None,
        };
        message.field(tag >> 3, value)?;
    }
    Some(message)
}

fn varint(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = split(from, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn split<'m>(from: &mut &'m [u8], length: usize) -> Option<&'m [u8]> {
    let (taken, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(taken)
}

impl<'m> Value<'m> {
    pub fn number(self) -> Option<u64> {
        match self {
            Value::Number(number) => Some(number),
            Value::Bytes(_) => None,
        }
    }

    pub fn bytes(self) -> Option<&'m [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            Value::Number(_) => None,
        }
    }

    pub fn text(self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    pub fn message<T: Read>(self) -> Option<T> {
        self.bytes().and_then(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Found(Vec<(u64, u64)>, Vec<Vec<u8>>);

    impl Read for Found {
        fn field(&mut self, field: u64, value: Value<'_>) -> Option<()> {
            match value {
                Value::Number(number) => self.0.push((field, number)),
                Value::Bytes(bytes) => self.1.push(bytes.to_vec()),
            }
            Some(())
        }
    }

    /// The first message is the example of the format's description; numbers below zero have all
    /// 64 bits.
    #[test]
    fn a_message_is_read_as_it_was_written() {
        assert_eq!(Message::default().number(1, 150).as_ref(), [0x08, 0x96, 0x01]);
        let numbers = [0, 1, 127, 128, 1 << 35, u64::MAX].map(|number| (64, number));
        let written = numbers.iter().fold(Message::default(), |m, (f, n)| m.number(*f, *n));
        let written = written.bytes(2, "text").bytes(3, vec![7; 300]);
        let found = Found(numbers.into(), vec![b"text".to_vec(), vec![7; 300]]);
        assert_eq!(read(written.as_ref()), Some(found));
    }

    /// Method: a message ends at every place in turn, after a field or within one.
    #[test]
    fn a_message_that_is_cut_is_none() {
        let whole = Message::default().number(1, 300).bytes(2, "text");
        let read = |end: usize| read::<Found>(&whole.as_ref()[..end]).is_some();
        let ends: Vec<usize> = (0..=whole.as_ref().len()).filter(|end| read(*end)).collect();
        assert_eq!(ends, [0, 3, 9]);
    }
}
