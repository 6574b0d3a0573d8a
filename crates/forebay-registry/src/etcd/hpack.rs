//! Headers of HTTP/2 (HPACK, RFC 7541), as far as a client of etcd needs them.
//!
//! This side allows the other no table of earlier headers (`session` announces a size of 0), so
//! each block can be read by itself; and it writes literals alone.

use std::io;

use super::frame::strange;

/// The header that tells how the request went, in the table that both sides know: its entries from
/// 8 to 14.
const STATUS: &[u8] = b":status";
const STATUSES: [&[u8]; 7] = [b"200", b"204", b"206", b"304", b"400", b"404", b"500"];
const STATUS_FIRST: u64 = 8;

/// The entries of the table that both sides know.
const TABLE: u64 = 61;

/// A size of 0 for the table of the side that writes.
pub const NO_TABLE: u8 = 0x20;

/// `:method: POST`, `:scheme: http` and `:scheme: https` in the table that both sides know.
pub const POST: u8 = 0x83;
pub const PLAIN: u8 = 0x86;
pub const SECURE: u8 = 0x87;

/// A header that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Empty for names of the table other than `:status`, which nobody asks for here.
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

/// Appends a header that no table takes up.
pub fn literal(to: &mut Vec<u8>, name: &str, value: &str) {
    to.push(0);
    for text in [name, value] {
        length(to, text.len());
        to.extend_from_slice(text.as_bytes());
    }
}

/// Appends the length of a text that is not compressed.
fn length(to: &mut Vec<u8>, length: usize) {
    const PREFIX: usize = 0x7f;
    if length < PREFIX {
        to.push(length as u8);
        return;
    }
    to.push(PREFIX as u8);
    let mut left = length - PREFIX;
    while left >= 0x80 {
        to.push(left as u8 | 0x80);
        left >>= 7;
    }
    to.push(left as u8);
}

