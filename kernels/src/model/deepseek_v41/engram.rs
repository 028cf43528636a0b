//! Engram: what a model looks up instead of computing. The newest tokens name rows of large tables, by hashes of their
//! classes; which rows depends on token ids alone, so they can be fetched before a step begins.
//!
//! Nothing of this is in a checkpoint but the rows themselves: classes follow from the tokenizer, multipliers and table
//! sizes from the settings ([`classes`], [`draws`], [`primes`]).

mod classes;
mod draws;
mod primes;
mod rows;

pub(in crate::model) use rows::EngramRows;

use crate::config::settings::Settings;
use crate::error::Error;
use crate::files;

/// Bound of what settings may say.
const COUNT_MAX: usize = 1 << 12;
/// Bound of classes.
const CLASSES_MAX: usize = 1 << 24;
/// Bound of the rows of one head.
const TABLE_MAX: usize = 1 << 40;

/// What the settings say of it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) struct EngramShape {
    /// The layers that have it, ascending.
    pub layers: Vec<usize>,
    /// Rows of the table of each.
    pub rows: Vec<usize>,
    /// Tokens of the longest n-gram; the shortest has two.
    pub longest: usize,
    /// Heads of each n-gram.
    pub heads: usize,
    /// Values of a row.
    pub width: usize,
    /// Rows of a head are the first primes from here on.
    pub rows_per_head: usize,
    /// The token whose class stands before the start of a text, and in place of images.
    pub pad: u32,
    /// Classes of tokens.
    pub classes: usize,
}

impl EngramShape {
    /// From the settings of the text model; none if they name no layers.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn from_settings(settings: &Settings<'_>) -> Result<Option<EngramShape>, Error> {
        let layers = counts(settings, "engram_layer_ids", COUNT_MAX)?;
        if layers.is_empty() {
            return Ok(None);
        }
        if !layers.is_sorted_by(|a, b| a < b) {
            return Err(settings.wrong("engram_layer_ids", format!("{layers:?} are not ascending")));
        }
        let longest = settings.count("engram_max_ngram_size", COUNT_MAX)?;
        if longest < 2 {
            return Err(settings.wrong("engram_max_ngram_size", "is less than two tokens".to_owned()));
        }
        let pad = settings.token("engram_pad_token_id")?;
        let pad = pad.ok_or_else(|| settings.wrong("engram_pad_token_id", "is missing".to_owned()))?;
        Ok(Some(EngramShape {
            rows: counts(settings, "engram_num_embeddings", TABLE_MAX)?,
            heads: settings.count("engram_n_heads", COUNT_MAX)?,
            width: settings.count("engram_head_dim", COUNT_MAX)?,
            rows_per_head: settings.count("engram_vocab_size", TABLE_MAX)?,
            classes: settings.count("engram_compressed_vocab_size", CLASSES_MAX)?,
            layers,
            longest,
            pad,
        }))
    }

    /// Rows that a token names in a layer's table.
    pub fn rows_per_token(&self) -> usize {
        (self.longest - 1) * self.heads
    }
}

/// A list of whole numbers up to `max`.
fn counts(settings: &Settings<'_>, key: &str, max: usize) -> Result<Vec<usize>, Error> {
    let fits = |number: &f64| number.fract() == 0.0 && (0.0..=max as f64).contains(number);
    let numbers = settings.numbers(key)?;
    match numbers.iter().find(|number| !fits(number)) {
        Some(number) => Err(settings.wrong(key, format!("{number} is no whole number from 0 to {max}"))),
        None => Ok(numbers.into_iter().map(|number| number as usize).collect()),
    }
}

/// How tokens become numbers of rows.
#[derive(Clone, Debug)]
pub(in crate::model) struct Engram {
    pub shape: EngramShape,
    /// Class of each token id.
    classes: Vec<u32>,
    /// Hashes of each layer of [`EngramShape::layers`].
    hashes: Vec<Hash>,
}

/// The hashes of a layer.
#[derive(Clone, Debug)]
struct Hash {
    /// One for each token of the longest n-gram, newest first.
    multipliers: Vec<u64>,
    /// Rows of each head, and those of all heads before it: by length of n-gram, then by head.
    heads: Vec<(u64, u64)>,
}

