//! The text of an answer must not depend on where its tokens are cut.

use millstream_actors::text::TextStream;
use proptest::prelude::*;

/// What the stream should give, the slow and obvious way.
fn expected(bytes: &[u8], stops: &[String]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    for end in 1..=text.len() {
        let met = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        if let Some(longest) = met.map(String::len).max() {
            return (text[..end - longest].to_string(), true);
        }
    }
    (text, false)
}

fn streamed(bytes: &[u8], cuts: &[usize], stops: &[String]) -> (String, bool) {
    let mut stream = TextStream::new(stops.to_vec()).unwrap();
    let (mut text, mut from) = (String::new(), 0);
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let piece = stream.push(&bytes[from..cut]);
        assert_eq!(piece.stopped, stream.stopped());
        text.push_str(&piece.text);
        from = cut;
    }
    text.push_str(&stream.finish());
    (text, stream.stopped())
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_string()).collect()
}

#[test]
fn every_way_to_cut_short_texts_gives_the_same() {
    let texts: [&[u8]; 9] = [
        "a€😀é".as_bytes(),
        "ababcabab".as_bytes(),
        b"\xF0\x9F\x98",
        b"a\xFFb\xE2\x82\xE2\x82\xAC",
        b"\xF0\x80\x80\x41\xC3",
        b"\xED\xA0\x80x",
        "xx\n\nxx".as_bytes(),
        "\u{FFFD}\u{FFFD}".as_bytes(),
        b"ab\xE2\x82",
    ];
    let stops = [
        strings(&[]),
        strings(&["abc", "babca"]),
        strings(&["bab", "ab"]),
        strings(&["😀", "€😀é"]),
        strings(&["\u{FFFD}"]),
        strings(&["\n\n", "x\n"]),
        strings(&["b\u{FFFD}"]),
    ];
    for bytes in texts {
        for stops in &stops {
            let whole = expected(bytes, stops);
            for mask in 0u32..1 << (bytes.len() - 1) {
                let cuts: Vec<usize> = (1..bytes.len()).filter(|at| mask >> (at - 1) & 1 == 1).collect();
                assert_eq!(streamed(bytes, &cuts, stops), whole, "{bytes:?} cut at {cuts:?}, {stops:?}");
            }
        }
    }
}

#[test]
fn text_is_held_back_only_while_it_may_begin_a_stop_string() {
    let mut stream = TextStream::new(strings(&["</end>"])).unwrap();
    assert_eq!(stream.push(b"one <").text, "one ");
    assert_eq!(stream.push(b"/e").text, "");
    assert_eq!(stream.push(b"!").text, "</e!");
    assert_eq!(stream.push("é</end>more".as_bytes()).text, "é");
    assert_eq!(stream.push(b"late"), millstream_actors::text::Piece { text: String::new(), stopped: true });
    assert_eq!(stream.finish(), "");
}

#[test]
fn stop_strings_are_checked() {
    assert!(TextStream::new(strings(&["a", ""])).is_err());
    assert!(TextStream::new(vec!["x".to_string(); 65]).is_err());
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => "[ab]{1,4}".prop_map(String::into_bytes),
        2 => "[é€😀\u{FFFD}]{1,2}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 1..4),
        1 => Just(b"\xF0\x9F\x98".to_vec()),
    ];
    proptest::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn cutting_changes_nothing(
        bytes in bytes(),
        stops in proptest::collection::vec("[abé€😀\u{FFFD}]{1,5}", 0..5),
        at in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40),
    ) {
        let mut cuts: Vec<usize> = at.iter().map(|index| index.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(streamed(&bytes, &cuts, &stops), expected(&bytes, &stops));
    }
}

#[test]
fn bytes_that_are_passed_end_nothing() {
    let mut stream = TextStream::new(strings(&["ab", "é"])).unwrap();
    assert_eq!(stream.pass(b"abab\xC3").text, "abab");
    assert_eq!(stream.held(), 0);
    // The character was finished by what is watched.
    assert!(stream.push(b"\xA9").stopped);
    let mut stream = TextStream::new(strings(&["ab"])).unwrap();
    assert_eq!(stream.pass(b"a").text, "a");
    assert!(!stream.push(b"b").stopped, "half of it was passed");
    assert_eq!(stream.push(b"a").text, "");
    assert_eq!(stream.held(), 1);
}
