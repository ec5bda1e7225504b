//! From statements to instructions whose registers, places and addresses are numbers.

use std::collections::BTreeMap;

use crate::text::{self, RawKernel, Statement, Variable};
use crate::{Fault, Line};

/// Where shared memory begins, as an H100 keeps the first KiB of each block's: so no address is 0.
pub const SHARED_START: u32 = 1 << 10;

/// Bytes between arrays in shared memory that are nobody's, so that whoever leaves one is found.
const GAP: u32 = 256;

/// A register of 32 bits, or what stands for one. Those of 16 bits are of 32 with zeros above.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    Reg(u32),
    Fixed(u32),
}

/// The same of 64 bits.
#[derive(Clone, Copy, Debug)]
pub enum Long {
    Reg(u32),
    Fixed(u64),
}

/// A predicate, or its opposite.
#[derive(Clone, Copy, Debug)]
pub enum Truth {
    Reg { reg: u32, negated: bool },
    Fixed(bool),
}

/// What `ld` fills or `st` writes.
#[derive(Clone, Copy, Debug)]
pub enum Either {
    Word(Word),
    Long(Long),
}

/// What a thread knows of itself.
#[derive(Clone, Copy, Debug)]
pub enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Two {
    Add,
    Sub,
    Mul,
    MulHigh,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatTwo {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    CopySign,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatOne {
    Neg,
    Abs,
    Root,
    Reciprocal,
    PowerOf2,
    Log2,
    Saturated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitsOne {
    Not,
    Neg,
    Abs {
        half: bool,
    },
    Reversed,
    LeadingZeros,
    Ones,
    /// The highest bit that is 1 (that differs from the sign), or how far it has to be shifted to come to the top.
    Highest {
        signed: bool,
        shift: bool,
    },
}

/// How two numbers are compared; for floats `or` a number and none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Number,
    NoNumber,
}

/// Of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub bits: u32,
    pub signed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global,
    Shared,
    Parameter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handing {
    Xor,
    Up,
    Down,
    Index,
}

/// A register, or none, and what is added.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub base: Either,
    pub offset: i64,
}

/// A plain access of memory.
#[derive(Clone, Debug)]
pub struct Access {
    pub space: Space,
    pub whole: Whole,
    pub values: Vec<Either>,
    pub address: Address,
}

impl Access {
    /// Bytes that a thread touches.
    pub fn width(&self) -> u32 {
        self.whole.bits / 8 * self.values.len() as u32
    }
}

#[derive(Clone, Debug)]
pub enum Op {
    Copy32(u32, Word),
    Copy64(u32, Long),
    CopyTruth(u32, Truth),
    Special(u32, Special),
    /// Low and high half.
    Split32([u32; 2], Word),
    Join32(u32, [Word; 2]),
    Split64([u32; 2], Long),
    Join64(u32, [Word; 2]),
    Two32(Two, Whole, u32, [Word; 2]),
    Two64(Two, bool, u32, [Long; 2]),
    Shift32 {
        left: bool,
        whole: Whole,
        to: u32,
        from: [Word; 2],
    },
    Shift64 {
        left: bool,
        signed: bool,
        to: u32,
        from: Long,
        by: Word,
    },
    One32(BitsOne, Whole, u32, Word),
    One64(BitsOne, u32, Long),
    /// Products of 64 bits, and what is added to them.
    Wide {
        signed: bool,
        to: u32,
        from: [Word; 2],
        plus: Option<Long>,
    },
    MulAdd32(Whole, u32, [Word; 3]),
    MulAdd64(u32, [Long; 3]),
    Compare32(Compare, Whole, u32, [Word; 2]),
    Compare64(Compare, bool, u32, [Long; 2]),
    CompareFloat(Compare, bool, u32, [Word; 2]),
    TruthTwo(Two, u32, [Truth; 2]),
    TruthNot(u32, Truth),
    Select32(u32, [Word; 2], Truth),
    Select64(u32, [Long; 2], Truth),
    FloatTwo(FloatTwo, u32, [Word; 2]),
    FloatOne(FloatOne, bool, u32, Word),
    Fma {
        down: bool,
        to: u32,
        from: [Word; 3],
    },
    /// Whole numbers of other widths.
    Resize {
        from: Whole,
        to_bits: u32,
        to: u32,
        value: Either,
    },
    FloatOfWhole {
        signed: bool,
        to: u32,
        value: Either,
    },
    /// Toward 0, with all that is too large at the ends.
    WholeOfFloat {
        whole: Whole,
        to: u32,
        value: Word,
    },
    PairOfBf16(u32, [Word; 2]),
    InsertBits(u32, [Word; 4]),
    /// The same in 64 bits: what is inserted and into what, then where and how many.
    InsertBits64(u32, [Long; 2], [Word; 2]),
    Permute(u32, [Word; 3]),
    Load(Access),
    Store(Access),
    Shuffle {
        way: Handing,
        to: u32,
        within: Option<u32>,
        value: Word,
        by: Word,
        clamp: Word,
        members: Word,
    },
    Ballot {
        to: u32,
        truth: Truth,
        members: Word,
    },
    /// All threads of the block; what is combined of them.
    Barrier(Option<(bool, u32, Truth)>),
    Matrices {
        to: Vec<u32>,
        transposed: bool,
        address: Address,
    },
    Multiply {
        to: [u32; 4],
        left: [Word; 4],
        right: [Word; 2],
        plus: [Word; 4],
    },
    /// What writes so far is shown to what reads shared memory by itself.
    ShowToAsync,
    /// Four warps: what they have in registers is there for products from here on.
    BeginProducts,
    /// 64 x 64 x 16 of four warps at a time, which goes on beside what they do.
    MultiplyAsync(Box<Product>),
    CommitProducts,
    /// Until so many groups are left.
    AwaitProducts(u32),
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        there: Word,
    },
    CommitCopies,
    /// Until so many groups are left.
    AwaitCopies(u32),
    AwaitAllCopies,
    Jump(u32),
    Return,
}

