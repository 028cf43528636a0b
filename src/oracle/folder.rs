//! Reads a folder of vectors: `vectors.json`, `vectors.safetensors` and `tokenizer_vectors.json`, or the form with
//! `chats` that comes without tensors. The wire types stay in here; what leaves is a [`Vectors`].

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::judge::Tolerance;
use super::words::{Sample, Words};

/// The largest file that is read.
const FILE_LEN_MAX: u64 = 1 << 30;

/// Everything a folder says.
#[derive(Debug)]
pub struct Vectors {
    /// The model's name, for people.
    pub model: String,
    /// Prompts with their numbers.
    pub cases: Vec<Case>,
    /// Texts with their ids.
    pub words: Words,
    /// How near is near enough.
    pub tolerance: Tolerance,
}

/// One prompt and what a model must say to it.
#[derive(Debug, Default)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Best tokens and their logits, by position.
    pub top: BTreeMap<u32, Top>,
    /// All logits, by position; `[vocabulary]` each.
    pub full: BTreeMap<u32, Vec<f32>>,
    /// Best token, its logit and the logsumexp at every position of the prompt; empty when the folder has none.
    pub rows: Vec<RowFacts>,
    /// The greedy continuation, and by how much each token won.
    pub greedy: Vec<(u32, f32)>,
    /// Logits after the last greedy token.
    pub last: Option<Vec<f32>>,
}

/// What is known of one position.
#[derive(Clone, Copy, Debug)]
pub struct RowFacts {
    /// The best token.
    pub argmax: u32,
    /// Its logit.
    pub max: f32,
    /// Of all logits.
    pub logsumexp: f32,
}

/// The best tokens at one position.
#[derive(Debug)]
pub struct Top {
    /// Ids and logits, best first.
    pub best: Vec<(u32, f32)>,
    /// Of all logits, where the folder says it.
    pub logsumexp: Option<f32>,
}

impl Case {
    /// Tokens of the answer that the folder knows.
    pub fn answer_len(&self) -> usize {
        self.greedy.len()
    }

    /// Position of the last greedy token.
    pub fn last_position(&self) -> u32 {
        (self.ids.len() + self.greedy.len()).saturating_sub(1) as u32
    }

    /// Positions whose logits are compared, ascending.
    pub fn observed(&self) -> Vec<u32> {
        let mut positions: Vec<u32> = self.top.keys().chain(self.full.keys()).copied().collect();
        positions.extend(0..self.rows.len() as u32);
        positions.extend(self.last.iter().map(|_| self.last_position()));
        positions.sort_unstable();
        positions.dedup();
        positions
    }
}

#[derive(Deserialize)]
struct FileJson {
    model: String,
    #[serde(default)]
    prompts: Vec<CaseJson>,
    #[serde(default)]
    chats: Vec<CaseJson>,
    #[serde(default)]
    tokenizer_samples: Vec<SampleJson>,
}

#[derive(Deserialize)]
struct CaseJson {
    name: String,
    input_ids: Vec<u32>,
    top20: Vec<TopJson>,
    #[serde(default)]
    full_logits_at: Vec<u32>,
    greedy: GreedyJson,
}

#[derive(Deserialize)]
struct TopJson {
    pos: u32,
    ids: Vec<u32>,
    values: Vec<f32>,
    logsumexp: Option<f32>,
}

#[derive(Deserialize)]
struct GreedyJson {
    ids: Vec<u32>,
    margin: Vec<f32>,
}

#[derive(Deserialize)]
struct WordsJson {
    samples: Vec<SampleJson>,
    chat: Option<ChatJson>,
}

