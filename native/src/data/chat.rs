//! Conversations as the chat template of a model writes them, and which part of the text the assistant says.
//!
//! The template is that of `transformers`: `chat_template.jinja` beside the tokenizer, else `chat_template` in
//! `tokenizer_config.json`. It sees what `apply_chat_template` gives it: `messages`, `tools`, `add_generation_prompt` and the
//! names of special tokens. Only what the assistant says is to be predicted:
//!
//! - where the template has `{% generation %}` blocks, what is written inside of them;
//! - else what an assistant's message adds to the messages before it, written with `add_generation_prompt`. A template that
//!   writes a message in another way once others follow it is refused there.
//!
//! There is no clock: `strftime_now` is not defined, so that data are the same on every day and rank.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::DataError;

/// Most bytes of a template; published ones have up to some 20 KB.
const MOST_TEMPLATE_BYTES: u64 = 1 << 20;
/// Most instructions of one rendering: some thousands for each message of published templates.
const MOST_WORK: u64 = 20_000_000;
/// What stands for the begin and the end of a `generation` block: characters that no text may have (Unicode 16, 23.7).
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';

/// One conversation.
#[derive(Clone, Debug)]
pub struct Chat {
    messages: Vec<Value>,
    tools: Option<Value>,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text, special tokens included.
    pub text: String,
    /// The bytes that the assistant says, in order.
    pub said: Vec<Range<usize>>,
}

impl Chat {
    /// The conversation in a record with these fields: `messages`, each with `role` and `content`, or `conversations`, each with
    /// `from` and `value`; `tools` with either.
    ///
    /// # Errors
    /// What is found, and what is expected.
    pub fn of(fields: &BTreeMap<String, Value>) -> Result<Option<Chat>, (String, String)> {
        let (name, role, own) = match (fields.get("messages"), fields.get("conversations")) {
            (Some(messages), _) => ("messages", "role", messages),
            (None, Some(messages)) => ("conversations", "from", messages),
            (None, None) => return Ok(None),
        };
        let list = own.try_iter().ok().filter(|_| own.kind() == minijinja::value::ValueKind::Seq);
        let Some(list) = list else {
            return Err((format!("`{name}` is no list"), format!("a list of messages, each with `{role}`")));
        };
        let mut messages = Vec::new();
        for (at, message) in list.enumerate() {
            let known = message.get_attr(role).ok().and_then(|role| role.as_str().map(str::to_string));
            let Some(known) = known else {
                return Err((format!("`{name}[{at}]` has no `{role}`"), "who says it, such as `user`".into()));
            };
            messages.push(if name == "messages" { with_reasoning(message) } else { of_share(&message, &known, at)? });
        }
        if !messages.iter().any(is_assistant) {
            return Err((
                format!("`{name}` without a message of the assistant"),
                "at least one: nothing else is trained on".into(),
            ));
        }
        Ok(Some(Chat { messages, tools: fields.get("tools").filter(|tools| !tools.is_none()).cloned() }))
    }
}

/// A message with `from` and `value`, in the names of `transformers`.
fn of_share(message: &Value, from: &str, at: usize) -> Result<Value, (String, String)> {
    let role = match from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "model" => "assistant",
        "system" => "system",
        other => {
            let found = format!("`conversations[{at}].from` is {other}");
            return Err((found, "human, gpt or system".into()));
        }
    };
    let content = message.get_attr("value").ok().filter(|value| value.as_str().is_some());
    let content = content.ok_or_else(|| (format!("`conversations[{at}]` has no `value`"), "a text".to_string()))?;
    Ok(Value::from_pairs([("role", Value::from(role)), ("content", content)]))
}

/// A message whose reasoning has both names that templates read, whichever of its names it has: as `transformers` does.
fn with_reasoning(message: Value) -> Value {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let mut known = names.iter().filter_map(|name| message.get_attr(name).ok());
    let Some(reasoning) = known.find(|value| !value.is_undefined() && !value.is_none()) else { return message };
    let Ok(keys) = message.try_iter() else { return message };
    let mut fields = vec![("thinking".to_string(), reasoning.clone())];
    for key in keys.filter_map(|key| key.as_str().map(str::to_string)) {
        let value = message.get_attr(&key).unwrap_or_default();
        match key.as_str() {
            "reasoning_content" => {}
            "thinking" => fields[0].1 = value,
            _ => fields.push((key, value)),
        }
    }
    fields.push(("reasoning_content".to_string(), reasoning));
    Value::from_pairs(fields)
}

