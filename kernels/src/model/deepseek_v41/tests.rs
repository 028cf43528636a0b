//! What a step makes on its way, against what the oracle notes of it; and the two ways to leave out what need not be
//! computed.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value as Json;

use super::super::source::{Naming, Source, Tokens};
use super::super::{ExpertFacts, Local, Model, Pixels, Row, Scratch, Span, Want, Windows};
use super::DeepSeekV41;
use crate::config::settings::Settings;
use crate::cpu::CpuBackend;
use crate::kv::{KvMemory, Rings};
use crate::weights::{Weights, safetensors as files};

/// What is noted of a step.
#[derive(Default)]
pub(in crate::model) struct Trace {
    /// Streams after each part of a layer.
    pub streams: Vec<Vec<f32>>,
    /// Length of each stream of each token after each layer.
    pub norms: Vec<Vec<f32>>,
    /// Experts of each token, by layer.
    pub experts: Vec<Vec<(u32, u32, f32)>>,
    /// Entries of each token, by chooser.
    pub chosen: Vec<Vec<Vec<u32>>>,
    /// Rows that were looked up, by layer that does.
    pub engram_rows: Vec<Vec<usize>>,
}

impl Trace {
    /// Notes what is left of a layer.
    pub fn note_layer(scratch: &mut Scratch, streams: usize, hidden: usize) {
        let count = scratch.tokens.len() * streams;
        let Some(trace) = &mut scratch.streams.trace else { return };
        let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
        trace.norms.push(scratch.x[..count * hidden].chunks_exact(hidden).map(norm).collect());
        trace.experts.push(scratch.mixture.routing.chosen().to_vec());
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/tiny-deepseek-v41")
}

fn json(path: &Path) -> Json {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

fn model(window: &str) -> DeepSeekV41 {
    let path = folder().join(format!("ckpt-{window}"));
    let config = json(&path.join("config.json"));
    let settings = Settings::json(&path.join("config.json"), config.as_object().expect("an object"));
    let source = Source {
        weights: Weights::new(&path, files::open(&path).expect("weights"), None),
        naming: Naming::Folder,
        root: "",
        tokens: Box::new(|| Ok(Tokens { bos: None, eos: Vec::new() })),
        norms_add_one: false,
        windows: Windows::Blocks,
        rings: Rings::NONE,
        experts: ExpertFacts::default(),
    };
    super::open(source, &settings).expect("a model")
}

struct Stored {
    json: Json,
    bytes: Vec<u8>,
}

impl Stored {
    fn of(window: &str) -> Stored {
        let path = folder().join(format!("vectors-{window}"));
        let bytes = std::fs::read(path.with_extension("safetensors")).expect("vectors");
        Stored { json: json(&path.with_extension("json")), bytes }
    }

    fn prompt(&self, name: &str) -> Vec<u32> {
        ids(&self.json["prompts"][name]["tokens"])
    }

    fn data(&self, name: &str) -> Vec<u8> {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("tensors");
        tensors.tensor(name).expect(name).data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.data(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        self.data(name).as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }
}

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// A model with memory for one sequence.
struct Run {
    model: DeepSeekV41,
    kv: KvMemory,
    scratch: Scratch,
    backend: CpuBackend,
}

impl Run {
    fn new(model: DeepSeekV41) -> Run {
        let kv = KvMemory::new(model.facts().kv_layout(16), 64).with_slots(1);
        Run { model, kv, scratch: Scratch::new(), backend: CpuBackend::new(2, &[]) }
    }

    /// One step of a sequence whose blocks are in order.
    fn step(
        &mut self,
        tokens: &[u32],
        (start, end): (usize, usize),
        decoder_from: Option<u32>,
        logits: Want<'_>,
    ) {
        let blocks: Vec<u32> = (0..64).collect();
        let before = &tokens[start.saturating_sub(3)..start];
        let local = Local { before, decoder_from, ..Local::default() };
        let (tokens, start) = (&tokens[start..end], start as u32);
        let row = Row { tokens, start, blocks: &blocks, logits, local, ..Row::default() };
        self.model.forward(&[row], &mut self.kv, &mut self.scratch, &mut self.backend).expect("a step");
    }
}

/// Largest difference, by the largest value.
fn relative(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

#[test]
fn logits_are_those_of_the_oracle() {
    for window in ["w16", "w128"] {
        let stored = Stored::of(window);
        let mut run = Run::new(model(window));
        for (name, prompt) in stored.json["prompts"].as_object().expect("prompts") {
            let tokens = ids(&prompt["tokens"]);
            let places = ids(&prompt["full_logit_positions"]);
            run.step(&tokens, (0, tokens.len()), None, Want::At(&places));
            let want = stored.floats(&format!("p{name}.logits"));
            let off = run.scratch.logits().iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            println!("{window} {name}: {off:e}");
            assert!(off < 1e-3, "{window} {name}: {off:e}");
        }
    }
}

#[test]
fn what_happens_on_the_way_is_as_the_oracle_notes_it() {
    for window in ["w16", "w128"] {
        let stored = Stored::of(window);
        let mut run = Run::new(model(window));
        let tokens = stored.prompt("17");
        run.scratch.streams.trace = Some(Trace::default());
        run.step(&tokens, (0, 17), None, Want::Nothing);
        let trace = run.scratch.streams.trace.take().expect("a trace");
        let off = relative(&trace.streams.concat(), &stored.floats("p17.streams_after_sublayer"));
        assert!(off < 1e-4, "{window}: streams differ by {off:e}");
        let tokens = stored.prompt("300");
        run.scratch.streams.trace = Some(Trace::default());
        run.step(&tokens, (0, 300), None, Want::Nothing);
        let trace = run.scratch.streams.trace.take().expect("a trace");
        let off = relative(&trace.norms.concat(), &stored.floats("p300.stream_norms"));
        assert!(off < 1e-4, "{window}: norms differ by {off:e}");
        let features = &run.scratch.streams.features;
        let off = relative(&features[299 * 192..][..192], &stored.floats("p300.draft_features_last"));
        assert!(off < 1e-4, "{window}: features differ by {off:e}");
        let rows: Vec<i32> = run.scratch.streams.ngrams.iter().map(|&class| class as i32).collect();
        assert_eq!(rows, stored.ints("p300.ngram_ids"));
        for (layer, rows) in [1, 3].into_iter().zip(&trace.engram_rows) {
            let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
            assert_eq!(rows, stored.ints(&format!("p300.engram_rows.L{layer}")), "{window} layer {layer}");
        }
        check_choices(window, &stored, &trace);
    }
}

/// Entries and experts, as sets.
fn check_choices(window: &str, stored: &Stored, trace: &Trace) {
    for (layer, chosen) in [2, 4, 6].into_iter().zip(&trace.chosen) {
        let want = stored.ints(&format!("p300.index.L{layer}"));
        for (token, (chosen, want)) in chosen.iter().zip(want.chunks_exact(want.len() / 300)).enumerate() {
            let want: Vec<u32> =
                want.iter().filter(|&&entry| entry >= 0).map(|&entry| entry as u32).collect();
            assert_eq!(chosen, &want, "{window} layer {layer} token {token}");
        }
    }
    let (experts, weights) = (stored.ints("p300.router_idx"), stored.floats("p300.router_weight"));
    for (layer, got) in trace.experts.iter().enumerate() {
        let mut want: Vec<(u32, u32, f32)> = (0..900)
            .map(|i| (experts[layer * 900 + i] as u32, i as u32 / 3, weights[layer * 900 + i]))
            .collect();
        want.sort_by_key(|&(expert, token, _)| (expert, token));
        let who = |list: &[(u32, u32, f32)]| list.iter().map(|&(e, t, _)| (e, t)).collect::<Vec<_>>();
        assert_eq!(who(got), who(&want), "{window} layer {layer}");
        let off = got.iter().zip(&want).map(|(a, b)| (a.2 - b.2).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "{window} layer {layer}: weights differ by {off:e}");
    }
}

#[test]
fn frequencies_are_those_of_the_oracle() {
    for window in ["w16", "w128"] {
        let (stored, model) = (Stored::of(window), model(window));
        assert_eq!(model.frequencies[0], stored.floats("unit.inv_freq_window"));
        assert_eq!(model.frequencies[1], stored.floats("unit.inv_freq_compressed"));
    }
}

#[test]
fn what_is_left_out_has_no_part_in_what_is_kept() {
    for window in ["w16", "w128"] {
        let tokens = Stored::of(window).prompt("300");
        let keep = model(window).facts().state.and_then(|state| state.decoder_keep).expect("a decoder");
        let (from, logits) = (Some(300 - keep), (300 - keep..300).collect::<Vec<_>>());
        let mut masked = model(window);
        masked.masks = true;
        let mut runs = [Run::new(model(window)), Run::new(masked)];
        let bits = |run: &mut Run, chunk: usize| {
            let mut bits = Vec::new();
            for start in (0..300).step_by(chunk) {
                let end = (start + chunk).min(300);
                let places: Vec<u32> = logits
                    .iter()
                    .filter(|&&at| (start..end).contains(&(at as usize)))
                    .map(|&at| at - start as u32)
                    .collect();
                run.step(&tokens, (start, end), from, Want::At(&places));
                bits.extend(run.scratch.logits().iter().map(|x| x.to_bits()));
            }
            bits
        };
        let whole = bits(&mut runs[0], 300);
        assert_eq!(whole.len(), keep as usize * 512);
        assert!(whole == bits(&mut runs[1], 300), "{window}: masked, whole");
        assert!(whole == bits(&mut runs[0], 70), "{window}: left out, in chunks");
        assert!(whole == bits(&mut runs[1], 70), "{window}: masked, in chunks");
    }
}

#[test]
fn an_image_is_read_as_the_oracle_reads_it() {
    for window in ["w16", "w128"] {
        let (stored, mut run) = (Stored::of(window), Run::new(model(window)));
        let said = &stored.json["vision"];
        let (tokens, places, range) =
            (ids(&said["tokens"]), ids(&said["logit_positions"]), ids(&said["span"]));
        let (first, end) = (range[0] as usize, range[1] as usize);
        let eyes = run.model.vision().expect("eyes");
        let plan = eyes.plan(70, 84).expect("an image");
        let image = Pixels { width: 70, height: 84, rgb: &stored.data("vision.rgb") };
        let embeddings = eyes.encode(&plan, image, &mut run.backend).expect("an image");
        assert_eq!((plan.tokens, eyes.width()), (end - first, 64));
        // Whole, and cut inside the image.
        let mut bits = Vec::new();
        for cuts in [vec![0, tokens.len()], vec![0, 9, 13, 16, 30, tokens.len()]] {
            run.scratch.streams.trace = Some(Trace::default());
            let mut logits = Vec::new();
            for (start, to) in cuts.iter().zip(&cuts[1..]).map(|(&a, &b)| (a, b)) {
                let (from, until) = (first.max(start), end.min(to));
                let part = (from < until).then(|| &embeddings[(from - first) * 64..(until - first) * 64]);
                let spans: Vec<Span<'_>> = part
                    .map(|embeddings| Span { first: (from - start) as u32, embeddings, width: 64 })
                    .into_iter()
                    .collect();
                let own: Vec<u32> = places
                    .iter()
                    .filter(|&&at| (start..to).contains(&(at as usize)))
                    .map(|&at| at - start as u32)
                    .collect();
                let local = Local { before: &tokens[start.saturating_sub(3)..start], ..Local::default() };
                let row = Row {
                    tokens: &tokens[start..to],
                    start: start as u32,
                    blocks: &[0, 1, 2],
                    logits: Want::At(&own),
                    local,
                    spans: &spans,
                    ..Row::default()
                };
                run.model.forward(&[row], &mut run.kv, &mut run.scratch, &mut run.backend).expect("a step");
                logits.extend_from_slice(run.scratch.logits());
            }
            let want = stored.floats("vision.logits");
            let off = logits.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            println!("{window}, {} steps: {off:e}", cuts.len() - 1);
            assert!(off < 1e-3 && logits.len() == want.len(), "{window}: logits differ by {off:e}");
            bits.push(logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>());
            if cuts.len() == 2 {
                check_image(window, &stored, &run.scratch);
            }
        }
        assert!(bits[0] == bits[1], "{window}: an image in chunks");
    }
}

/// Experts and n-grams of the prompt with an image.
fn check_image(window: &str, stored: &Stored, scratch: &Scratch) {
    let ngrams: Vec<i32> = scratch.streams.ngrams.iter().map(|&class| class as i32).collect();
    assert_eq!(ngrams, stored.ints("vision.ngram_ids"), "{window}");
    let (experts, trace) =
        (stored.ints("vision.router_idx"), scratch.streams.trace.as_ref().expect("a trace"));
    let each = experts.len() / trace.experts.len();
    for (layer, (got, want)) in trace.experts.iter().zip(experts.chunks_exact(each)).enumerate() {
        let mut want: Vec<(u32, u32)> =
            want.iter().enumerate().map(|(i, &expert)| (expert as u32, i as u32 / 3)).collect();
        want.sort_unstable();
        let got: Vec<(u32, u32)> = got.iter().map(|&(expert, token, _)| (expert, token)).collect();
        assert_eq!(got, want, "{window} layer {layer}");
    }
}
