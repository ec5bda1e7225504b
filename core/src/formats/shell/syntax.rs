//! What a script is made of.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;

/// Commands one after the other.
pub(super) type List = Vec<Command>;

/// A command and the line on which it begins.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub line: usize,
    pub node: Node,
    pub redirects: Vec<Redirect>,
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Assignments before it, its words, and the assignments that `export` and its like make.
    Simple {
        before: Vec<Assign>,
        words: Vec<Word>,
        declared: Vec<Assign>,
    },
    Pipe(Vec<Command>),
    And(Box<Command>, Box<Command>),
    Or(Box<Command>, Box<Command>),
    Not(Box<Command>),
    If {
        arms: Vec<(List, List)>,
        otherwise: List,
    },
    Case {
        word: Word,
        arms: Vec<(Vec<Word>, List)>,
    },
    /// Without words: over what the script is called with.
    For {
        name: String,
        words: Option<Vec<Word>>,
        body: List,
    },
    Count {
        first: Word,
        test: Word,
        next: Word,
        body: List,
    },
    While {
        test: List,
        until: bool,
        body: List,
    },
    Function {
        name: String,
        body: Rc<Command>,
    },
    Group(List),
    Subshell(List),
    Test(Vec<TestToken>),
    Arithmetic(Word),
}

/// A part of `[[ … ]]`.
#[derive(Clone, Debug)]
pub(super) enum TestToken {
    Word(Word),
    /// `&&`, `||`, `!`, `(`, `)`, `<` or `>`, unquoted.
    Sign(&'static str),
}

#[derive(Clone, Debug)]
pub(super) struct Assign {
    pub name: String,
    pub index: Option<Word>,
    pub append: bool,
    pub value: Assigned,
}

#[derive(Clone, Debug)]
pub(super) enum Assigned {
    Text(Word),
    List(Vec<(Option<Word>, Word)>),
}

#[derive(Clone, Debug)]
pub(super) enum Redirect {
    /// What the command reads: a here-document, by its number, or a here-string.
    Document(usize),
    Text(Word),
    /// Where the command writes its output, and whether behind what is there.
    To {
        target: Word,
        append: bool,
    },
    /// Anything else, which decides nothing.
    Other,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Word(pub Vec<Piece>);

#[derive(Clone, Debug)]
pub(super) enum Piece {
    Text {
        text: String,
        quoted: bool,
    },
    Parameter {
        parameter: Box<Parameter>,
        quoted: bool,
    },
    Arithmetic(Word),
    /// The output of commands, and how they are written.
    Output {
        list: List,
        source: String,
        quoted: bool,
    },
    /// What only a running shell knows.
    Process,
}

#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub name: String,
    pub index: Option<Word>,
    /// `${#X}`, or `${!X}`.
    pub sign: Option<char>,
    pub change: Option<Change>,
}

/// What `${X…}` makes of a value.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// `-`, `=`, `+` or `?`, and whether an empty value counts as none.
    Otherwise {
        sign: char,
        or_empty: bool,
        word: Word,
    },
    Cut {
        at_end: bool,
        longest: bool,
        pattern: Word,
    },
    Replace {
        all: bool,
        at: Option<char>,
        pattern: Word,
        with: Word,
    },
    Slice {
        from: Word,
        length: Option<Word>,
    },
    Case {
        upper: bool,
        all: bool,
    },
}

impl Word {
    pub fn of(text: &str) -> Word {
        Word(alloc::vec![Piece::Text { text: text.into(), quoted: false }])
    }

    pub fn push_text(&mut self, letter: char, as_quoted: bool) {
        match self.0.last_mut() {
            Some(Piece::Text { text, quoted }) if *quoted == as_quoted => text.push(letter),
            _ => self.0.push(Piece::Text { text: letter.into(), quoted: as_quoted }),
        }
    }

    /// Its text, where all of it is plain and unquoted.
    pub fn plain(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Piece::Text { text, quoted: false }] => Some(text),
            _ => None,
        }
    }
}
