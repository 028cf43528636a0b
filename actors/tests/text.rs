//! The module `text` from outside: against stored vectors of the families, against users who write control tokens,
//! against broken files, and with texts long enough to show what is not linear.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod text {
    mod fence;
    mod files;
    mod hostile;
    mod long;
    mod oracle;
    mod stream;
}
