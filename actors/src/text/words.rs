//! Ids of tokens by their texts: one piece of memory and a table of numbers, since a vocabulary of a quarter of a million
//! tokens is read while somebody waits for a first answer, and every pair of neighbours in a text is looked up.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use millstream_kernels::Texts;

/// Ids by text.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    texts: Texts,
    /// Id of each text.
    ids: Vec<u32>,
    /// Numbers of texts.
    table: HashTable<u32>,
}

impl Words {
    /// Room for so many.
    pub fn with_capacity(count: usize) -> Self {
        let (texts, ids) = (Texts::default(), Vec::with_capacity(count));
        Self { texts, ids, table: HashTable::with_capacity(count) }
    }

    /// The id of this text.
    pub fn get(&self, text: &str) -> Option<u32> {
        let found = self.table.find(hash(text), |&number| &self.texts[number as usize] == text)?;
        Some(self.ids[*found as usize])
    }

    /// Gives a text an id, unless it has one: then that one is the error. All texts together are less than 4 GiB.
    pub fn insert(&mut self, text: &str, id: u32) -> Result<(), u32> {
        if let Some(other) = self.get(text) {
            return Err(other);
        }
        assert!(self.texts.push(text), "a vocabulary is bounded long before");
        let number = self.ids.len() as u32;
        self.ids.push(id);
        let texts = &self.texts;
        self.table.insert_unique(hash(text), number, |&number| hash(&texts[number as usize]));
        Ok(())
    }
}

/// The same in every process: what is in the table is not chosen by those who look things up in it.
fn hash(text: &str) -> u64 {
    FixedState::default().hash_one(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_has_its_id_and_keeps_it() {
        let mut words = Words::with_capacity(2);
        let texts: Vec<String> = (0..1000).map(|n| format!("{}{n}", "é".repeat(n % 7))).collect();
        for (id, text) in texts.iter().enumerate() {
            assert_eq!(words.insert(text, 7 * id as u32), Ok(()), "{text}");
        }
        assert_eq!(words.insert(&texts[3], 9), Err(21));
        for (id, text) in texts.iter().enumerate() {
            assert_eq!(words.get(text), Some(7 * id as u32));
        }
        assert_eq!((words.get(""), words.get("é")), (None, None));
    }
}
