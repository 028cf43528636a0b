//! Requests of a simulation, drawn from its seed: short and long, greedy and sampled, patient and not, some of which
//! begin alike; with images where the model has eyes.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use image::{ImageFormat, Rgb, RgbImage};
use millstream_actors::picture::{Detail, Picture, PictureBounds};
use millstream_actors::request::{ChatMessage, ChatRole, Content, Part, Prompt, RequestId, Sampling, Submit};
use millstream_runtime::Time;

/// Words that prompts are made of.
const WORDS: [&str; 16] = [
    "mill", "stream", "water", "wheel", "grain", "stone", "flour", "sluice", "the", "turns", "slowly",
    "below", "Größe", "水車", "and", "again",
];

/// Words of a long beginning that many prompts have.
const OPENING: usize = 48;

/// One client.
#[derive(Clone, Debug)]
pub struct Visit {
    /// When it comes.
    pub at: Time,
    /// What it asks.
    pub submit: Submit,
    /// How long it waits before it goes away, if it does.
    pub leaves_after: Option<Duration>,
}

/// Draws the clients of a run; with `eyes` every second chat has an image or two, of which there are few.
pub fn draw(seed: u64, requests: u32, eyes: bool) -> Vec<Visit> {
    let mut dice = Dice(seed ^ 0x6d69_6c6c_7374_7265);
    let mut at = Time::ZERO;
    let mut visits = Vec::new();
    for number in 1..=u64::from(requests) {
        at = at + Duration::from_micros(dice.below(40_000));
        visits.push(visit(&mut dice, RequestId(number), at));
    }
    if eyes {
        // Drawn apart, so that everything else is as it is for a model without eyes.
        let mut dice = Dice(seed ^ 0x6579_6573);
        visits.iter_mut().for_each(|visit| show(&mut dice, &mut visit.submit));
    }
    visits
}

/// Different images of a run.
const IMAGES: u64 = 6;

/// Puts images before what is said in every second chat.
fn show(dice: &mut Dice, submit: &mut Submit) {
    let Prompt::Chat(messages) = &*submit.prompt else { return };
    let mut messages = messages.clone();
    let Some(first) = messages.first_mut().filter(|_| dice.one_in(2)) else { return };
    let words = first.content.texts().map(|text| Part::Text(text.to_owned()));
    let images = (0..1 + dice.below(2)).map(|place| picture(dice.below(IMAGES), place));
    first.content = Content::of(images.chain(words).collect());
    submit.prompt = Prompt::Chat(messages).into();
}

/// One of the images, as a file.
fn picture(number: u64, place: u64) -> Part {
    let mut dice = Dice(number);
    let (width, height) = (8 + dice.below(90) as u32, 8 + dice.below(90) as u32);
    let colours = dice.next().to_le_bytes();
    let colour = |x: u32, y: u32| Rgb([colours[(x / 9 % 8) as usize], colours[(y / 7 % 8) as usize], 90]);
    let mut file = Cursor::new(Vec::new());
    let drawn = RgbImage::from_fn(width, height, colour).write_to(&mut file, ImageFormat::Png);
    drawn.expect("memory takes every file");
    let bounds = PictureBounds { bytes: 1 << 20, pixels: 1 << 20 };
    let place = format!("messages[0].content[{place}]");
    let picture = Picture::read(&place, file.into_inner(), Detail::High, bounds);
    Part::Image(Arc::new(picture.expect("what was drawn is an image")))
}

/// The same clients, none of which goes away or runs out of time: what their answers would be.
pub fn patient(visits: &[Visit]) -> Vec<Visit> {
    let stay = |visit: &Visit| Visit {
        at: visit.at,
        submit: Submit { patience: None, ..visit.submit.clone() },
        leaves_after: None,
    };
    visits.iter().map(stay).collect()
}

fn visit(dice: &mut Dice, request: RequestId, at: Time) -> Visit {
    let words = if dice.one_in(5) { 40 + dice.below(200) } else { 1 + dice.below(20) };
    let opening = if dice.one_in(3) { OPENING } else { 0 };
    let mut text: Vec<&str> = (0..opening).map(|n| WORDS[n * 5 % WORDS.len()]).collect();
    text.extend((0..words).map(|_| WORDS[dice.below(WORDS.len() as u64) as usize]));
    let prompt = match dice.one_in(2) {
        true => Prompt::Text(text.join(" ")),
        false => Prompt::Chat(vec![ChatMessage::new(ChatRole::User, text.join(" "))]),
    };
    let sampling = match dice.one_in(2) {
        true => Sampling::GREEDY,
        false => sampled(dice),
    };
    let submit = Submit {
        request,
        tokens_max: Some(1 + dice.below(64) as u32),
        stops: if dice.one_in(8) { vec!["e".to_owned()] } else { Vec::new() },
        patience: dice.one_in(16).then(|| Duration::from_millis(1 + dice.below(400))),
        ..Submit::new(prompt, sampling)
    };
    let leaves_after = dice.one_in(8).then(|| Duration::from_millis(dice.below(400)));
    Visit { at, submit, leaves_after }
}

/// Half of these count the tokens that were there before.
fn sampled(dice: &mut Dice) -> Sampling {
    let seed = dice.next();
    let sampling = Sampling { temperature: 0.8, top_p: 0.9, top_k: 40, seed, ..Sampling::GREEDY };
    match dice.one_in(2) {
        true => sampling,
        false => Sampling { repetition: 1.2, presence: 0.3, frequency: 0.3, min_p: 0.02, ..sampling },
    }
}

/// SplitMix64: a small generator whose numbers are the same everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_clients() {
        let texts = |seed| format!("{:?}", draw(seed, 50, true));
        assert_eq!(texts(3), texts(3));
        assert_ne!(texts(3), texts(4));
    }

    #[test]
    fn the_patient_ones_stay() {
        assert!(
            patient(&draw(1, 200, false))
                .iter()
                .all(|visit| visit.leaves_after.is_none() && visit.submit.patience.is_none())
        );
        assert!(draw(1, 200, false).iter().any(|visit| visit.leaves_after.is_some()));
    }
}
