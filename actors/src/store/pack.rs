//! What a pack looks like: one immutable object of many blocks. All numbers are little-endian.
//!
//! ```text
//! header     magic 8, layout 16, writer 8, number 8, made 4, crc32c of these 4                               48 bytes
//! payloads   of all blocks, back to back, chain after chain
//! footer     layout 16, writer 8, number 8, made 4, blocks 4, classes 4, tenants 4                           48 bytes
//!            for each class its length 1 and its name; for each tenant its digest 16
//!            for each block hash 16, parent 16, start 4, bytes 4, tokens 4, crc32c 4,
//!                           stored 4, used 4, expires 4, depth 4, tenant 2, class 1, has a parent 1        68 bytes
//! trailer    start of the footer 8, crc32c of the footer and this start 4, marker 12                         24 bytes
//! ```
//!
//! The header is for people and for rescue; a reader begins at the end. The format's version is in both magics.
//! The first one did not say when a block was used.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::options::{Stamp, Tenant, WriterId};
use super::wish::Payload;
use crate::kv::BlockHash;

const MAGIC: &[u8; 8] = b"mspack02";
const MARKER: &[u8; 12] = b"mspack02-end";
const MARKER_1: &[u8; 12] = b"mspack01-end";
/// What a marker of any version begins with.
const MARKER_ANY: usize = 6;

/// Before the first block.
pub const HEADER_BYTES: u64 = 48;
/// Behind the footer.
pub const TRAILER_BYTES: usize = 24;
const FOOTER_HEAD_BYTES: usize = 48;
/// What a block takes beside its bytes: its part of the footer.
pub const RECORD_BYTES: usize = 68;

/// What a pack is called: who wrote it, and its number among theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackName {
    /// Who wrote it.
    pub writer: WriterId,
    /// From 0 on, never twice.
    pub number: u64,
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", self.writer, self.number)
    }
}

impl FromStr for PackName {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (writer, number) = text.split_once('-').ok_or(())?;
        let hex = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| ());
        let name = Self { writer: WriterId(hex(writer)?), number: hex(number)? };
        // Only what is written as we write it: one object, one name.
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

/// A block as a footer tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// Its name.
    pub hash: BlockHash,
    /// The block before it, unless it is the first of its chain.
    pub parent: Option<BlockHash>,
    /// Where it begins in the object.
    pub start: u32,
    /// Its length.
    pub bytes: u32,
    /// Positions in it.
    pub tokens: u32,
    /// Blocks before it in its chain.
    pub depth: u32,
    /// Of its bytes.
    pub crc: u32,
    /// When it was stored first.
    pub stored: Stamp,
    /// When it was used last as the pack was written; packs of the first version do not say it.
    pub used: Option<Stamp>,
    /// When it was to expire then.
    pub expires: Stamp,
    /// Place in the footer's list.
    pub tenant: u16,
    /// Place in the footer's list.
    pub class: u8,
}

impl BlockRecord {
    /// Its bytes in the object.
    pub fn range(&self) -> Range<u64> {
        u64::from(self.start)..u64::from(self.start) + u64::from(self.bytes)
    }
}

/// What a pack says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Of the tier that wrote it.
    pub layout: [u8; 16],
    /// Its own name.
    pub name: PackName,
    /// When it was written.
    pub made: Stamp,
    /// Names of the classes of its blocks, none longer than 255 bytes.
    pub classes: Vec<String>,
    /// Tenants of its blocks.
    pub tenants: Vec<Tenant>,
    /// Its blocks, in the order of their bytes.
    pub blocks: Vec<BlockRecord>,
}

/// Why an object is no pack for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It was not written to its end, or is something else.
    #[error("its last bytes are no commit marker")]
    NoMarker,
    /// A later version of this program wrote it, or an earlier one.
    #[error("it is of a version that is not known here")]
    Version,
    /// Its footer is damaged.
    #[error("its footer does not match its checksum")]
    Checksum,
    /// What its footer says cannot be.
    #[error("its footer contradicts itself")]
    Senseless,
    /// It was copied, or belongs to another layout.
    #[error("it says that it is another one")]
    Another,
}

impl Footer {
    /// Where it begins in its object.
    pub fn start(&self) -> u64 {
        self.blocks.last().map_or(HEADER_BYTES, |block| block.range().end)
    }

    /// The whole object, as parts: the payloads are in the order of the blocks, and each of the length said there.
    pub fn object(&self, payloads: impl IntoIterator<Item = Payload>) -> Vec<Payload> {
        let mut header = MAGIC.to_vec();
        self.identity(&mut header);
        header.extend(crc32c::crc32c(&header).to_le_bytes());
        let mut parts = vec![Payload::from(header)];
        parts.extend(payloads);
        let mut footer = self.encode();
        footer.extend(self.start().to_le_bytes());
        footer.extend(crc32c::crc32c(&footer).to_le_bytes());
        footer.extend(MARKER);
        parts.push(footer.into());
        parts
    }

