//! DeepSeek-V4.1: the parts of it that stand alone.

#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the family that uses it comes with its forward pass")
)]
mod engram;