/// Reads a block of headers.
pub fn decode(block: &[u8]) -> io::Result<Vec<Field>> {
    let (mut from, mut fields) = (Reader(block), Vec::new());
    while let Some(first) = from.0.first() {
        let field = from.field(*first);
        fields.extend(field.ok_or_else(|| strange("headers that are no HPACK"))?);
    }
    Ok(fields)
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    /// Reads what begins with the byte `first`: a header, or the size of the table, `Some(None)`.
    fn field(&mut self, first: u8) -> Option<Option<Field>> {
        match first {
            0x80.. => entry(self.integer(7)?).map(Some),
            0x40.. => self.literal(6).map(Some),
            NO_TABLE.. => self.integer(5).map(|_| None),
            _ => self.literal(4).map(Some),
        }
    }

    fn literal(&mut self, bits: u32) -> Option<Field> {
        let name = match self.integer(bits)? {
            0 => self.text()?,
            index => entry(index)?.name,
        };
        Some(Field { name, value: self.text()? })
    }

    /// A number that begins in the low bits of a byte.
    fn integer(&mut self, bits: u32) -> Option<u64> {
        let mask = (1u8 << bits) - 1;
        let mut number = u64::from(self.byte()? & mask);
        if number < u64::from(mask) {
            return Some(number);
        }
        for shift in (0..28).step_by(7) {
            let byte = self.byte()?;
            number += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        let compressed = self.0.first()? & 0x80 != 0;
        let length = usize::try_from(self.integer(7)?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        if compressed { huffman(text) } else { Some(text.to_vec()) }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

/// An entry of the table that both sides know.
fn entry(index: u64) -> Option<Field> {
    let status = index.checked_sub(STATUS_FIRST).and_then(|at| STATUSES.get(at as usize));
    match status {
        Some(status) => Some(Field { name: STATUS.to_vec(), value: status.to_vec() }),
        None if (1..=TABLE).contains(&index) => Some(Field { name: vec![], value: vec![] }),
        None => None,
    }
}

/// The bits of each byte's code. The code is canonical: codes of one length follow one another in
/// the order of their bytes, and longer ones follow shorter ones.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The bits of the longest code.
const LONGEST: usize = 30;

/// The bytes in the order of their codes, and of each length the first code and its place there.
struct Codes {
    bytes: [u8; 256],
    first: [(u32, usize); LONGEST + 2],
}

const CODES: Codes = codes();

const fn codes() -> Codes {
    let (mut bytes, mut first) = ([0; 256], [(0, 0); LONGEST + 2]);
    let (mut code, mut place, mut length) = (0, 0, 1);
    while length <= LONGEST + 1 {
        code <<= 1;
        first[length] = (code, place);
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                bytes[place] = byte as u8;
                place += 1;
                code += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    Codes { bytes, first }
}

fn huffman(text: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut code, mut length) = (Vec::new(), 0, 0);
    for bit in text.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        (code, length) = (code << 1 | bit, length + 1);
        if length > LONGEST {
            return None;
        }
        let (first, place) = CODES.first[length];
        let of_length = &CODES.bytes[place..CODES.first[length + 1].1];
        let byte = code.checked_sub(first).and_then(|at| of_length.get(at as usize));
        if let Some(byte) = byte {
            out.push(*byte);
            (code, length) = (0, 0);
        }
    }
    // What is left of the last byte is filled with ones.
    (length < 8 && code + 1 == 1 << length).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |two: &[char]| u8::from_str_radix(&String::from_iter(two), 16);
        digits.chunks(2).map(|two| byte(two).expect("it is hexadecimal")).collect()
    }

    fn texts(hex: &str) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
        let fields = decode(&bytes(hex)).expect("it is right");
        fields.into_iter().map(|field| (text(field.name), text(field.value))).collect()
    }

    /// Method: the examples of RFC 7541's appendix C that need no table of earlier headers.
    #[test]
    fn the_examples_of_the_rfc_are_read() {
        let read = |hex: &str, name: &str, value: &str| {
            assert!(texts(hex).contains(&(name.into(), value.into())), "{hex}: {:?}", texts(hex));
        };
        read(
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key",
            "custom-header",
        );
        read("040c 2f73 616d 706c 652f 7061 7468", "", "/sample/path");
        read("1008 7061 7373 776f 7264 0673 6563 7265 74", "password", "secret");
        read("88", ":status", "200");
        read("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", "", "www.example.com");
        let answer = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
                      2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
        read(answer, ":status", "302");
        for value in ["private", "Mon, 21 Oct 2013 20:13:21 GMT", "https://www.example.com"] {
            read(answer, "", value);
        }
        let mut long = Reader(&[0x1f, 0x9a, 0x0a]);
        assert_eq!(long.integer(5), Some(1337));
    }

    /// Kraft's sum of a whole code is one: with the code of 30 bits that no text has.
    #[test]
    fn the_code_is_whole() {
        let share = |length: u8| 1u64 << (LONGEST - usize::from(length));
        assert_eq!(LENGTHS.iter().copied().map(share).sum::<u64>() + 1, 1 << LONGEST);
        assert_eq!(CODES.first[LONGEST + 1], ((1 << 31) - 2, 256));
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for length in [0, 1, 126, 127, 128, 254, 255, 20_000] {
            let (mut block, value) = (vec![NO_TABLE], "v".repeat(length));
            literal(&mut block, "name", &value);
            let field = Field { name: b"name".to_vec(), value: value.into_bytes() };
            assert_eq!(decode(&block).expect("it is right"), [field]);
        }
    }

    /// Method: cut texts, an entry of a table that is not kept, a number without an end, a wrong
    /// filling, and the code that no text has.
    #[test]
    fn what_is_no_block_of_headers_is_told() {
        for hex in [
            "00",
            "0003 61",
            "40",
            "be",
            "80",
            "7f ffff ffff ffff",
            "0081 ff00",
            "0081 1800",
            "0084 ffff ffff 00",
        ] {
            assert!(decode(&bytes(hex)).is_err(), "{hex}");
        }
    }
}
