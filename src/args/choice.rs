//! How an answer is chosen, as typed: the fields of the HTTP interface by the same names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use millstream_actors::request::{ChatMessage, Content, Part, Prompt, Sampling, Submit};
use serde_json::{Map, Value, json};

use crate::clock;

/// How an answer is chosen.
#[derive(Clone, Debug, Args)]
pub struct ChoiceArgs {
    /// 0 takes the best token each time
    #[arg(long, default_value_t = 0.0, value_parser = number::<0, 2>, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Keep the best tokens up to this probability
    #[arg(long, default_value_t = 0.9, value_parser = number::<0, 1>, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep this many of the best tokens; 0 (or -1) keeps all
    #[arg(long, default_value_t = 0, value_parser = top_k, allow_negative_numbers = true)]
    pub top_k: u32,
    /// Keep tokens at least so many times as likely as the best
    #[arg(long, default_value_t = 0.0, value_parser = number::<0, 1>, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divide the logits of tokens that were there before; 1 leaves them
    #[arg(long, default_value_t = 1.0, value_parser = repetition, allow_negative_numbers = true)]
    pub repetition_penalty: f32,
    /// Take this off the logits of tokens of the answer
    #[arg(long, default_value_t = 0.0, value_parser = number::<-2, 2>, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// The same for each time they stand there
    #[arg(long, default_value_t = 0.0, value_parser = number::<-2, 2>, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Add to the logit of a token, as 123=-100 (may be given several times)
    #[arg(long, value_name = "ID=SHIFT", value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same answer
    #[arg(long, value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Longest answer in tokens
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub max_tokens: u32,
    /// End the answer before this text (may be given several times)
    #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
}

impl ChoiceArgs {
    /// What a graph in this process is asked.
    pub(crate) fn submit(&self, messages: &[ChatMessage]) -> Submit {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition: self.repetition_penalty,
            presence: self.presence_penalty,
            frequency: self.frequency_penalty,
            bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(clock::fresh_seed),
        };
        Submit {
            tokens_max: Some(self.max_tokens),
            stops: self.stop.clone(),
            ..Submit::new(Prompt::Chat(messages.to_vec()), sampling)
        }
    }

    /// What a server is asked. Fields that only some servers know are sent only where they say something.
    pub(crate) fn body(&self, messages: &[ChatMessage]) -> Value {
        let message = |message: &ChatMessage| json!({"role": message.role.as_str(), "content": content(&message.content)});
        let mut body = json!({
            "model": "default",
            "stream": true,
            "messages": messages.iter().map(message).collect::<Vec<_>>(),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed.map(u64::cast_signed),
            "max_completion_tokens": self.max_tokens,
        });
        let bias = self.logit_bias.iter().map(|(id, shift)| (id.to_string(), (*shift).into()));
        let mut say = |name: &str, said: bool, value: Value| {
            if said {
                body[name] = value;
            }
        };
        say("top_k", self.top_k > 0, self.top_k.into());
        say("min_p", self.min_p > 0.0, self.min_p.into());
        say("repetition_penalty", self.repetition_penalty != 1.0, self.repetition_penalty.into());
        say("presence_penalty", self.presence_penalty != 0.0, self.presence_penalty.into());
        say("frequency_penalty", self.frequency_penalty != 0.0, self.frequency_penalty.into());
        say("logit_bias", !self.logit_bias.is_empty(), Value::Object(bias.collect::<Map<_, _>>()));
        say("stop", !self.stop.is_empty(), self.stop.clone().into());
        body
    }
}

/// What a message says, as the API writes it: images as data URLs.
fn content(content: &Content) -> Value {
    let part = |part: &Part| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(picture) => {
            let (kind, data) = (picture.media_type(), STANDARD.encode(picture.bytes()));
            json!({"type": "image_url", "image_url": {"url": format!("data:{kind};base64,{data}")}})
        }
    };
    match content {
        Content::Text(text) => text.as_str().into(),
        Content::Parts(parts) => parts.iter().map(part).collect(),
    }
}

fn number<const LOW: i32, const HIGH: i32>(text: &str) -> Result<f32, String> {
    within(text, LOW as f32, HIGH as f32)
}

