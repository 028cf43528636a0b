//! What each rank of a group would hold of a model: arithmetic over the headers of its files, before anything is read or
//! started. Experts are spread over the ranks; what every token needs is copied to each, or spread by rows; tables that
//! only few rows are looked up of stay in their files, or are spread or copied too.

use std::collections::BTreeMap;

use millstream_kernels::{Facts, KvFormat, KvLayout, Rings, Survey, TensorFacts};
use serde_json::{Value, json};

/// Tokens of a block, for the bytes of one token.
const BLOCK: usize = 64;

/// How what is not experts is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each rank holds all of it.
    Copied,
    /// Each rank holds as many rows as any other.
    Split,
    /// Nobody holds it: rows are read from the file when they are wanted.
    InFile,
}

/// How a model is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Ranks of the group; not zero.
    pub ranks: usize,
    /// Tables that rows are looked up of.
    pub tables: Spread,
    /// Everything else but experts.
    pub rest: Spread,
}

/// A part of a model whose tensors are held alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Experts that the router chooses among.
    Experts,
    /// Tables that rows are looked up of, by hashes of tokens.
    Tables,
    /// Embedding and output matrix.
    Ends,
    /// Layers that draft, without their experts.
    Drafter,
    /// The vision tower and what comes behind it.
    Eyes,
    /// Layers, without their experts.
    Layers,
}

impl Part {
    /// What a person reads.
    pub fn name(self) -> &'static str {
        match self {
            Part::Experts => "experts",
            Part::Tables => "lookup tables",
            Part::Ends => "embedding, output",
            Part::Drafter => "drafter",
            Part::Eyes => "eyes",
            Part::Layers => "layers",
        }
    }

    /// The part that a tensor belongs to, by its name.
    fn of(name: &str) -> Part {
        let starts = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        if expert_of(name).is_some() {
            Part::Experts
        } else if name.contains(".engram.embed.") {
            Part::Tables
        } else if starts(&["vision.", "aligner.", "image_", "model.visual.", "visual."]) {
            Part::Eyes
        } else if starts(&["mtp."]) {
            Part::Drafter
        } else if starts(&[
            "embed.",
            "head.",
            "lm_head.",
            "model.embed_tokens.",
            "model.language_model.embed_tokens.",
        ]) {
            Part::Ends
        } else {
            Part::Layers
        }
    }
}

/// For a tensor of experts: what stands before the experts of its layer, and which it is; none where all are in one tensor.
fn expert_of(name: &str) -> Option<(&str, Option<usize>)> {
    let (layer, rest) = name.split_once(".experts.")?;
    Some((layer, rest.split('.').next().and_then(|index| index.parse().ok())))
}

/// Tensors and bytes of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many tensors.
    pub tensors: usize,
    /// Their bytes in the files.
    pub bytes: u64,
}

/// Bytes that a rank would hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Of experts.
    pub experts: u64,
    /// Of lookup tables.
    pub tables: u64,
    /// Of everything else.
    pub rest: u64,
}

impl Share {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.experts + self.tables + self.rest
    }
}

/// Bytes of KV memory in one of the layouts it can have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvBytes {
    /// The format.
    pub format: &'static str,
    /// Where windows are kept, in a model that leaves the choice.
    pub windows: Option<&'static str>,
    /// Of a token, in blocks.
    pub per_token: f64,
    /// Of a sequence, beside its blocks.
    pub per_slot: usize,
}

/// Where everything of a model would be.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The parts of the model.
    pub parts: BTreeMap<Part, Held>,
    /// Tensors that nothing uses.
    pub unused: Held,
    /// What each rank holds.
    pub ranks: Vec<Share>,
    /// KV memory in each layout.
    pub kv: Vec<KvBytes>,
}