/// Where the left matrix of a product is.
#[derive(Clone, Copy, Debug)]
pub enum Left {
    /// In shared memory, by rows.
    Shared(Long),
    /// In registers, 16 rows of each warp.
    Registers([Word; 4]),
}

/// A product of four warps.
#[derive(Clone, Debug)]
pub struct Product {
    /// Sums, of each warp 16 rows by 64 columns.
    pub to: Vec<u32>,
    pub left: Left,
    /// The right matrix, in shared memory: by its columns, or where transposed by its rows.
    pub right: Long,
    pub transposed: bool,
    /// Whether it adds to what the sums are.
    pub adds: Truth,
}

#[derive(Clone, Debug)]
pub struct Instruction {
    pub line: Line,
    pub when: Option<Truth>,
    pub op: Op,
}

/// A kernel that can run.
pub struct Kernel {
    pub name: String,
    pub code: Vec<Instruction>,
    pub words: u32,
    pub longs: u32,
    pub truths: u32,
    pub parameter_bytes: u32,
    pub most_threads: Option<u32>,
    /// Bytes of shared memory as the compiler lays it out.
    pub static_bytes: u32,
    /// Arrays in shared memory, from start to end, as they lie here.
    pub shared: Vec<(u32, u32)>,
    /// Where the array begins whose size the launch chooses.
    pub dynamic: u32,
    /// The narrowest access of global memory and of shared: what bytes are watched by.
    pub grain: [u32; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bank {
    Truth,
    Word,
    Long,
}

/// Names and what they mean.
#[derive(Default)]
struct Names {
    scopes: Vec<BTreeMap<String, (Bank, u32)>>,
    /// Series such as `%r<12>`.
    series: Vec<(String, Bank, u32, u32)>,
    counts: [u32; 3],
    /// Addresses of parameters and arrays.
    symbols: BTreeMap<String, u64>,
    labels: BTreeMap<String, u32>,
}

type Decoded<T> = Result<T, String>;

/// Reads the body of `raw`.
pub fn kernel(raw: &RawKernel, dynamic: &[Variable]) -> Result<Kernel, Fault> {
    let at = |line: Line, what: String| Fault { kernel: raw.name.clone(), ..text::fault(line, what) };
    let mut names = Names { scopes: vec![BTreeMap::new()], ..Names::default() };
    for (name, start, _) in &raw.parameters {
        names.symbols.insert(name.clone(), u64::from(*start));
    }
    let parameter_bytes = raw.parameters.last().map_or(0, |(_, _, end)| *end);
    // As the compiler counts, and as they lie here: apart, and aligned to what they declare and to nothing more.
    let (mut static_bytes, mut end, mut shared) = (0u32, SHARED_START, Vec::new());
    let place = |after: u32, align: u32| {
        let start = (after + GAP).next_multiple_of(align);
        if start.is_multiple_of(2 * align) { start + align } else { start }
    };
    for Variable { name, align, bytes } in &raw.shared {
        static_bytes = static_bytes.next_multiple_of(*align) + bytes;
        let start = place(end, *align);
        end = start + bytes;
        shared.push((start, end));
        names.symbols.insert(name.clone(), u64::from(start));
    }
    let start = place(end, dynamic.iter().map(|variable| variable.align).max().unwrap_or(16));
    for Variable { name, align, .. } in dynamic {
        names.symbols.insert(name.clone(), u64::from(start));
        static_bytes = static_bytes.next_multiple_of(*align);
    }
    let mut count = 0;
    for (line, statement) in &raw.body {
        match statement {
            Statement::Label(label) => {
                let other = names.labels.insert(label.clone(), count);
                if other.is_some() {
                    return Err(at(*line, format!("there are two labels {label}")));
                }
            }
            Statement::Instruction(_) => count += 1,
            _ => {}
        }
    }
    let mut code = Vec::new();
    for (line, statement) in &raw.body {
        match statement {
            Statement::Open => names.scopes.push(BTreeMap::new()),
            Statement::Close => drop(names.scopes.pop()),
            Statement::Label(_) => {}
            Statement::Registers { kind, names: list } => {
                names.declare(kind, list).map_err(|what| at(*line, what))?;
            }
            Statement::Instruction(written) => {
                let decoded = instruction(&names, written);
                let (when, op) = decoded.map_err(|why| at(*line, format!("`{written}` is not known: {why}")))?;
                code.push(Instruction { line: *line, when, op });
            }
        }
    }
    if !matches!(code.last(), Some(Instruction { op: Op::Return | Op::Jump(_), when: None, .. })) {
        return Err(at(raw.line, "the body does not end with ret".to_string()));
    }
    let [truths, words, longs] = names.counts;
    let grain = [Space::Global, Space::Shared].map(|space| grain(&code, space));
    Ok(Kernel {
        name: raw.name.clone(),
        code,
        words,
        longs,
        truths,
        parameter_bytes,
        most_threads: raw.most_threads,
        static_bytes,
        shared,
        dynamic: start,
        grain,
    })
}

fn grain(code: &[Instruction], space: Space) -> u32 {
    let of = |instruction: &Instruction| match &instruction.op {
        Op::Load(access) | Op::Store(access) if access.space == space => Some(access.width()),
        Op::CopyAsync { bytes, .. } => Some(*bytes),
        _ => None,
    };
    code.iter().filter_map(of).min().unwrap_or(16).min(16)
}

impl Names {
    fn declare(&mut self, kind: &str, list: &str) -> Decoded<()> {
        let bank = match kind {
            ".pred" => Bank::Truth,
            ".b16" | ".u16" | ".s16" | ".b32" | ".u32" | ".s32" | ".f32" => Bank::Word,
            ".b64" | ".u64" | ".s64" => Bank::Long,
            _ => return Err(format!("registers of {kind} are not known")),
        };
        for name in list.split(',').map(str::trim) {
            let count = &mut self.counts[bank as usize];
            match name.strip_suffix('>').and_then(|name| name.split_once('<')) {
                Some((series, size)) => {
                    let size: u32 = size.parse().map_err(|_| format!("registers {name} are not known"))?;
                    self.series.push((series.to_string(), bank, *count, size));
                    *count += size;
                }
                None => {
                    self.scopes.last_mut().ok_or("no scope")?.insert(name.to_string(), (bank, *count));
                    *count += 1;
                }
            }
        }
        Ok(())
    }

    fn register(&self, name: &str) -> Option<(Bank, u32)> {
        if let Some(found) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Some(*found);
        }
        let letters = name.trim_end_matches(|character: char| character.is_ascii_digit());
        let number: u32 = name[letters.len()..].parse().ok()?;
        let (_, bank, start, size) = self.series.iter().find(|(series, ..)| series == letters)?;
        (number < *size).then_some((*bank, start + number))
    }

    fn of(&self, bank: Bank, name: &str) -> Decoded<u32> {
        match self.register(name) {
            Some((found, number)) if found == bank => Ok(number),
            _ => Err(format!("{name} is no register of this kind")),
        }
    }

    fn number(&self, text: &str) -> Decoded<i128> {
        let unknown = || format!("{text} is neither a register nor a number");
        let hex = |digits: &str| i128::from_str_radix(digits, 16).map_err(|_| unknown());
        if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
            return hex(bits);
        }
        if let Some((symbol, offset)) = self.symbols.get(text).map(|symbol| (symbol, 0)) {
            return Ok(i128::from(*symbol) + offset);
        }
        let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
        let digits = digits.trim_end_matches('U');
        match digits.strip_prefix("0x") {
            Some(digits) => hex(digits).map(|number| sign * number),
            None => digits.parse::<i128>().map(|number| sign * number).map_err(|_| unknown()),
        }
    }

