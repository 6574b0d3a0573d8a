//! Notifications: messages to the kernel that answer no request.

use super::abi;
use super::answer::header;
use super::encode::Words;

/// Invalidates a node's attributes in the kernel, and its pages within `len` bytes from `offset` on: all
/// pages from there on if `len` is 0, none if `offset` is negative. The kernel refuses if it does not know
/// the node.
pub fn inval_inode(node: u64, offset: i64, len: i64) -> Vec<u8> {
    let words = Words::new().u64(node).u64(offset as u64).u64(len as u64);
    notification(abi::NOTIFY_INVAL_INODE, &words)
}

/// Puts `bytes` into the kernel's pages of a regular file, from `offset` on. The kernel takes the file to reach at
/// least to their end from then on.
pub fn store(node: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let words = Words::new().u64(node).u64(offset).u32(bytes.len() as u32).u32(0);
    let len = words.bytes().len() + bytes.len();
    [&header(len, abi::NOTIFY_STORE as i32, 0)[..], words.bytes(), bytes].concat()
}

/// Asks for zero bytes of a regular file. The kernel answers with a NOTIFY_REPLY of the number `unique`.
pub fn retrieve(node: u64, unique: u64) -> Vec<u8> {
    notification(abi::NOTIFY_RETRIEVE, &Words::new().u64(unique).u64(node).u64(0).u32(0).u32(0))
}

fn notification(code: u32, words: &Words) -> Vec<u8> {
    // The number of a request is 0, since a notification answers none.
    [&header(words.bytes().len(), code as i32, 0)[..], words.bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_they_say() {
        for message in [inval_inode(7, -1, 0), retrieve(7, 1 << 62), store(7, 5, b"x")] {
            assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
            assert_eq!(message[8..16], [0; 8], "not the answer to a request");
        }
        assert_eq!(inval_inode(7, -1, 0)[24..32], [0xff; 8]);
        assert_eq!(inval_inode(7, 1, 5)[32..40], 5u64.to_ne_bytes());
    }
}
