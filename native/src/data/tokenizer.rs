//! Makes tokens of text: by a `tokenizer.json` of Hugging Face, or byte by byte.

use std::path::{Path, PathBuf};

use super::chat::{Chat, ChatTemplate};
use super::{DataError, MASKED};

/// Tokens that bytes need.
pub const BYTE_VOCABULARY: u64 = 256;

/// Ends of documents, by the names that published tokenizers give them.
const ENDS: [&str; 6] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]"];

/// How text becomes tokens.
#[derive(Clone, Debug, Default)]
pub enum Tokenizer {
    /// Each byte is a token. Documents of JSON lines and of Parquet end with byte 0.
    #[default]
    Bytes,
    /// By a file.
    File(Box<Loaded>),
}

/// A tokenizer from a file.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    /// What ends a document, and its name.
    pub end: Option<(u32, String)>,
    /// Tokens that it knows.
    pub vocabulary: u64,
    /// The chat template that lies there too, or why it cannot be used: only conversations need it.
    chat: Result<Option<ChatTemplate>, String>,
}

impl Tokenizer {
    /// The tokenizer in the file `path`, or in the folder.
    ///
    /// # Errors
    /// [`DataError`] where there is none.
    pub fn load(path: &Path) -> Result<Tokenizer, DataError> {
        /// The largest published ones have some tens of MB.
        const MOST_BYTES: u64 = 256 << 20;
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_path_buf() };
        let failed = DataError::file(&path, "read");
        let bytes = std::fs::metadata(&path).map_err(&failed)?.len();
        if bytes > MOST_BYTES {
            return Err(DataError::wrong(
                &path,
                "its size",
                format!("{bytes} bytes"),
                format!("at most {MOST_BYTES}"),
            ));
        }
        let text = std::fs::read(&path).map_err(&failed)?;
        let tokenizer = tokenizers::Tokenizer::from_bytes(&text).map_err(|error| {
            DataError::wrong(&path, "the file", error.to_string(), "a `tokenizer.json` of Hugging Face")
        })?;
        let named = named_end(&path).into_iter().chain(ENDS.map(str::to_string));
        let end = named.into_iter().find_map(|name| Some((tokenizer.token_to_id(&name)?, name)));
        // Numbers may have gaps: what counts is the greatest.
        let greatest = tokenizer.get_vocab(true).into_values().max();
        let vocabulary = greatest.map_or(0, |greatest| u64::from(greatest) + 1);
        let chat = ChatTemplate::beside(&path).map_err(|error| error.to_string());
        Ok(Tokenizer::File(Box::new(Loaded { path, tokenizer, end, vocabulary, chat })))
    }

    /// The tokens of `text`, without such as begin or end it.
    ///
    /// # Errors
    /// What the tokenizer says.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Tokenizer::File(loaded) => {
                let encoded = loaded.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
                Ok(encoded.get_ids().to_vec())
            }
        }
    }

    /// The tokens of a conversation, as its template writes it. Those with [`MASKED`] are not to be predicted: no part of them
    /// is what the assistant says.
    ///
    /// # Errors
    /// What is found, and what is expected.
    pub(super) fn encode_chat(&self, chat: &Chat) -> Result<Vec<u32>, (String, String)> {
        let needed = "`--tokenizer FOLDER` with tokenizer.json and chat_template.jinja, or `chat_template` in \
                      tokenizer_config.json";
        let Tokenizer::File(loaded) = self else {
            return Err(("a conversation, without a tokenizer".to_string(), needed.to_string()));
        };
        let template = match &loaded.chat {
            Ok(Some(template)) => template,
            Ok(None) => return Err(("a conversation, without a chat template".to_string(), needed.to_string())),
            Err(error) => return Err((error.clone(), needed.to_string())),
        };
        let taken = |found: String| (found, "a conversation that the chat template takes".to_string());
        let written = template.write(chat).map_err(taken)?;
        let encoded =
            loaded.tokenizer.encode(written.text.as_str(), false).map_err(|error| taken(error.to_string()))?;
        let mut said = written.said.iter().peekable();
        let of_token = |(token, (from, to)): (&u32, &(usize, usize))| {
            while said.next_if(|range| range.end <= *from).is_some() {}
            let is_said = said.peek().is_some_and(|range| range.start < *to);
            if is_said { *token } else { *token | MASKED }
        };
        Ok(encoded.get_ids().iter().zip(encoded.get_offsets()).map(of_token).collect())
    }

    /// The token behind a document.
    pub fn end(&self) -> Option<u32> {
        match self {
            Tokenizer::Bytes => Some(0),
            Tokenizer::File(loaded) => loaded.end.as_ref().map(|(end, _)| *end),
        }
    }

    /// Refuses a tokenizer that makes tokens which a model of `vocabulary` tokens does not know.
    ///
    /// # Errors
    /// [`DataError::Wrong`].
    pub fn fits(&self, vocabulary: u64) -> Result<(), DataError> {
        match self {
            Tokenizer::File(loaded) if loaded.vocabulary > vocabulary => {
                let found = format!("{} tokens", loaded.vocabulary);
                let expected = format!("at most {vocabulary}, the vocabulary of the model (model.vocab)");
                Err(DataError::wrong(&loaded.path, "its vocabulary", found, expected))
            }
            _ => Ok(()),
        }
    }
}

/// What ends a text by the `tokenizer_config.json` that lies there too.
fn named_end(path: &Path) -> Option<String> {
    let text = std::fs::read(path.with_file_name("tokenizer_config.json")).ok()?;
    let value: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let end = &value["eos_token"];
    Some(end.as_str().or_else(|| end["content"].as_str())?.to_string())
}