impl Engram {
    /// From the settings of the text model and the `tokenizer.json` beside them; none if the settings name no layers.
    ///
    /// # Errors
    /// [`Error::Open`]; [`Error::Malformed`] if the tokenizer cannot be read; [`Error::Config`] if the settings do not go
    /// with it, or with each other.
    pub fn open(settings: &Settings<'_>, vocab: usize) -> Result<Option<Engram>, Error> {
        let Some(shape) = EngramShape::from_settings(settings)? else { return Ok(None) };
        let path = settings.beside("tokenizer.json");
        let (mut classes, count) = classes::of(&files::text(&path)?).map_err(|problem| Error::Malformed {
            path: path.clone(),
            what: "tokenizer".to_owned(),
            at: 0,
            problem,
        })?;
        if count != shape.classes {
            let problem = format!("is {}, the tokenizer has {count} classes", shape.classes);
            return Err(settings.wrong("engram_compressed_vocab_size", problem));
        }
        let Some(&pad) = classes.get(shape.pad as usize) else {
            return Err(settings.wrong("engram_pad_token_id", format!("{} is no token", shape.pad)));
        };
        // Ids that no text has.
        classes.resize(classes.len().max(vocab), pad);
        Engram::new(shape, classes).check(settings).map(Some)
    }

    /// The same without a tokenizer: its shape is right, and it knows no tokens.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn outline(settings: &Settings<'_>) -> Result<Option<Engram>, Error> {
        let Some(shape) = EngramShape::from_settings(settings)? else { return Ok(None) };
        Engram::new(shape, Vec::new()).check(settings).map(Some)
    }

    /// Refuses settings whose tables have other sizes than their heads.
    fn check(self, settings: &Settings<'_>) -> Result<Engram, Error> {
        let rows: Vec<usize> = self.hashes.iter().map(Hash::rows).collect();
        if rows == self.shape.rows {
            return Ok(self);
        }
        let problem = format!("is {:?}, the heads have {rows:?} rows", self.shape.rows);
        Err(settings.wrong("engram_num_embeddings", problem))
    }

    /// The same from known classes.
    fn new(shape: EngramShape, classes: Vec<u32>) -> Engram {
        let per_layer = shape.rows_per_token();
        // No two heads of the model have the same number of rows: together they take consecutive primes.
        let primes = primes::primes_from(shape.rows_per_head as u64, per_layer * shape.layers.len());
        let hash = |(&layer, primes): (&usize, &[u64])| {
            let multipliers = draws::multipliers(layer, shape.classes, shape.longest);
            let before = primes.iter().scan(0, |sum, prime| Some(std::mem::replace(sum, *sum + prime)));
            Hash { multipliers, heads: primes.iter().copied().zip(before).collect() }
        };
        let hashes = shape.layers.iter().zip(primes.chunks_exact(per_layer)).map(hash).collect();
        Engram { shape, classes, hashes }
    }

    /// Which table a layer has, if it has one.
    pub fn table_of(&self, layer: usize) -> Option<usize> {
        self.shape.layers.iter().position(|&with| with == layer)
    }

    /// Classes of each token and of those before it, newest first: `[tokens, longest]` in `out`. `before` holds the tokens
    /// in front of the first one, in their order, as many as there are or as an n-gram needs; `image` is the token that
    /// stands for a piece of an image. What lies before the text, and an image with all before it, has the class of the
    /// padding token.
    pub fn ngrams(&self, before: &[u32], tokens: &[u32], image: Option<u32>, out: &mut Vec<u32>) {
        let pad = self.classes[self.shape.pad as usize];
        out.clear();
        for at in 0..tokens.len() {
            let back = tokens[..=at].iter().rev().chain(before.iter().rev());
            let seen =
                back.take_while(|&&token| Some(token) != image).map(|&token| self.classes[token as usize]);
            out.extend(seen.chain(std::iter::repeat(pad)).take(self.shape.longest));
        }
    }

    /// Numbers of the rows in the layer's table that n-grams name: `[tokens, rows_per_token]` in `out`, by length of
    /// n-gram, then by head. Panics if the layer has no table.
    pub fn rows(&self, layer: usize, ngrams: &[u32], out: &mut Vec<usize>) {
        let table = self.table_of(layer).expect("a layer with a table");
        let Hash { multipliers, heads } = &self.hashes[table];
        out.clear();
        for ngram in ngrams.chunks_exact(self.shape.longest) {
            let mut products = ngram.iter().zip(multipliers).map(|(&class, by)| u64::from(class) * by);
            let mut hash = products.next().unwrap_or_default();
            for (product, heads) in products.zip(heads.chunks_exact(self.shape.heads)) {
                hash ^= product;
                out.extend(heads.iter().map(|(rows, before)| (hash % rows + before) as usize));
            }
        }
    }
}

impl Hash {
    /// Rows of the table.
    fn rows(&self) -> usize {
        self.heads.last().map_or(0, |(rows, before)| rows + before) as usize
    }
}

#[cfg(test)]
mod tests;
