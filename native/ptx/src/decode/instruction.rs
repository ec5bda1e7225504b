//! The text of one instruction, decoded.

use super::Decoded;
use super::names::{Bank, Names};
use super::op::{
    Access, BitsOne, Compare, Either, FloatOne, FloatTwo, Left, Long, Op, Product, ShuffleMode, Space, Special,
    Truth, Two, Whole, Word,
};

/// The parts of `{a, b}`, or the one thing that stands there.
pub(super) fn list(text: &str) -> Vec<&str> {
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

pub(super) fn whole(kind: &str) -> Decoded<Whole> {
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

pub(super) fn instruction(names: &Names, written: &str) -> Decoded<(Option<Truth>, Op)> {
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

pub(super) fn op(names: &Names, parts: &[&str], operands: &[&str]) -> Decoded<Op> {
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

pub(super) fn access(names: &Names, parts: &[&str], values: &str, address: &str) -> Decoded<Access> {
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
                "bfly" => ShuffleMode::Xor,
                "up" => ShuffleMode::Up,
                "down" => ShuffleMode::Down,
                "idx" => ShuffleMode::Index,
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
