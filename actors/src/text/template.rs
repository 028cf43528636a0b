//! The model's own chat template, which turns a conversation into the text the model was trained on.

use std::collections::BTreeMap;

use millstream_kernels::TextFiles;
use minijinja::Environment;
use minijinja::value::Value;
use serde_json::Value as Json;

use super::marked::{Fence, Marked};
use super::{ChatMessage, Content, Part, TextError, Tokenizer, jinja};

/// Templates for families whose files bring none, told by the control tokens of their vocabularies.
const BUILT_IN: &[(&[&str], &str)] = &[
    // Gemma.
    (
        &["<start_of_turn>", "<end_of_turn>"],
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n\
         {{ m['content'] | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    // ChatML.
    (
        &["<|im_start|>", "<|im_end|>"],
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
];

const NAME: &str = "chat";

/// A compiled template. Templates that ask for the date without asking whether there is one (`strftime_now`) are refused
/// when they are rendered.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    fence: Fence,
    /// `bos_token` and its like, by the names templates know.
    specials: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Takes the template of its own file or of the GGUF metadata, then that of the tokenizer's settings (the one named
    /// `default` where there are several), then a built-in one for vocabularies with the turns of Gemma or ChatML.
    /// `None` where there is none of these. Errors: a template that does not compile.
    pub fn load(files: &TextFiles, tokenizer: &Tokenizer) -> Result<Option<Self>, TextError> {
        let source = files
            .chat_template
            .clone()
            .or_else(|| configured(files.tokenizer_config.as_ref()?))
            .or_else(|| built_in(tokenizer));
        let Some(source) = source else { return Ok(None) };
        let fence = Fence::new(tokenizer.reserved(), &source);
        let mut environment = jinja::environment();
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| TextError::Template { attempt: "compiling", reason: jinja::reason(&error) })?;
        Ok(Some(Self { environment, fence, specials: tokenizer.specials() }))
    }

    /// Renders a conversation; with `add_generation_prompt` the turn of the assistant is opened. Errors: the template
    /// refuses it, or asks for what there is not.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<Marked, TextError> {
        let guard = self.fence.guard(messages)?;
        let messages = messages.iter().map(|message| {
            let role = Value::from(message.role.as_str());
            Value::from(BTreeMap::from([("role", role), ("content", self.content(guard, &message.content))]))
        });
        let mut variables = BTreeMap::from([
            ("messages", Value::from(messages.collect::<Vec<_>>())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            // Templates ask whether these are `none`, and would take a missing one for a list.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
        ]);
        variables.extend(self.specials.iter().map(|(name, text)| (*name, Value::from(text.as_str()))));
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(Value::from(variables)));
        match rendered {
            Ok(text) => Ok(Marked::guarded(text, guard)),
            Err(error) => Err(TextError::Template { attempt: "rendering", reason: jinja::reason(&error) }),
        }
    }
}

impl ChatTemplate {
    /// What the template sees of a message: words behind their fence, as one text or in parts as the makers of models
    /// with eyes expect them. An image is known to the template by its place alone.
    fn content(&self, guard: char, content: &Content) -> Value {
        let text = |text: &str| Value::from(self.fence.fence(guard, text));
        let kind = |kind: &'static str| ("type", Value::from(kind));
        let part = |part: &Part| match part {
            Part::Text(words) => Value::from(BTreeMap::from([kind("text"), ("text", text(words))])),
            Part::Image(_) => Value::from(BTreeMap::from([kind("image")])),
        };
        match content {
            Content::Text(words) => text(words),
            Content::Parts(parts) => Value::from(parts.iter().map(part).collect::<Vec<_>>()),
        }
    }
}

/// `chat_template` of the tokenizer's settings: a text, or a list of named ones.
fn configured(config: &Json) -> Option<String> {
    match config.get("chat_template")? {
        Json::String(text) => Some(text.clone()),
        Json::Array(list) => {
            let default = list.iter().find(|one| one.get("name").and_then(Json::as_str) == Some("default"));
            default.or(list.first())?.get("template")?.as_str().map(str::to_string)
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => None,
    }
}

fn built_in(tokenizer: &Tokenizer) -> Option<String> {
    let knows = |token: &&str| tokenizer.control(token).is_some();
    let (_, source) = BUILT_IN.iter().find(|(tokens, _)| tokens.iter().all(knows))?;
    Some((*source).to_string())
}