#[derive(Deserialize)]
struct SampleJson {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct ChatJson {
    messages: Vec<MessageJson>,
    rendered: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct MessageJson {
    role: String,
    content: String,
}

/// Reads a folder.
///
/// # Errors
/// A file is missing, unreadable or not of the form; the message names it.
pub fn read(folder: &Path) -> anyhow::Result<Vectors> {
    let file: FileJson = json(&folder.join("vectors.json"))?;
    let numbers = folder.join("vectors.safetensors");
    // Folders with chats come without tensors; a folder with prompts that lacks them has lost most of its evidence.
    let bytes = if file.prompts.is_empty() { None } else { Some(bounded(&numbers)?) };
    let numbers = bytes
        .as_deref()
        .map(SafeTensors::deserialize)
        .transpose()
        .context("vectors.safetensors is damaged")?;
    let tolerance = Tolerance::of(&file.model, !file.chats.is_empty());
    let cases = file.prompts.into_iter().chain(file.chats).map(|case| case.with(numbers.as_ref()));
    let cases = cases.collect::<anyhow::Result<Vec<Case>>>().context("vectors.safetensors")?;
    let bare = cases.iter().find(|case| case.top.is_empty() || case.greedy.is_empty());
    if let Some(case) = bare {
        anyhow::bail!("{}: vectors.json says nothing of the prompt {}", folder.display(), case.name);
    }
    anyhow::ensure!(!cases.is_empty(), "{}: vectors.json holds no prompts", folder.display());
    let words = folder.join("tokenizer_vectors.json");
    let words =
        if words.exists() { json::<WordsJson>(&words)?.words() } else { samples(file.tokenizer_samples) };
    Ok(Vectors { model: file.model, cases, words, tolerance })
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> anyhow::Result<T> {
    serde_json::from_slice(&bounded(path)?)
        .with_context(|| format!("{} is not of the form expected", path.display()))
}

fn bounded(path: &Path) -> anyhow::Result<Vec<u8>> {
    let length = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    anyhow::ensure!(length <= FILE_LEN_MAX, "{} is larger than {FILE_LEN_MAX} bytes", path.display());
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

impl CaseJson {
    fn with(self, numbers: Option<&SafeTensors<'_>>) -> anyhow::Result<Case> {
        let mut case = Case {
            top: self.top20.into_iter().map(|top| (top.pos, top.facts())).collect(),
            greedy: self.greedy.ids.into_iter().zip(self.greedy.margin).collect(),
            name: self.name,
            ids: self.input_ids,
            ..Case::default()
        };
        let Some(numbers) = numbers else { return Ok(case) };
        for position in self.full_logits_at {
            case.full.insert(position, floats(numbers, &format!("{}.logits.{position}", case.name))?);
        }
        let argmax = whole_numbers(numbers, &format!("{}.argmax", case.name))?;
        let max = floats(numbers, &format!("{}.max", case.name))?;
        let logsumexp = floats(numbers, &format!("{}.logsumexp", case.name))?;
        case.rows = argmax
            .into_iter()
            .zip(max)
            .zip(logsumexp)
            .map(|((argmax, max), logsumexp)| RowFacts { argmax, max, logsumexp })
            .collect();
        case.last = Some(floats(numbers, &format!("{}.greedy_final_logits", case.name))?);
        Ok(case)
    }
}

impl TopJson {
    fn facts(self) -> Top {
        Top { best: self.ids.into_iter().zip(self.values).collect(), logsumexp: self.logsumexp }
    }
}

impl WordsJson {
    fn words(self) -> Words {
        let mut words = samples(self.samples);
        words.chat = self.chat.map(|chat| super::words::Chat {
            messages: chat.messages.into_iter().map(|message| (message.role, message.content)).collect(),
            rendered: chat.rendered,
            ids: chat.ids,
        });
        words
    }
}

fn samples(samples: Vec<SampleJson>) -> Words {
    let sample = |sample: SampleJson| Sample { text: sample.text, ids: sample.ids, decoded: sample.decoded };
    Words { samples: samples.into_iter().map(sample).collect(), chat: None }
}

fn floats(numbers: &SafeTensors<'_>, name: &str) -> anyhow::Result<Vec<f32>> {
    let tensor = numbers.tensor(name).with_context(|| name.to_owned())?;
    anyhow::ensure!(tensor.dtype() == Dtype::F32, "{name} is not float32");
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn whole_numbers(numbers: &SafeTensors<'_>, name: &str) -> anyhow::Result<Vec<u32>> {
    let tensor = numbers.tensor(name).with_context(|| name.to_owned())?;
    let data = tensor.data();
    if tensor.dtype() == Dtype::I64 {
        return Ok(data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as u32).collect());
    }
    anyhow::ensure!(tensor.dtype() == Dtype::I32, "{name} holds no whole numbers");
    Ok(data.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
}
