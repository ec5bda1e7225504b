//! What an instruction is, decoded: its operation and its operands.

use crate::Line;

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
pub enum ShuffleMode {
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
        way: ShuffleMode,
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
    /// 64 x 64 x 16 of four warps at a time, asynchronous to them.
    MultiplyAsync(Box<Product>),
    CommitProducts,
    /// Until at most that number of groups is left.
    AwaitProducts(u32),
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        there: Word,
    },
    CommitCopies,
    /// Until at most that number of groups is left.
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