fn repetition(text: &str) -> Result<f32, String> {
    within(text, 0.01, 100.0)
}

fn within(text: &str, low: f32, high: f32) -> Result<f32, String> {
    match text.parse() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("must be a number between {low} and {high}")),
    }
}

/// All tokens are kept at 0, and at -1 as others write it.
fn top_k(text: &str) -> Result<u32, String> {
    if text == "-1" {
        return Ok(0);
    }
    text.parse().map_err(|_| "must be a whole number, 0 for all".to_owned())
}

/// 64 bits, signed or not.
fn seed(text: &str) -> Result<u64, String> {
    let signed = || text.parse::<i64>().map(i64::cast_unsigned);
    text.parse().or_else(|_| signed()).map_err(|_| "not a whole number of 64 bits".to_owned())
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "must look like 123=-100, the id of a token and what is added".to_owned();
    let (id, shift) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.parse().map_err(|_| wrong())?, within(shift, -100.0, 100.0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        choice: ChoiceArgs,
    }

    fn parse(words: &[&str]) -> Result<Line, clap::Error> {
        Line::try_parse_from([&["chat"], words].concat())
    }

    fn read(words: &[&str]) -> Option<ChoiceArgs> {
        parse(words).ok().map(|line| line.choice)
    }

    #[test]
    fn a_local_graph_and_a_server_are_asked_the_same() {
        let words = [
            "--temperature",
            "0.5",
            "--top-k",
            "7",
            "--top-p",
            "1",
            "--min-p",
            "0.25",
            "--repetition-penalty",
            "1.5",
            "--presence-penalty",
            "-0.5",
            "--frequency-penalty",
            "0.25",
            "--logit-bias",
            "12=-100",
            "--logit-bias",
            "3=1",
            "--seed",
            "-3",
            "--stop",
            "x",
            "--max-tokens",
            "9",
        ];
        let choice = read(&words).unwrap();
        let submit = choice.submit(&[]);
        let sampling = Sampling {
            temperature: 0.5,
            top_k: 7,
            top_p: 1.0,
            min_p: 0.25,
            repetition: 1.5,
            presence: -0.5,
            frequency: 0.25,
            bias: vec![(12, -100.0), (3, 1.0)],
            seed: -3_i64 as u64,
        };
        assert_eq!(
            (submit.sampling, submit.tokens_max, submit.stops),
            (sampling, Some(9), vec!["x".to_owned()])
        );
        let body = json!({
            "model": "default", "stream": true, "messages": [], "temperature": 0.5, "top_k": 7, "top_p": 1.0,
            "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 0.25,
            "logit_bias": {"12": -100.0, "3": 1.0}, "seed": -3, "stop": ["x"], "max_completion_tokens": 9,
        });
        assert_eq!(choice.body(&[]), body);
        let plain = read(&[]).unwrap().body(&[]);
        assert!(
            ["top_k", "min_p", "logit_bias", "stop"].iter().all(|name| plain.get(name).is_none()),
            "{plain}"
        );
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for (flag, value, why) in [
            ("--temperature", "3", "between 0 and 2"),
            ("--temperature", "-1", "between 0 and 2"),
            ("--temperature", "hot", "between 0 and 2"),
            ("--top-p", "1.5", "between 0 and 1"),
            ("--top-p", "-0.5", "between 0 and 1"),
            ("--top-k", "-2", "0 for all"),
            ("--min-p", "-1", "between 0 and 1"),
            ("--repetition-penalty", "0", "between 0.01 and 100"),
            ("--repetition-penalty", "-1", "between 0.01 and 100"),
            ("--presence-penalty", "-3", "between -2 and 2"),
            ("--logit-bias", "5", "must look like"),
            ("--logit-bias", "5=101", "between -100 and 100"),
            ("--seed", "18446744073709551616", "64 bits"),
            ("--max-tokens", "-1", "not in 1.."),
        ] {
            let refused = parse(&[flag, value]).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains(why), "{flag} {value}: {refused}");
        }
        assert_eq!(read(&["--top-k", "-1"]).unwrap().top_k, 0);
        assert_eq!(read(&["--seed", "18446744073709551615"]).unwrap().seed, Some(u64::MAX));
    }
}
