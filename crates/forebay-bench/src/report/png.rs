//! Pixels as a PNG file: true color, one data chunk.

use super::raster::Image;

/// Zlib's usual level: higher ones cost seconds and save little on flat areas.
const LEVEL: u8 = 6;

/// The bytes of the file.
pub fn encode(image: &Image) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut head = Vec::with_capacity(13);
    head.extend((image.width as u32).to_be_bytes());
    head.extend((image.height as u32).to_be_bytes());
    // Eight bits, RGB, the one compression, the one set of filters, not interlaced.
    head.extend([8, 2, 0, 0, 0]);
    chunk(&mut file, *b"IHDR", &head);
    chunk(
        &mut file,
        *b"IDAT",
        &miniz_oxide::deflate::compress_to_vec_zlib(&filtered(image), LEVEL),
    );
    chunk(&mut file, *b"IEND", &[]);
    file
}

/// Each row after a byte that says "not filtered": flat colors compress well as they are.
fn filtered(image: &Image) -> Vec<u8> {
    let mut rows = Vec::with_capacity(image.pixels.len() + image.height);
    for row in image.pixels.chunks_exact(image.width * 3) {
        rows.push(0);
        rows.extend(row);
    }
    rows
}

fn chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let from = file.len();
    file.extend(kind);
    file.extend(data);
    let sum = crc32fast::hash(&file[from..]);
    file.extend(sum.to_be_bytes());
}
