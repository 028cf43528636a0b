//! Whether a JPEG file has an end. Its decoder fills what is missing with grey and says nothing, and a model would
//! answer questions about half an image.

/// The start of a file, of a scan, and the end.
const START: u8 = 0xd8;
const SCAN: u8 = 0xda;
const END: u8 = 0xd9;

/// Walks the parts of the file up to its end; false when it breaks off before.
pub(super) fn has_an_end(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some((marker, behind)) = next_marker(rest) {
        rest = match marker {
            END => return true,
            START | 0x01 | 0xd0..=0xd7 => behind,
            _ => {
                let Some(([high, low], _)) = behind.split_first_chunk() else { return false };
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                let Some(behind) = behind.get(length.max(2)..) else { return false };
                if marker == SCAN { entropy_end(behind) } else { behind }
            }
        };
    }
    false
}

/// The next marker and what stands behind it.
fn next_marker(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let at = bytes.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))?;
    Some((bytes[at + 1], &bytes[at + 2..]))
}

/// Behind the coded bits of a scan: at a marker that is neither a stuffed byte nor a restart.
fn entropy_end(bytes: &[u8]) -> &[u8] {
    let marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff | 0xd0..=0xd7);
    let at = bytes.windows(2).position(marker).unwrap_or(bytes.len());
    &bytes[at..]
}
