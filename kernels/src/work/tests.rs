//! The closed form against sums over every position, and rows that are cut.

use proptest::prelude::*;

use super::sums::{entries, seen, spread};
use super::*;

proptest! {
    #[test]
    fn sums_are_what_going_through_all_positions_gives(
        window in proptest::option::of(1_u32..60), first in 0_u32..50, from in 0_u32..100, count in 0_u32..120,
        ratio in 1_u32..4, most in prop_oneof![0_u32..40, Just(u32::MAX)],
    ) {
        let first = first.min(from);
        let end = from + count;
        let sees = |position: u32| (position + 1 - first).min(window.unwrap_or(u32::MAX));
        let sum: u32 = (from..end).map(sees).sum();
        prop_assert_eq!(seen(window, (first, from, end)), f64::from(sum));
        let looked: u32 = (from..end).map(|position| ((position + 1) / ratio).min(most)).sum();
        prop_assert_eq!(entries(ratio, most, end) - entries(ratio, most, from), f64::from(looked));
        if let (Some(window), true) = (window, count > 0) {
            let different = end - (from + 1).saturating_sub(window).max(first);
            prop_assert_eq!(spread(window, (first, from, end)), f64::from(different));
        }
    }

    /// What is asked of each token does not depend on the row it is in.
    #[test]
    fn rows_that_are_cut_ask_the_same(
        start in 0_u32..300, tokens in 2_u32..200, cut in 1_u32..200, valid in 0_u32..100, written in 0_u32..500,
        narrows in 0_u32..8, decoder in proptest::option::of(0_u32..500),
    ) {
        let cut = cut.min(tokens - 1);
        let layer = |layer: usize| LayerWork {
            weights: 100.0,
            early: 10.0,
            window: (layer > 0).then_some(8),
            pair: 3.0,
            numbers: 2.0,
            entries: (layer > 1).then_some(EntryWork { ratio: 2, chosen: 9, looks: 40, score: 5.0, numbers: 1.0 }),
            source: (layer == 2).then_some((2, 7.0)),
            side: [Side::Before, Side::Before, Side::At, Side::Behind][layer.min(3)],
            ..LayerWork::default()
        };
        let facts = WorkFacts { narrows, behind: 11.0, ..WorkFacts::of_layers((0..6).map(layer)) };
        let row = RowShape { valid_from: valid.min(start), written, decoder_from: decoder, ..RowShape::plain(start, tokens, 0) };
        let second = RowShape { start: start + cut, tokens: tokens - cut, ..row };
        let whole = facts.row(&row);
        let parts = facts.row(&RowShape { tokens: cut, ..row }) + facts.row(&second);
        prop_assert_eq!(whole.multiply_adds(), parts.multiply_adds());
        prop_assert_eq!((whole.pairs, whole.scores, whole.tokens), (parts.pairs, parts.scores, parts.tokens));
        prop_assert!(whole.kv <= parts.kv && whole.longest <= whole.kv);
    }
}
