//! What a row needs of the images of its sequence: the pieces of their embeddings that stand for the row's tokens. A
//! row may begin or end inside an image.

use millstream_kernels::{ImagePlan, Span};

use crate::message::StepRow;

/// Pieces of images for the tokens of a row; `width` values a token.
///
/// # Panics
/// An image was not looked at: the router places no such request.
pub(super) fn spans(row: &StepRow, width: usize) -> Vec<Span<'_>> {
    let (start, end) = (row.start as usize, row.start as usize + row.tokens.len());
    let mut spans = Vec::new();
    for image in row.images.iter() {
        let (from, to) = (start.max(image.first as usize), end.min(image.end()));
        if from < to {
            let seen = image.embeddings.as_deref().expect("images are looked at before a group gets them");
            let first = image.first as usize;
            let embeddings = &seen[(from - first) * width..(to - first) * width];
            spans.push(Span { first: (from - start) as u32, embeddings, width });
        }
    }
    spans
}

/// Where the images of a sequence stand, for the positions that heads turn by.
pub(super) fn plans(row: &StepRow) -> Vec<(u32, ImagePlan)> {
    row.images.iter().map(|image| (image.first, image.plan)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::message::SequenceId;
    use crate::picture::{Detail, Picture, PictureBounds};
    use crate::request::{PromptImage, RequestId};

    const WIDTH: usize = 2;

    fn picture() -> Arc<Picture> {
        let gif = b"GIF89a\x01\0\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0";
        let bounds = PictureBounds { bytes: 100, pixels: 100 };
        Arc::new(Picture::read("x", gif.to_vec(), Detail::High, bounds).expect("a header"))
    }

    /// Images of so many tokens, each so many behind the one before; a token's values are its position and its image.
    fn images(sizes: &[(u32, usize)]) -> Vec<PromptImage> {
        let mut first = 0;
        let image = |(number, &(gap, tokens)): (usize, &(u32, usize))| {
            first += gap;
            let plan = ImagePlan { width: 1, height: 1, tokens, grid: (1, 1) };
            let values = |at: u32| [at as f32, number as f32];
            let embeddings = (first..first + tokens as u32).flat_map(values).collect::<Vec<_>>();
            let image = PromptImage { first, plan, picture: picture(), embeddings: Some(embeddings.into()) };
            first += tokens as u32;
            image
        };
        sizes.iter().enumerate().map(image).collect()
    }

    fn row(images: &Arc<[PromptImage]>, start: u32, count: usize) -> StepRow {
        StepRow {
            sequence: SequenceId { request: RequestId(1), attempt: 0 },
            tokens: vec![0; count],
            start,
            blocks: Vec::new(),
            images: Arc::clone(images),
            state: None,
            sample: None,
            observe: Vec::new(),
            follows: None,
        }
    }

    proptest! {
        #[test]
        fn every_token_of_an_image_gets_its_own_values(
            sizes in prop::collection::vec((0_u32..5, 1_usize..20), 0..6),
            chunks in prop::collection::vec(1_usize..13, 1..100),
        ) {
            let images: Arc<[PromptImage]> = images(&sizes).into();
            let mut start = 0;
            for count in chunks {
                let row = row(&images, start, count);
                let mut seen = vec![None; count];
                for span in spans(&row, WIDTH) {
                    prop_assert_eq!(span.width, WIDTH);
                    for (offset, values) in span.embeddings.chunks(WIDTH).enumerate() {
                        let place = &mut seen[span.first as usize + offset];
                        prop_assert!(place.is_none(), "two images at one place");
                        *place = Some((values[0] as usize, values[1] as usize));
                    }
                }
                for (place, seen) in seen.into_iter().enumerate() {
                    let at = start as usize + place;
                    let there = |image: &PromptImage| (image.first as usize..image.end()).contains(&at);
                    prop_assert_eq!(seen, images.iter().position(there).map(|number| (at, number)));
                }
                start += count as u32;
            }
        }
    }
}