impl Placement {
    /// Places a model.
    pub fn new(survey: &Survey, wish: Wish) -> Placement {
        let mut placement = Placement {
            parts: BTreeMap::new(),
            unused: Held::default(),
            ranks: vec![Share::default(); wish.ranks],
            kv: kv(&survey.facts),
        };
        let mut experts: BTreeMap<&str, usize> = BTreeMap::new();
        for (layer, index) in survey.tensors.keys().filter_map(|name| expert_of(name)) {
            let count = experts.entry(layer).or_default();
            *count = (*count).max(index.map_or(0, |index| index + 1));
        }
        for (name, tensor) in &survey.tensors {
            if !tensor.used {
                placement.unused.add(tensor);
                continue;
            }
            let part = Part::of(name);
            placement.parts.entry(part).or_default().add(tensor);
            match expert_of(name) {
                Some((layer, Some(index))) => {
                    // Expert e of n goes to the rank whose n/ranks it is among.
                    let owner = ((index + 1) * wish.ranks - 1) / experts[layer];
                    placement.ranks[owner].experts += tensor.bytes;
                }
                Some((_, None)) => placement.spread(tensor, Spread::Split, |share| &mut share.experts),
                None if part == Part::Tables => {
                    placement.spread(tensor, wish.tables, |share| &mut share.tables)
                }
                None => placement.spread(tensor, wish.rest, |share| &mut share.rest),
            }
        }
        placement
    }

    /// Adds a tensor to the shares of the ranks.
    fn spread(&mut self, tensor: &TensorFacts, spread: Spread, of: fn(&mut Share) -> &mut u64) {
        let ranks = self.ranks.len() as u64;
        let rows = tensor.shape.first().copied().unwrap_or(1).max(1) as u64;
        // Vectors are small, and all of them is needed everywhere.
        let whole = spread == Spread::Copied || tensor.shape.len() < 2;
        for (rank, share) in (0..).zip(&mut self.ranks) {
            *of(share) += match spread {
                Spread::InFile => 0,
                _ if whole => tensor.bytes,
                _ => tensor.bytes / rows * (rows * (rank + 1) / ranks - rows * rank / ranks),
            };
        }
    }

    /// Bytes that the fullest rank holds.
    pub fn most(&self) -> u64 {
        self.ranks.iter().map(Share::total).max().unwrap_or(0)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let held = |held: &Held| json!({ "tensors": held.tensors, "bytes": held.bytes });
        let parts: serde_json::Map<String, Value> =
            self.parts.iter().map(|(part, of)| (part.name().to_owned(), held(of))).collect();
        let rank = |(rank, share): (usize, &Share)| {
            let Share { experts, tables, rest } = share;
            json!({ "rank": rank, "experts": experts, "tables": tables, "rest": rest, "total": share.total() })
        };
        json!({
            "parts": parts,
            "unused": held(&self.unused),
            "ranks": self.ranks.iter().enumerate().map(rank).collect::<Vec<_>>(),
            "kv": self.kv.iter().map(KvBytes::json).collect::<Vec<_>>(),
        })
    }
}

impl Held {
    fn add(&mut self, tensor: &TensorFacts) {
        self.tensors += 1;
        self.bytes += tensor.bytes;
    }
}

impl KvBytes {
    /// Those of a layout of the model.
    pub fn of(facts: &Facts, layout: &KvLayout) -> Self {
        let format = match layout.format {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Q8 => "q8",
            KvFormat::Fp4 => "fp4",
        };
        let kept = if layout.rings == Rings::NONE { "blocks" } else { "state" };
        let windows = (facts.rings != Rings::NONE).then_some(kept);
        let per_token = layout.bytes_per_block() as f64 / layout.block_size as f64;
        Self { format, windows, per_token, per_slot: layout.bytes_per_slot() }
    }

    /// For people; `context` is how long a sequence may be.
    pub fn line(&self, context: u32) -> String {
        let kept = if self.windows == Some("state") { ", windows in the state" } else { "" };
        format!(
            "KV memory in {}{kept}: {:.0} bytes a token, {} a sequence of {context} tokens, {} of state a sequence",
            self.format,
            self.per_token,
            amount((self.per_token * f64::from(context)) as u64),
            amount(self.per_slot as u64)
        )
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "format": self.format, "windows": self.windows,
            "bytes_per_token": self.per_token, "bytes_per_slot": self.per_slot,
        })
    }
}