    fn word(&self, text: &str) -> Decoded<Word> {
        match self.register(text) {
            Some((Bank::Word, number)) => Ok(Word::Reg(number)),
            Some(_) => Err(format!("{text} is no register of 32 bits")),
            None => self.number(text).map(|number| Word::Fixed(number as u32)),
        }
    }

    /// Of `bits` bits: what is above them is 0.
    fn narrow(&self, text: &str, bits: u32) -> Decoded<Word> {
        self.word(text).map(|word| match word {
            Word::Fixed(number) if bits == 16 => Word::Fixed(number & 0xffff),
            other => other,
        })
    }

    fn long(&self, text: &str) -> Decoded<Long> {
        match self.register(text) {
            Some((Bank::Long, number)) => Ok(Long::Reg(number)),
            Some(_) => Err(format!("{text} is no register of 64 bits")),
            None => self.number(text).map(|number| Long::Fixed(number as u64)),
        }
    }

    fn either(&self, text: &str, bits: u32) -> Decoded<Either> {
        match (self.register(text), bits) {
            (Some((Bank::Word, number)), _) => Ok(Either::Word(Word::Reg(number))),
            (Some((Bank::Long, number)), _) => Ok(Either::Long(Long::Reg(number))),
            (Some((Bank::Truth, _)), _) => Err(format!("{text} is a predicate")),
            (None, 64) => self.long(text).map(Either::Long),
            (None, _) => self.narrow(text, bits).map(Either::Word),
        }
    }