fn is_assistant(message: &Value) -> bool {
    message.get_attr("role").is_ok_and(|role| role.as_str() == Some("assistant"))
}

/// A chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// The file that it is in.
    pub path: PathBuf,
    environment: Environment<'static>,
    /// Special tokens by name, such as `bos_token`.
    tokens: BTreeMap<String, Value>,
    /// Whether it says itself what the assistant says.
    is_marked: bool,
}

impl ChatTemplate {
    /// The template that lies beside `tokenizer`, if there is one.
    ///
    /// # Errors
    /// [`DataError`] where it cannot be read, or is no template.
    pub fn beside(tokenizer: &Path) -> Result<Option<ChatTemplate>, DataError> {
        let own = tokenizer.with_file_name("chat_template.jinja");
        let config_path = tokenizer.with_file_name("tokenizer_config.json");
        let config: serde_json::Value = match text_of(&config_path)? {
            Some(text) => serde_json::from_str(&text)
                .map_err(|error| DataError::wrong(&config_path, "the file", error.to_string(), "JSON"))?,
            None => serde_json::Value::Null,
        };
        let (path, template) = match text_of(&own)? {
            Some(text) => (own, text),
            None => match template_of(&config["chat_template"]) {
                Some(text) => (config_path, text),
                None => return Ok(None),
            },
        };
        let named = config.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
        let tokens = named.filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value["content"].as_str())?;
            Some((name.clone(), Value::from(text)))
        });
        ChatTemplate::new(path, &template, tokens.collect()).map(Some)
    }

    fn new(path: PathBuf, template: &str, tokens: BTreeMap<String, Value>) -> Result<ChatTemplate, DataError> {
        // As Jinja of Python does, whatever ends the lines of the file.
        let (text, is_marked) = marked(&template.replace("\r\n", "\n").replace('\r', "\n"));
        let wrong =
            |error: Error| DataError::wrong(&path, "its chat template", error.to_string(), "a template of Jinja");
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(wrong)?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax);
        environment.set_fuel(Some(MOST_WORK));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", |said: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, said))
        });
        environment.add_template_owned(NAME, text).map_err(wrong)?;
        Ok(ChatTemplate { path, environment, tokens, is_marked })
    }

    /// The text of `chat`.
    ///
    /// # Errors
    /// What the template says, or that it does not tell what the assistant says.
    pub fn write(&self, chat: &Chat) -> Result<Written, String> {
        let whole = self.render(&chat.messages, chat, false)?;
        if self.is_marked {
            return taken_apart(&whole);
        }
        let mut said = Vec::new();
        for at in (0..chat.messages.len()).filter(|at| is_assistant(&chat.messages[*at])) {
            let before = self.render(&chat.messages[..at], chat, true)?;
            let after = self.render(&chat.messages[..=at], chat, false)?;
            let is_part = whole.starts_with(&before) && whole.starts_with(&after) && before.len() <= after.len();
            if !is_part {
                return Err(format!(
                    "the chat template in {} writes message {at} in another way once others follow it, so what the \
                     assistant says in it cannot be told: give conversations that end with it, or a template with \
                     {{% generation %}} blocks",
                    self.path.display()
                ));
            }
            said.push(before.len()..after.len());
        }
        Ok(Written { text: whole, said })
    }

    fn render(&self, messages: &[Value], chat: &Chat, begins_answer: bool) -> Result<String, String> {
        let mut context = self.tokens.clone();
        context.insert("messages".into(), Value::from(messages.to_vec()));
        context.insert("tools".into(), chat.tools.clone().unwrap_or_else(|| Value::from(())));
        context.insert("documents".into(), Value::from(()));
        context.insert("add_generation_prompt".into(), Value::from(begins_answer));
        let template = self.environment.get_template(NAME).map_err(|error| error.to_string())?;
        template.render(context).map_err(|error| {
            let place = error.line().map_or_else(String::new, |line| format!(", line {line}"));
            let is_missing = error.kind() == ErrorKind::UnknownFunction || error.to_string().contains("not callable");
            let date = match is_missing && template.source().contains("strftime_now") {
                true => {
                    ": it asks for today's date (strftime_now), which would change the data from day to day; write a date in \
                     its place"
                }
                false => "",
            };
            format!("the chat template in {}{place} says: {error}{date}", self.path.display())
        })
    }
}