/// Bytes for people.
pub fn amount(bytes: u64) -> String {
    match bytes {
        0..100_000 => format!("{bytes} B"),
        100_000..100_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// KV memory in each layout.
fn kv(facts: &Facts) -> Vec<KvBytes> {
    let blocks = facts.kv_layout(BLOCK);
    let state = (facts.rings != Rings::NONE).then(|| blocks.with_rings(facts.rings));
    let four_bits = facts.compressed.is_some().then_some(KvFormat::Fp4);
    let formats = [KvFormat::F32, KvFormat::F16, KvFormat::Q8].into_iter().chain(four_bits);
    let layouts = [Some(blocks), state].into_iter().flatten();
    let all = layouts.flat_map(|layout| formats.clone().map(move |format| KvLayout { format, ..layout }));
    all.map(|layout| KvBytes::of(facts, &layout)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A survey of a tiny model in which tensors are replaced.
    fn survey(tensors: &[(&str, &[usize], bool)]) -> Survey {
        let tiny = "kernels/tests/oracle/tiny-qwen3-moe";
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(tiny);
        let tensor = |&(name, shape, used): &(&str, &[usize], bool)| {
            let bytes = shape.iter().product::<usize>() as u64;
            (name.to_owned(), TensorFacts { format: "U8".to_owned(), shape: shape.to_vec(), bytes, used })
        };
        let facts = millstream_kernels::survey(&folder).expect("a model").facts;
        Survey { facts, tensors: tensors.iter().map(tensor).collect() }
    }

    #[test]
    fn every_byte_is_where_it_should_be() {
        let model = survey(&[
            ("layers.0.ffn.experts.0.w1.weight", &[4, 10], true),
            ("layers.0.ffn.experts.1.w1.weight", &[4, 10], true),
            ("layers.0.ffn.experts.2.w1.weight", &[4, 10], true),
            ("model.layers.1.mlp.experts.gate_up_proj", &[3, 7], true),
            ("layers.1.engram.embed.weight", &[5, 2], true),
            ("layers.1.attn.wq_a.weight", &[6, 3], true),
            ("layers.1.attn_norm.weight", &[3], true),
            ("vision.norm.weight", &[9], false),
        ]);
        let placed = |tables, rest| Placement::new(&model, Wish { ranks: 2, tables, rest });
        let copied = placed(Spread::InFile, Spread::Copied);
        let share = |experts, tables, rest| Share { experts, tables, rest };
        assert_eq!(copied.ranks, [share(40 + 7, 0, 21), share(80 + 14, 0, 21)]);
        let split = placed(Spread::Split, Spread::Split);
        assert_eq!(split.ranks, [share(47, 4, 9 + 3), share(94, 6, 9 + 3)]);
        assert_eq!(placed(Spread::Copied, Spread::Copied).most(), 94 + 10 + 21);
        assert_eq!(
            (split.unused, split.parts[&Part::Experts]),
            (Held { tensors: 1, bytes: 9 }, Held { tensors: 4, bytes: 141 })
        );
        assert_eq!(split.json()["ranks"][1]["total"], 94 + 6 + 12);
    }

    #[test]
    fn experts_are_spread_evenly_over_any_number_of_ranks() {
        let names: Vec<String> = (0..12).map(|expert| format!("l.experts.{expert}.w")).collect();
        let tensors: Vec<(&str, &[usize], bool)> =
            names.iter().map(|name| (name.as_str(), &[1, 1][..], true)).collect();
        let model = survey(&tensors);
        for ranks in 1..40 {
            let wish = Wish { ranks, tables: Spread::Copied, rest: Spread::Copied };
            let shares: Vec<u64> =
                Placement::new(&model, wish).ranks.iter().map(|share| share.experts).collect();
            assert_eq!(shares.iter().sum::<u64>(), 12, "{ranks} ranks");
            let most = shares.iter().max().expect("a rank");
            assert!(*most == 12_u64.div_ceil(ranks as u64), "{ranks} ranks: {shares:?}");
        }
    }

    /// Gemma-3-270m: 3 layers of 18 see everything, the others 512 positions.
    #[test]
    fn windows_in_the_state_are_said_beside_windows_in_blocks() {
        let facts = Facts {
            layers: 18,
            kv_heads: 1,
            key_dim: 256,
            value_dim: 256,
            rings: Rings { layers: 15, window: 512 },
            ..survey(&[]).facts
        };
        let said: Vec<String> = kv(&facts).iter().map(|kv| kv.line(32_768)).collect();
        assert_eq!(said.len(), 6);
        let blocks = "KV memory in f32: 36864 bytes a token, 1.2 GB a sequence of 32768 tokens, 0 B of state a sequence";
        let state = "KV memory in f32, windows in the state: 6144 bytes a token, 0.2 GB a sequence of 32768 tokens, 21.6 MB of state a sequence";
        assert_eq!([&said[0], &said[3]], [blocks, state]);
        assert_eq!(kv(&facts)[5].json()["windows"], "state");
        assert_eq!(kv(&survey(&[]).facts)[0].json()["windows"], Value::Null, "nothing to choose");
    }
}