    fn truth(&self, text: &str) -> Decoded<Truth> {
        let (name, negated) = text.strip_prefix('!').map_or((text, false), |name| (name, true));
        match name {
            "0" => Ok(Truth::Fixed(negated)),
            "-1" | "1" => Ok(Truth::Fixed(!negated)),
            _ => self.of(Bank::Truth, name).map(|reg| Truth::Reg { reg, negated }),
        }
    }

    fn words<const N: usize>(&self, texts: &[&str]) -> Decoded<[Word; N]> {
        let words: Vec<Word> = texts.iter().map(|text| self.word(text)).collect::<Result<_, _>>()?;
        words.try_into().map_err(|_| format!("there should be {N} of {texts:?}"))
    }

    fn address(&self, text: &str) -> Decoded<Address> {
        let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let inside = inside.ok_or_else(|| format!("{text} is no address"))?;
        let (base, offset) = match inside.split_once('+') {
            Some((base, offset)) => (base.trim(), self.number(offset.trim())? as i64),
            None => (inside.trim(), 0),
        };
        Ok(Address { base: self.either(base, 64)?, offset })
    }
}

/// The parts of `{a, b}`, or the one thing that stands there.
fn list(text: &str) -> Vec<&str> {
    match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        Some(inside) => inside.split(',').map(str::trim).collect(),
        None => vec![text],
    }
}

