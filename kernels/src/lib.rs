//! Arithmetic of language models. It knows nothing of actors, requests or the network: a caller loads a model
//! ([`load`]), gives it KV memory, and asks it to compute steps.

mod config;
mod dtype;
mod error;
mod files;
mod matrix;
mod memory;
mod model;
mod packed;
mod weights;
pub mod work;

pub use dtype::{DType, dequantize};
pub use error::Error;
pub use matrix::Matrix;
pub use memory::write_each;
pub use model::{
    Activations, Choose, CompressedFacts, DraftRow, Drafter, Drafts, ExpertFacts, Facts, GgufTokenizer,
    ImagePlan, Loaded, Local, Model, Pixels, Row, Scratch, Span, StateFacts, Survey, TextFiles, Vision, Want,
    load, load_beside, load_with, outline, survey,
};
pub use weights::{Mapped, TensorFacts, Texts, fingerprint};

mod backend;
pub mod check;
mod cpu;
mod experts;
mod kv;
mod op;
mod reference;
mod residual;
mod select;
mod windowed;

pub use backend::Backend;
pub use cpu::CpuBackend;
pub use experts::{Expert, ExpertBias, ExpertBuffers, Experts, Routing};
pub use kv::{KvFormat, KvLayout, KvMemory, Rings, Values, Widened};
pub use op::{Activation, Attention, AttentionRow, Pairing, RopeAxes, RopeTable, Whole};
pub use reference::ReferenceBackend;
pub use residual::{Mixes, Mixing, Recall};
pub use select::{Select, Stage};
pub use windowed::{Lists, WindowRow, Windowed};
