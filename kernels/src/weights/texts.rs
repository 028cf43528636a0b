//! A list of texts in one piece of memory: a vocabulary has hundreds of thousands, and is read while somebody waits.

use std::fmt;
use std::ops::Index;

/// Texts by number, from 0.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Texts {
    /// All of them, one behind the other.
    whole: String,
    /// Where each ends.
    ends: Vec<u32>,
}

impl Texts {
    /// Most bytes that all texts may have together.
    pub const BYTES_MAX: usize = u32::MAX as usize;

    /// Adds one to the end. False, and nothing is added, when that would be more than [`Texts::BYTES_MAX`].
    pub fn push(&mut self, text: &str) -> bool {
        let Ok(end) = u32::try_from(self.whole.len() + text.len()) else { return false };
        self.whole.push_str(text);
        self.ends.push(end);
        true
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The text of this number, if there is one.
    pub fn get(&self, number: usize) -> Option<&str> {
        let end = *self.ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.whole.get(start as usize..end as usize)
    }

    /// All texts, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.whole[start as usize..end as usize])
    }
}

impl Index<usize> for Texts {
    type Output = str;

    fn index(&self, number: usize) -> &str {
        self.get(number).expect("the text is there")
    }
}

/// Panics when they are more than [`Texts::BYTES_MAX`] bytes.
impl<'a> FromIterator<&'a str> for Texts {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        let mut list = Self::default();
        texts.into_iter().for_each(|text| assert!(list.push(text), "texts of more than 4 GiB"));
        list
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_went_in() {
        let texts = ["", "one", "", "zwölf", ""];
        let list: Texts = texts.into_iter().collect();
        assert_eq!((list.len(), list.iter().collect::<Vec<_>>()), (5, texts.to_vec()));
        assert_eq!((&list[3], list.get(5)), ("zwölf", None));
        assert!(!list.is_empty() && Texts::default().is_empty());
    }
}
