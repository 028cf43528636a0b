//! Embeddings of images by digest, so that none is looked at twice while it is known: the most recently used ones up to
//! a number of bytes, and beyond it those that some request still holds, which cost nothing more.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::picture::PictureDigest;
use crate::request::Embeddings;

/// See the module.
pub(super) struct Album {
    bytes_max: u64,
    bytes: u64,
    kept: BTreeMap<PictureDigest, (Embeddings, u64)>,
    /// When each was last used, counted.
    by_use: BTreeMap<u64, PictureDigest>,
    uses: u64,
    /// All that were made and that somebody may still hold.
    lent: BTreeMap<PictureDigest, Weak<[f32]>>,
}

impl Album {
    /// Keeps at most `bytes_max`.
    pub(super) fn new(bytes_max: u64) -> Self {
        let (kept, by_use, lent) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { bytes_max, bytes: 0, kept, by_use, uses: 0, lent }
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is known of an image.
    pub(super) fn find(&mut self, digest: PictureDigest) -> Option<Embeddings> {
        self.uses += 1;
        if let Some((embeddings, used)) = self.kept.get_mut(&digest) {
            self.by_use.remove(used);
            *used = self.uses;
            self.by_use.insert(self.uses, digest);
            return Some(Arc::clone(embeddings));
        }
        let embeddings = self.lent.get(&digest)?.upgrade()?;
        self.keep(digest, &embeddings);
        Some(embeddings)
    }

    /// Keeps an image, and lets go of those that were not used for longest.
    pub(super) fn keep(&mut self, digest: PictureDigest, embeddings: &Embeddings) {
        self.lent.retain(|_, held| held.strong_count() > 0);
        self.lent.insert(digest, Arc::downgrade(embeddings));
        let size = bytes(embeddings);
        if size > self.bytes_max || self.kept.contains_key(&digest) {
            return;
        }
        self.uses += 1;
        self.kept.insert(digest, (Arc::clone(embeddings), self.uses));
        self.by_use.insert(self.uses, digest);
        self.bytes += size;
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.by_use.pop_first()
            && let Some((embeddings, _)) = self.kept.remove(&oldest)
        {
            self.bytes -= bytes(&embeddings);
        }
    }
}

fn bytes(embeddings: &Embeddings) -> u64 {
    size_of_val(&**embeddings) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Detail, Picture, PictureBounds};

    /// Digests of GIF headers that differ in their width.
    fn digest(number: u16) -> PictureDigest {
        let [low, high] = (number + 1).to_le_bytes();
        let mut gif = b"GIF89a".to_vec();
        gif.extend([low, high, 1, 0, 0, 0, 0, b',', 0, 0, 0, 0, low, high, 1, 0, 0]);
        let bounds = PictureBounds { bytes: 1 << 10, pixels: 1 << 20 };
        Picture::read("x", gif, Detail::High, bounds).expect("a header").digest()
    }

    fn of(number: u16, values: usize) -> Embeddings {
        vec![f32::from(number); values].into()
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_goes() {
        let mut album = Album::new(40);
        for number in 0..3 {
            album.keep(digest(number), &of(number, 4));
            album.find(digest(0));
        }
        assert_eq!(album.find(digest(1)), None);
        assert_eq!(album.find(digest(0)).as_deref(), Some([0.0; 4].as_slice()));
        assert_eq!(album.find(digest(2)).as_deref(), Some([2.0; 4].as_slice()));
        assert_eq!(album.bytes(), 32);
    }

    #[test]
    fn what_somebody_holds_is_known_even_when_it_is_too_large_to_keep() {
        let mut album = Album::new(40);
        let held = of(7, 100);
        album.keep(digest(7), &held);
        assert_eq!(album.bytes(), 0);
        assert!(album.find(digest(7)).is_some_and(|found| Arc::ptr_eq(&found, &held)));
        drop(held);
        assert_eq!(album.find(digest(7)), None);
    }

    #[test]
    fn bytes_are_those_of_what_is_kept_whatever_comes() {
        let (mut album, mut state) = (Album::new(1000), 17_u64);
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (state >> 33) as u16 % 40;
            match album.find(digest(number)) {
                Some(found) => assert_eq!(found.first(), Some(&f32::from(number))),
                None => album.keep(digest(number), &of(number, 1 + number as usize)),
            }
            let sum: u64 = album.kept.values().map(|(embeddings, _)| bytes(embeddings)).sum();
            assert_eq!((album.bytes(), album.kept.len()), (sum, album.by_use.len()));
            assert!(album.bytes() <= 1000);
        }
    }
}
