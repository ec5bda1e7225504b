//! How a command fails: what is wrong, where in the text, and with which exit code.

use std::fmt;
use std::process::ExitCode;

use miette::{Diagnostic, LabeledSpan, MietteHandlerOpts, NamedSource, SourceCode};

use super::output;

/// A failed command.
#[derive(Debug)]
pub struct Failure(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: u8,
    message: String,
    source: Option<NamedSource<String>>,
    labels: Vec<LabeledSpan>,
    help: Option<String>,
}

impl Failure {
    /// The input was refused, or there is no plan for it.
    pub fn input(message: impl fmt::Display) -> Failure {
        Failure(Box::new(Inner {
            code: 2,
            message: shown(&message.to_string()),
            source: None,
            labels: Vec::new(),
            help: None,
        }))
    }

    /// The work itself failed.
    pub fn work(message: impl fmt::Display) -> Failure {
        let mut failure = Failure::input(message);
        failure.0.code = 1;
        failure
    }

    /// A person ended it early.
    pub fn stopped(message: impl fmt::Display) -> Failure {
        let mut failure = Failure::input(message);
        failure.0.code = 130;
        failure
    }

    /// With another exit code.
    pub fn with_code(mut self, code: u8) -> Failure {
        self.0.code = code;
        self
    }

    /// What to do about it.
    pub fn with_help(mut self, help: impl fmt::Display) -> Failure {
        self.0.help = Some(shown(&help.to_string()));
        self
    }

    /// Where it stands in a text: byte offset, length, and what to write there.
    pub fn at(mut self, name: &str, text: &str, places: impl IntoIterator<Item = (usize, usize, String)>) -> Failure {
        // Whole lines are shown, and a file of one line may have megabytes.
        const LONGEST_LINE: usize = 1000;
        if text.lines().all(|line| line.len() <= LONGEST_LINE) {
            self.0.source = Some(NamedSource::new(shown(name), shown(text)));
        }
        let label = |(offset, length, label): (_, _, String)| LabeledSpan::new(Some(shown(&label)), offset, length);
        self.0.labels.extend(places.into_iter().map(label));
        self
    }

    /// What went wrong in words.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Prints it on standard error.
    pub fn report(self) -> ExitCode {
        let code = ExitCode::from(self.0.code);
        let text = format!("{:?}", miette::Report::new(self));
        output::tell(text.trim_end());
        code
    }
}

/// `text` with question marks for what would steer a terminal: it may come from a file. Bytes stay where they are.
fn shown(text: &str) -> String {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r');
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if steers(c) {
            shown.extend(std::iter::repeat_n('?', c.len_utf8()))
        } else {
            shown.push(c)
        }
        shown
    })
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Failure {}

impl Diagnostic for Failure {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        Some(Box::new(self.0.labels.iter().cloned()))
    }
}

/// Chooses how failures look. Lines are never wrapped: a sentence can be searched for.
pub fn install() {
    // Only the first hook counts, and this is the first.
    let _ =
        miette::set_hook(Box::new(|_| Box::new(MietteHandlerOpts::new().wrap_lines(false).context_lines(1).build())));
}
