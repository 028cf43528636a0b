//! What the crate promises, tested from outside: stored files, drawings, the schema, and files that mean harm.

mod drawn;
mod files;
mod hostile;
mod schema;
mod stored;