/// Splits at commas that stand in no brackets.
fn operands(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn whole(kind: &str) -> Decoded<Whole> {
    let (letter, bits) = kind.split_at(kind.len().min(1));
    let bits = bits.parse().map_err(|_| format!("the type {kind} is not known"))?;
    match (letter, bits) {
        ("u" | "s" | "b", 8 | 16 | 32 | 64) => Ok(Whole { bits, signed: letter == "s" }),
        _ => Err(format!("the type {kind} is not known")),
    }
}

fn two(name: &str) -> Option<Two> {
    Some(match name {
        "add" => Two::Add,
        "sub" => Two::Sub,
        "div" => Two::Div,
        "rem" => Two::Rem,
        "min" => Two::Min,
        "max" => Two::Max,
        "and" => Two::And,
        "or" => Two::Or,
        "xor" => Two::Xor,
        _ => return None,
    })
}

fn special(name: &str) -> Option<Special> {
    let axis = |axis: &str| ["x", "y", "z"].iter().position(|name| *name == axis);
    if let Some((name, of)) = name.split_once('.') {
        let of = axis(of)?;
        return Some(match name {
            "%tid" => Special::Thread(of),
            "%ntid" => Special::Threads(of),
            "%ctaid" => Special::Block(of),
            "%nctaid" => Special::Blocks(of),
            _ => return None,
        });
    }
    match name {
        "%laneid" => Some(Special::Lane),
        "%warpid" => Some(Special::Warp),
        _ => None,
    }
}

/// How numbers are compared, and whether one that is none makes it true.
fn comparison(name: &str) -> Decoded<(Compare, bool)> {
    Ok(match name {
        "eq" => (Compare::Eq, false),
        "ne" => (Compare::Ne, false),
        "lt" | "lo" => (Compare::Lt, false),
        "le" | "ls" => (Compare::Le, false),
        "gt" | "hi" => (Compare::Gt, false),
        "ge" | "hs" => (Compare::Ge, false),
        "equ" => (Compare::Eq, true),
        "neu" => (Compare::Ne, true),
        "ltu" => (Compare::Lt, true),
        "leu" => (Compare::Le, true),
        "gtu" => (Compare::Gt, true),
        "geu" => (Compare::Ge, true),
        "num" => (Compare::Number, false),
        "nan" => (Compare::NoNumber, true),
        _ => return Err(format!("the comparison {name} is not known")),
    })
}

fn instruction(names: &Names, written: &str) -> Decoded<(Option<Truth>, Op)> {
    let (when, rest) = match written.strip_prefix('@') {
        Some(guarded) => {
            let (guard, rest) = guarded.split_once(char::is_whitespace).ok_or("nothing is guarded")?;
            (Some(names.truth(guard)?), rest.trim())
        }
        None => (None, written),
    };
    let (opcode, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let operands = operands(rest);
    let parts: Vec<&str> = opcode.split('.').collect();
    Ok((when, op(names, &parts, &operands)?))
}

fn op(names: &Names, parts: &[&str], operands: &[&str]) -> Decoded<Op> {
    if let Some(op) = of_whole_numbers(names, parts, operands)? {
        return Ok(op);
    }
    if let Some(op) = of_floats(names, parts, operands)? {
        return Ok(op);
    }
    if let Some(op) = of_warps(names, parts, operands)? {
        return Ok(op);
    }
    let word = |text: &str| names.of(Bank::Word, text);
    let long = |text: &str| names.of(Bank::Long, text);
    let truth = |text: &str| names.of(Bank::Truth, text);
    Ok(match (parts, operands) {
        (["ret"], []) => Op::Return,
        (["bra"] | ["bra", "uni"], [label]) => {
            Op::Jump(*names.labels.get(*label).ok_or_else(|| format!("there is no label {label}"))?)
        }
        (["mov", "pred"], [to, from]) => Op::CopyTruth(truth(to)?, names.truth(from)?),
        (["mov", "b32" | "b64"], [to, from]) if to.starts_with('{') => {
            let to = list(to).into_iter().map(word).collect::<Decoded<Vec<u32>>>()?;
            let to: [u32; 2] = to.try_into().map_err(|_| "it splits into two")?;
            if parts[1] == "b32" { Op::Split32(to, names.word(from)?) } else { Op::Split64(to, names.long(from)?) }
        }
        (["mov", "b32"], [to, from]) if from.starts_with('{') => Op::Join32(word(to)?, names.words(&list(from))?),
        (["mov", "b64"], [to, from]) if from.starts_with('{') => Op::Join64(long(to)?, names.words(&list(from))?),
        (["mov", "u32"], [to, from]) if special(from).is_some() => {
            Op::Special(word(to)?, special(from).ok_or("no such register")?)
        }
        (["mov", "b64" | "u64" | "s64"], [to, from]) => Op::Copy64(long(to)?, names.long(from)?),
        (["mov", "b16" | "u16" | "s16"], [to, from]) => Op::Copy32(word(to)?, names.narrow(from, 16)?),
        (["mov", "b32" | "u32" | "s32" | "f32"], [to, from]) => Op::Copy32(word(to)?, names.word(from)?),
        // Addresses of global memory are the same in generic and in global form.
        (["cvta", "to", "global", "u64"], [to, from]) => Op::Copy64(long(to)?, names.long(from)?),
        (["selp", "b64" | "u64" | "s64"], [to, a, b, on]) => {
            Op::Select64(long(to)?, [names.long(a)?, names.long(b)?], names.truth(on)?)
        }
        (["selp", kind @ ("b16" | "u16" | "s16" | "b32" | "u32" | "s32" | "f32")], [to, a, b, on]) => {
            let bits = if kind.ends_with("16") { 16 } else { 32 };
            Op::Select32(word(to)?, [names.narrow(a, bits)?, names.narrow(b, bits)?], names.truth(on)?)
        }
        (["ld", "param" | "global" | "shared", ..], [values, address]) => {
            Op::Load(access(names, parts, values, address)?)
        }
        (["st", "global" | "shared", ..], [address, values]) => Op::Store(access(names, parts, values, address)?),
        _ => return Err("no such instruction with such operands".to_string()),
    })
}

fn access(names: &Names, parts: &[&str], values: &str, address: &str) -> Decoded<Access> {
    let space = match parts[1] {
        "global" => Space::Global,
        "shared" => Space::Shared,
        _ => Space::Parameter,
    };
    let (count, kind) = match parts[2..] {
        ["v2", kind] => (2, kind),
        ["v4", kind] => (4, kind),
        [kind] => (1, kind),
        _ => return Err("the access is not known".to_string()),
    };
    let whole = if kind == "f32" { Whole { bits: 32, signed: false } } else { whole(kind)? };
    let values: Vec<Either> =
        list(values).into_iter().map(|text| names.either(text, whole.bits)).collect::<Decoded<_>>()?;
    if values.len() != count || count as u32 * whole.bits > 128 {
        return Err(format!("it has {} values", values.len()));
    }
    Ok(Access { space, whole, values, address: names.address(address)? })
}

fn of_whole_numbers(names: &Names, parts: &[&str], operands: &[&str]) -> Decoded<Option<Op>> {
    let word = |text: &str| names.of(Bank::Word, text);
    let long = |text: &str| names.of(Bank::Long, text);
    let truth = |text: &str| names.of(Bank::Truth, text);
    let of = |kind: &str| whole(kind).ok().filter(|whole| whole.bits > 8);
    let words = |texts: &[&str], bits: u32| -> Decoded<[Word; 2]> {
        Ok([names.narrow(texts[0], bits)?, names.narrow(texts[1], bits)?])
    };
    let longs = |texts: &[&str]| -> Decoded<[Long; 2]> { Ok([names.long(texts[0])?, names.long(texts[1])?]) };
    let binary = |two: Two, whole: Whole, to: &str, from: &[&str]| -> Decoded<Op> {
        Ok(match whole.bits {
            64 => Op::Two64(two, whole.signed, long(to)?, longs(from)?),
            bits => Op::Two32(two, whole, word(to)?, words(from, bits)?),
        })
    };
    Ok(Some(match (parts, operands) {
        ([name @ ("and" | "or" | "xor"), "pred"], [to, a, b]) => {
            Op::TruthTwo(two(name).ok_or("no")?, truth(to)?, [names.truth(a)?, names.truth(b)?])
        }
        (["not", "pred"], [to, a]) => Op::TruthNot(truth(to)?, names.truth(a)?),
        (["mul", "wide", kind @ ("u32" | "s32")], [to, a, b]) => {
            Op::Wide { signed: *kind == "s32", to: long(to)?, from: words(&[a, b], 32)?, plus: None }
        }
        (["mad", "wide", kind @ ("u32" | "s32")], [to, a, b, c]) => {
            let plus = Some(names.long(c)?);
            Op::Wide { signed: *kind == "s32", to: long(to)?, from: words(&[a, b], 32)?, plus }
        }
        (["mul", half @ ("lo" | "hi"), kind], [to, a, b]) => {
            let whole = whole(kind)?;
            if *half == "hi" && whole.bits == 16 {
                return Ok(None);
            }
            binary(if *half == "lo" { Two::Mul } else { Two::MulHigh }, whole, to, &[a, b])?
        }
        (["mad", "lo", kind], [to, a, b, c]) => match whole(kind)? {
            Whole { bits: 64, .. } => Op::MulAdd64(long(to)?, [names.long(a)?, names.long(b)?, names.long(c)?]),
            whole => Op::MulAdd32(whole, word(to)?, names.words(&[a, b, c])?),
        },
        (["shl" | "shr", kind], [to, from, by]) => {
            let (left, Some(whole)) = (parts[0] == "shl", of(kind)) else { return Ok(None) };
            match whole.bits {
                64 => {
                    let (from, by) = (names.long(from)?, names.word(by)?);
                    Op::Shift64 { left, signed: whole.signed, to: long(to)?, from, by }
                }
                bits => {
                    Op::Shift32 { left, whole, to: word(to)?, from: [names.narrow(from, bits)?, names.word(by)?] }
                }
            }
        }
        ([name @ ("not" | "neg" | "abs" | "brev" | "clz" | "popc"), kind], [to, from]) => {
            let Some(whole) = of(kind) else { return Ok(None) };
            let one = match *name {
                "not" => BitsOne::Not,
                "neg" => BitsOne::Neg,
                "abs" => BitsOne::Abs { half: whole.bits == 16 },
                "brev" => BitsOne::Reversed,
                "clz" => BitsOne::LeadingZeros,
                _ => BitsOne::Ones,
            };
            match (whole.bits, one) {
                (64, BitsOne::Not | BitsOne::Neg | BitsOne::Abs { .. }) => {
                    Op::One64(one, long(to)?, names.long(from)?)
                }
                (64, _) | (16, BitsOne::Reversed | BitsOne::LeadingZeros | BitsOne::Ones) => return Ok(None),
                (bits, _) => Op::One32(one, whole, word(to)?, names.narrow(from, bits)?),
            }
        }
        (["bfind", shift @ .., kind @ ("u32" | "s32")], [to, from]) if matches!(shift, [] | ["shiftamt"]) => {
            let one = BitsOne::Highest { signed: *kind == "s32", shift: !shift.is_empty() };
            Op::One32(one, whole(kind)?, word(to)?, names.word(from)?)
        }
        (["bfi", "b32"], [to, a, b, c, d]) => Op::InsertBits(word(to)?, names.words(&[a, b, c, d])?),
        (["bfi", "b64"], [to, a, b, c, d]) => Op::InsertBits64(long(to)?, longs(&[a, b])?, names.words(&[c, d])?),
        (["prmt", "b32"], [to, a, b, c]) => Op::Permute(word(to)?, names.words(&[a, b, c])?),
        (["setp", how, kind], [to, a, b]) if of(kind).is_some() => {
            let (whole, (how, or_none)) = (whole(kind)?, comparison(how)?);
            if or_none || how == Compare::Number {
                return Ok(None);
            }
            match whole.bits {
                64 => Op::Compare64(how, whole.signed, truth(to)?, longs(&[a, b])?),
                bits => Op::Compare32(how, whole, truth(to)?, words(&[a, b], bits)?),
            }
        }
        (["cvt", to_kind, from_kind], [to, from]) => {
            let (Ok(to_whole), Ok(from_whole)) = (whole(to_kind), whole(from_kind)) else { return Ok(None) };
            let value = names.either(from, from_whole.bits)?;
            let to = if to_whole.bits == 64 { long(to)? } else { word(to)? };
            Op::Resize { from: from_whole, to_bits: to_whole.bits, to, value }
        }
        ([name, kind], [to, a, b]) => match (two(name), of(kind)) {
            (Some(two), Some(whole)) => binary(two, whole, to, &[a, b])?,
            _ => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

fn of_floats(names: &Names, parts: &[&str], operands: &[&str]) -> Decoded<Option<Op>> {
    let word = |text: &str| names.of(Bank::Word, text);
    let float_two = |two: FloatTwo, to: &str, a: &str, b: &str| -> Decoded<Op> {
        Ok(Op::FloatTwo(two, word(to)?, names.words(&[a, b])?))
    };
    let float_one = |one: FloatOne, flushes: bool, to: &str, from: &str| -> Decoded<Op> {
        Ok(Op::FloatOne(one, flushes, word(to)?, names.word(from)?))
    };
    Ok(Some(match (parts, operands) {
        (["add", "f32"] | ["add", "rn", "f32"], [to, a, b]) => float_two(FloatTwo::Add, to, a, b)?,
        (["sub", "f32"] | ["sub", "rn", "f32"], [to, a, b]) => float_two(FloatTwo::Sub, to, a, b)?,
        (["mul", "f32"] | ["mul", "rn", "f32"], [to, a, b]) => float_two(FloatTwo::Mul, to, a, b)?,
        (["div", "rn", "f32"], [to, a, b]) => float_two(FloatTwo::Div, to, a, b)?,
        (["min", "f32"], [to, a, b]) => float_two(FloatTwo::Min, to, a, b)?,
        (["max", "f32"], [to, a, b]) => float_two(FloatTwo::Max, to, a, b)?,
        // The sign is that of the first.
        (["copysign", "f32"], [to, a, b]) => float_two(FloatTwo::CopySign, to, a, b)?,
        (["neg", "f32"], [to, from]) => float_one(FloatOne::Neg, false, to, from)?,
        (["abs", "f32"], [to, from]) => float_one(FloatOne::Abs, false, to, from)?,
        (["sqrt", "rn", "f32"], [to, from]) => float_one(FloatOne::Root, false, to, from)?,
        (["rcp", "rn", "f32"], [to, from]) => float_one(FloatOne::Reciprocal, false, to, from)?,
        (["rcp", "approx", "ftz", "f32"], [to, from]) => float_one(FloatOne::Reciprocal, true, to, from)?,
        (["ex2", "approx", "f32"], [to, from]) => float_one(FloatOne::PowerOf2, false, to, from)?,
        (["ex2", "approx", "ftz", "f32"], [to, from]) => float_one(FloatOne::PowerOf2, true, to, from)?,
        (["lg2", "approx", "f32"], [to, from]) => float_one(FloatOne::Log2, false, to, from)?,
        (["lg2", "approx", "ftz", "f32"], [to, from]) => float_one(FloatOne::Log2, true, to, from)?,
        (["cvt", "sat", "f32", "f32"], [to, from]) => float_one(FloatOne::Saturated, false, to, from)?,
        (["fma", way @ ("rn" | "rm"), "f32"], [to, a, b, c]) => {
            Op::Fma { down: *way == "rm", to: word(to)?, from: names.words(&[a, b, c])? }
        }
        (["setp", how, "f32"], [to, a, b]) => {
            let (how, or_none) = comparison(how)?;
            Op::CompareFloat(how, or_none, names.of(Bank::Truth, to)?, names.words(&[a, b])?)
        }
        (["cvt", "rn", "f32", kind @ ("s32" | "u32" | "s64" | "u64")], [to, from]) => {
            let whole = whole(kind)?;
            Op::FloatOfWhole { signed: whole.signed, to: word(to)?, value: names.either(from, whole.bits)? }
        }
        (["cvt", "rzi", kind @ ("s32" | "u32"), "f32"], [to, from]) => {
            Op::WholeOfFloat { whole: whole(kind)?, to: word(to)?, value: names.word(from)? }
        }
        // The first lies above.
        (["cvt", "rn", "bf16x2", "f32"], [to, high, low]) => Op::PairOfBf16(word(to)?, names.words(&[high, low])?),
        _ => return Ok(None),
    }))
}

fn of_warps(names: &Names, parts: &[&str], operands: &[&str]) -> Decoded<Option<Op>> {
    let word = |text: &str| names.of(Bank::Word, text);
    let registers = |text: &str| -> Decoded<Vec<u32>> { list(text).into_iter().map(word).collect() };
    Ok(Some(match (parts, operands) {
        (["shfl", "sync", way, "b32"], [to, value, by, clamp, members]) => {
            let way = match *way {
                "bfly" => Handing::Xor,
                "up" => Handing::Up,
                "down" => Handing::Down,
                "idx" => Handing::Index,
                _ => return Ok(None),
            };
            let (to, within) = to.split_once('|').map_or((*to, None), |(to, within)| (to, Some(within)));
            let within = within.map(|within| names.of(Bank::Truth, within)).transpose()?;
            let [value, by, clamp, members] = names.words(&[value, by, clamp, members])?;
            Op::Shuffle { way, to: word(to)?, within, value, by, clamp, members }
        }
        (["vote", "sync", "ballot", "b32"], [to, truth, members]) => {
            Op::Ballot { to: word(to)?, truth: names.truth(truth)?, members: names.word(members)? }
        }
        // Of all threads of the block, and of the first of its barriers.
        (["bar" | "barrier", "sync"] | ["barrier", "sync", "aligned"], ["0"]) => Op::Barrier(None),
        (["bar", "red", how @ ("or" | "and"), "pred"], [to, "0", truth]) => {
            Op::Barrier(Some((*how == "or", names.of(Bank::Truth, to)?, names.truth(truth)?)))
        }
        (["ldmatrix", "sync", "aligned", "m8n8", count, rest @ ..], [to, address]) => {
            let transposed = match rest {
                ["trans", "shared", "b16"] => true,
                ["shared", "b16"] => false,
                _ => return Ok(None),
            };
            let to = registers(to)?;
            if to.len() != count.trim_start_matches('x').parse().unwrap_or(0) || ![1, 2, 4].contains(&to.len()) {
                return Err(format!("it fills {} registers", to.len()));
            }
            Op::Matrices { to, transposed, address: names.address(address)? }
        }
        (
            ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"],
            [to, left, right, plus],
        ) => {
            let to = registers(to)?.try_into().map_err(|_| "its result is four registers")?;
            let [left, plus] = [left, plus].map(|text| names.words(&list(text)));
            Op::Multiply { to, left: left?, right: names.words(&list(right))?, plus: plus? }
        }
        (["fence", "proxy", "async", "shared::cta"], []) => Op::ShowToAsync,
        (["wgmma", "fence", "sync", "aligned"], []) => Op::BeginProducts,
        (["wgmma", "commit_group", "sync", "aligned"], []) => Op::CommitProducts,
        (["wgmma", "wait_group", "sync", "aligned"], [left]) => Op::AwaitProducts(names.number(left)? as u32),
        // Neither matrix negated.
        (
            ["wgmma", "mma_async", "sync", "aligned", "m64n64k16", "f32", "bf16", "bf16"],
            [to, left, right, adds, "1", "1", transposed @ ..],
        ) => {
            let (left, transposed) = match transposed {
                ["0", of_right] => (Left::Shared(names.long(left)?), *of_right),
                [of_right] => (Left::Registers(names.words(&list(left))?), *of_right),
                _ => return Ok(None),
            };
            let to = registers(to)?;
            if to.len() != 32 || !["0", "1"].contains(&transposed) {
                return Err(format!("its result is {} registers", to.len()));
            }
            let (right, adds) = (names.long(right)?, names.truth(adds)?);
            Op::MultiplyAsync(Box::new(Product { to, left, right, transposed: transposed == "1", adds }))
        }
        (
            ["cp", "async", cache @ ("ca" | "cg"), "shared" | "shared::cta", "global"],
            [to, from, bytes, rest @ ..],
        ) => {
            let bytes = names.number(bytes)? as u32;
            if !(bytes == 16 || *cache == "ca" && [4, 8].contains(&bytes)) {
                return Err(format!("it copies no {bytes} bytes"));
            }
            let there = match rest {
                [] => Word::Fixed(bytes),
                [there] => names.word(there)?,
                _ => return Ok(None),
            };
            Op::CopyAsync { to: names.address(to)?, from: names.address(from)?, bytes, there }
        }
        (["cp", "async", "commit_group"], []) => Op::CommitCopies,
        (["cp", "async", "wait_group"], [left]) => Op::AwaitCopies(names.number(left)? as u32),
        (["cp", "async", "wait_all"], []) => Op::AwaitAllCopies,
        _ => return Ok(None),
    }))
}
