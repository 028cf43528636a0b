//! Buffers that start at a cache line. A vector that straddles two lines costs two loads; with rows of whole lines in a
//! buffer that starts at one, none does.

/// One cache line.
#[derive(Copy, Clone, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; Buffer::LINE]);

/// Values that start at a cache line; keeps its memory when it shrinks.
#[derive(Default)]
pub(crate) struct Buffer {
    /// Whole lines; the last may be used in part.
    lines: Vec<Line>,
}

impl Buffer {
    /// Values per cache line.
    pub(crate) const LINE: usize = 16;

    /// An empty buffer.
    pub(crate) const fn new() -> Buffer {
        Buffer { lines: Vec::new() }
    }

    /// The first `len` values, whatever they are; the buffer grows if it must.
    pub(crate) fn take(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(Buffer::LINE);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; Buffer::LINE]));
        }
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }
}