    fn identity(&self, into: &mut Vec<u8>) {
        into.extend(self.layout);
        into.extend(self.name.writer.0.to_le_bytes());
        into.extend(self.name.number.to_le_bytes());
        into.extend(self.made.0.to_le_bytes());
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FOOTER_HEAD_BYTES + 256 + self.blocks.len() * RECORD_BYTES);
        self.identity(&mut bytes);
        for count in [self.blocks.len(), self.classes.len(), self.tenants.len()] {
            bytes.extend(u32::try_from(count).expect("a pack has fewer than 2^32 of anything").to_le_bytes());
        }
        for class in &self.classes {
            bytes.push(u8::try_from(class.len()).expect("names of classes are short"));
            bytes.extend(class.as_bytes());
        }
        self.tenants.iter().for_each(|tenant| bytes.extend(tenant.0));
        for block in &self.blocks {
            bytes.extend(block.hash.as_bytes());
            bytes.extend(block.parent.map_or([0; 16], |parent| *parent.as_bytes()));
            let numbers = [block.start, block.bytes, block.tokens, block.crc];
            let used = block.used.unwrap_or(block.stored);
            let others = [block.stored.0, used.0, block.expires.0, block.depth];
            numbers.iter().chain(&others).for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes.extend(block.tenant.to_le_bytes());
            bytes.extend([block.class, u8::from(block.parent.is_some())]);
        }
        bytes
    }

    /// Where the footer and all behind it lie, by the last bytes of an object of `bytes`.
    pub fn place(tail: &[u8], bytes: u64) -> Result<Range<u64>, Refused> {
        let trailer = tail.last_chunk::<TRAILER_BYTES>().ok_or(Refused::NoMarker)?;
        let marker = &trailer[12..];
        if marker != MARKER && marker != MARKER_1 {
            let ours = marker[..MARKER_ANY] == MARKER[..MARKER_ANY] && marker.ends_with(b"-end");
            return Err(if ours { Refused::Version } else { Refused::NoMarker });
        }
        let start = u64::from_le_bytes(*trailer.first_chunk().expect("it is longer than eight bytes"));
        let least = (FOOTER_HEAD_BYTES + TRAILER_BYTES) as u64;
        let inside = start >= HEADER_BYTES && start.checked_add(least).is_some_and(|end| end <= bytes);
        if inside { Ok(start..bytes) } else { Err(Refused::Senseless) }
    }

    /// Reads a footer and the trailer behind it, of the object `name` in a tier of `layout`.
    pub fn decode(bytes: &[u8], start: u64, layout: [u8; 16], name: PackName) -> Result<Self, Refused> {
        let body = bytes.len().checked_sub(TRAILER_BYTES).ok_or(Refused::NoMarker)?;
        let (checked, rest) = bytes.split_at(body + 8);
        if rest[..4] != crc32c::crc32c(checked).to_le_bytes() || checked[body..] != start.to_le_bytes() {
            return Err(Refused::Checksum);
        }
        let mut reader = Reader { bytes: &checked[..body], dated: !rest.ends_with(MARKER_1) };
        let footer = reader.footer(start).ok_or(Refused::Senseless)?;
        if !reader.bytes.is_empty() {
            return Err(Refused::Senseless);
        }
        if footer.layout == layout && footer.name == name { Ok(footer) } else { Err(Refused::Another) }
    }
}

struct Reader<'a> {
    /// What is not read yet.
    bytes: &'a [u8],
    /// Whether records say when a block was used.
    dated: bool,
}

impl<'a> Reader<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*bytes)
    }

    fn number(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let [length] = self.bytes()?;
        let (text, rest) = self.bytes.split_at_checked(usize::from(length))?;
        self.bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// A footer that begins at `end` of its object; `None` where it makes no sense.
    fn footer(&mut self, end: u64) -> Option<Footer> {
        let layout = self.bytes()?;
        let writer = WriterId(u64::from_le_bytes(self.bytes()?));
        let name = PackName { writer, number: u64::from_le_bytes(self.bytes()?) };
        let made = Stamp(self.number()?);
        let (blocks, classes, tenants) = (self.number()?, self.number()?, self.number()?);
        let classes: Vec<String> = (0..classes).map(|_| self.text()).collect::<Option<_>>()?;
        let tenants: Vec<Tenant> = (0..tenants).map(|_| self.bytes().map(Tenant)).collect::<Option<_>>()?;
        let record = if self.dated { RECORD_BYTES } else { RECORD_BYTES - size_of::<Stamp>() };
        if self.bytes.len() != blocks as usize * record {
            return None;
        }
        let blocks: Vec<BlockRecord> = (0..blocks).map(|_| self.block()).collect::<Option<_>>()?;
        let mut free = HEADER_BYTES;
        for block in &blocks {
            let range = block.range();
            let known = usize::from(block.tenant) < tenants.len() && usize::from(block.class) < classes.len();
            if range.start != free || !known {
                return None;
            }
            free = range.end;
        }
        (free == end).then_some(Footer { layout, name, made, classes, tenants, blocks })
    }

    fn block(&mut self) -> Option<BlockRecord> {
        let hash = BlockHash::from_bytes(self.bytes()?);
        let parent = BlockHash::from_bytes(self.bytes()?);
        let (start, bytes, tokens, crc) = (self.number()?, self.number()?, self.number()?, self.number()?);
        let stored = Stamp(self.number()?);
        let used = if self.dated { Some(Stamp(self.number()?)) } else { None };
        let (expires, depth) = (Stamp(self.number()?), self.number()?);
        let tenant = u16::from_le_bytes(self.bytes()?);
        let [class, continues] = self.bytes()?;
        let parent = (continues != 0).then_some(parent);
        Some(BlockRecord {
            hash,
            parent,
            start,
            bytes,
            tokens,
            depth,
            crc,
            stored,
            used,
            expires,
            tenant,
            class,
        })
    }
}