/// The name that the template has here.
const NAME: &str = "chat template";

/// The text of a file of bounded size, if it is there.
fn text_of(path: &Path) -> Result<Option<String>, DataError> {
    let Ok(known) = std::fs::metadata(path) else { return Ok(None) };
    // Beside a template, `tokenizer_config.json` lists all added tokens.
    if known.len() > 16 * MOST_TEMPLATE_BYTES {
        let expected = format!("at most {}", 16 * MOST_TEMPLATE_BYTES);
        return Err(DataError::wrong(path, "its size", format!("{} bytes", known.len()), expected));
    }
    std::fs::read_to_string(path).map(Some).map_err(DataError::file(path, "read"))
}

/// The template in a configuration: a text, or the one named `default` of several.
fn template_of(value: &serde_json::Value) -> Option<String> {
    let of_list = |templates: &Vec<serde_json::Value>| {
        templates.iter().find(|template| template["name"] == "default").map(|template| template["template"].clone())
    };
    let found = value.as_array().and_then(of_list).unwrap_or_else(|| value.clone());
    found.as_str().filter(|text| text.len() as u64 <= MOST_TEMPLATE_BYTES).map(str::to_string)
}

/// `template` with blocks that Jinja knows, and a mark, in the place of `generation` and `endgeneration`: the first block takes
/// the spaces before, the second one those behind.
fn marked(template: &str) -> (String, bool) {
    let mut text = String::with_capacity(template.len());
    let (mut rest, mut is_marked) = (template, false);
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|end| at + end + 2) else { break };
        let inside = &rest[at + 2..end - 2];
        let (left, inside) = inside.strip_prefix('-').map_or(("", inside), |inside| ("-", inside));
        let (right, inside) = inside.strip_suffix('-').map_or(("", inside), |inside| ("-", inside));
        let replaced = match inside.trim() {
            "generation" => Some(("if true", BEGIN)),
            "endgeneration" => Some(("endif", END)),
            _ => None,
        };
        text.push_str(&rest[..at]);
        match replaced {
            Some((block, mark)) => {
                text.push_str(&format!("{{%{left} {block} %}}{mark}{{% {block} {right}%}}"));
                is_marked = true;
            }
            None => text.push_str(&rest[at..end]),
        }
        rest = &rest[end..];
    }
    text.push_str(rest);
    (text, is_marked)
}

/// The text without its marks, and what stands between them.
fn taken_apart(marked: &str) -> Result<Written, String> {
    let (mut text, mut said, mut begin) = (String::with_capacity(marked.len()), Vec::new(), None);
    for character in marked.chars() {
        match (character, begin) {
            (BEGIN, None) => begin = Some(text.len()),
            (END, Some(from)) => {
                said.push(from..text.len());
                begin = None;
            }
            (BEGIN | END, _) => return Err("`generation` blocks stand inside of each other".to_string()),
            _ => text.push(character),
        }
    }
    match begin {
        None => Ok(Written { text, said }),
        Some(_) => Err("a `generation` block does not end".to_string()),
    }
}

/// As in Python: a text is, `none` is not, and what is not defined is an empty list.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && (value.is_undefined() || value.as_str().is_some() || value.try_iter().is_ok())
}

/// JSON as `json.dumps` of Python writes it, with a space behind commas and colons: what models were trained with.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Given by some templates; both are as here.
    let _: Option<Value> = options.get("ensure_ascii")?;
    let _: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let wrong = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut bytes = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            let form = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, form)).map_err(wrong)?;
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)).map_err(wrong)?,
    }
    let text =
        String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
