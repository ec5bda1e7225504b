//! From text to statements: kernels with their registers, variables, labels and instructions as they are written.

use std::collections::BTreeMap;

use crate::{Fault, Line};

/// A statement of a kernel's body.
#[derive(Debug)]
pub enum Statement {
    /// `{`: names from here on are of this scope.
    Open,
    /// `}`.
    Close,
    /// `.reg TYPE NAMES`.
    Registers { kind: String, names: String },
    /// A place that is jumped to.
    Label(String),
    /// An instruction, as written.
    Instruction(String),
}

/// An array in shared memory.
#[derive(Clone, Debug)]
pub struct Variable {
    pub name: String,
    pub align: u32,
    pub bytes: u32,
}

/// A kernel as written.
#[derive(Debug)]
pub struct RawKernel {
    pub name: String,
    pub line: Line,
    /// Names, starts and ends of its parameters among their bytes.
    pub parameters: Vec<(String, u32, u32)>,
    pub most_threads: Option<u32>,
    pub shared: Vec<Variable>,
    pub body: Vec<(Line, Statement)>,
}

/// A text as written.
#[derive(Debug, Default)]
pub struct Raw {
    pub kernels: Vec<RawKernel>,
    /// The array whose size a launch chooses.
    pub dynamic: Vec<Variable>,
    pub files: BTreeMap<u32, String>,
}

/// Directives that end with their line.
const OF_A_LINE: [&str; 4] = [".version", ".target", ".address_size", ".file"];

pub fn fault(line: Line, what: String) -> Fault {
    Fault { kernel: String::new(), what, line: line.ptx, source: None, block: None, thread: None }
}

/// Splits `text` into kernels and their statements.
///
/// # Errors
/// What is not known.
pub fn read(text: &str) -> Result<Raw, Fault> {
    let mut raw = Raw::default();
    let mut kernel: Option<RawKernel> = None;
    let mut depth = 0;
    let mut at = Line::default();
    let mut pending = String::new();
    // Sections hold names for debuggers.
    let mut skipped: Option<u32> = None;
    for (number, written) in text.lines().enumerate() {
        let line = written.split("//").next().unwrap_or_default();
        let start = line.trim();
        at.ptx = number as u32 + 1;
        if let Some(open) = &mut skipped {
            *open += line.matches('{').count() as u32;
            let closed = line.matches('}').count() as u32;
            *open = open.saturating_sub(closed);
            if closed > 0 && *open == 0 {
                skipped = None;
            }
            continue;
        }
        if pending.is_empty() {
            if start.starts_with(".section") {
                skipped = Some(start.matches('{').count() as u32);
                continue;
            }
            if let Some(place) = start.strip_prefix(".loc") {
                let mut numbers = place.split_whitespace().map(|word| word.trim_end_matches(',').parse::<u32>());
                if let (Some(Ok(file)), Some(Ok(line))) = (numbers.next(), numbers.next()) {
                    (at.file, at.line) = (file, line);
                }
                continue;
            }
            if let Some(directive) = OF_A_LINE.iter().find(|directive| start.starts_with(**directive)) {
                if *directive == ".file" {
                    let mut words = start.split_whitespace().skip(1);
                    let number = words.next().and_then(|word| word.parse().ok());
                    let name = words.next().map(|name| name.trim_matches(['"', ',']));
                    // Without the folder in which it was compiled.
                    let name = name.and_then(|name| name.rsplit('/').next()).map(str::to_string);
                    raw.files.extend(number.zip(name));
                }
                continue;
            }
        }
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            let is_heading = kernel.is_none() && pending.trim_start().starts_with('.');
            match character {
                ';' => {
                    let statement = std::mem::take(&mut pending);
                    match &mut kernel {
                        Some(kernel) => of_body(kernel, at, statement.trim())?,
                        None => of_module(&mut raw, at, statement.trim())?,
                    }
                }
                '{' if pending.trim().is_empty() || is_heading => {
                    depth += 1;
                    let heading = std::mem::take(&mut pending);
                    match &mut kernel {
                        Some(kernel) => kernel.body.push((at, Statement::Open)),
                        None => kernel = Some(heading_of(at, heading.trim())?),
                    }
                }
                '}' if pending.trim().is_empty() => {
                    depth -= 1;
                    pending.clear();
                    match (&mut kernel, depth) {
                        (Some(_), 0) => raw.kernels.extend(kernel.take()),
                        (Some(kernel), _) => kernel.body.push((at, Statement::Close)),
                        (None, _) => return Err(fault(at, "a `}` that closes nothing".to_string())),
                    }
                }
                ':' if characters.peek() != Some(&':') && is_name(pending.trim()) && kernel.is_some() => {
                    let label = std::mem::take(&mut pending).trim().to_string();
                    kernel.iter_mut().for_each(|kernel| kernel.body.push((at, Statement::Label(label.clone()))));
                }
                ':' if characters.peek() == Some(&':') => {
                    characters.next();
                    pending.push_str("::");
                }
                other => pending.push(other),
            }
        }
        match pending.trim().is_empty() {
            true => pending.clear(),
            false => pending.push(' '),
        }
    }
    match kernel.is_some() || !pending.trim().is_empty() {
        true => Err(fault(at, "the text ends within a kernel or a statement".to_string())),
        false => Ok(raw),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|character| character.is_alphanumeric() || "$_%".contains(character))
}

/// A statement outside of kernels.
fn of_module(raw: &mut Raw, at: Line, statement: &str) -> Result<(), Fault> {
    match statement.strip_prefix(".extern .shared") {
        Some(variable) => raw.dynamic.push(shared(at, variable)?),
        // Whatever uses one is refused: its name means nothing.
        None if statement.starts_with(".global") => {}
        None => return Err(fault(at, format!("`{statement}` is not known here"))),
    }
    Ok(())
}

/// A statement within a kernel.
fn of_body(kernel: &mut RawKernel, at: Line, statement: &str) -> Result<(), Fault> {
    let statement = match statement.split_once(char::is_whitespace) {
        Some((".pragma", _)) => return Ok(()),
        Some((".shared", variable)) => {
            kernel.shared.push(shared(at, variable)?);
            return Ok(());
        }
        Some((".reg", registers)) => {
            let unknown = || fault(at, format!("`{statement}` is not known"));
            let (kind, names) = registers.trim().split_once(char::is_whitespace).ok_or_else(unknown)?;
            Statement::Registers { kind: kind.to_string(), names: names.trim().to_string() }
        }
        _ if statement.starts_with('.') => return Err(fault(at, format!("`{statement}` is not known"))),
        _ => Statement::Instruction(statement.to_string()),
    };
    kernel.body.push((at, statement));
    Ok(())
}

/// `.align 4 .b8 name[128]`, the number left out where a launch chooses it.
fn shared(at: Line, text: &str) -> Result<Variable, Fault> {
    let unknown = || fault(at, format!("the variable `{text}` is not known"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let [".align", align, ".b8", name] = words[..] else { return Err(unknown()) };
    let (name, size) = name.trim_end_matches(']').split_once('[').ok_or_else(unknown)?;
    let bytes = if size.is_empty() { 0 } else { size.parse().map_err(|_| unknown())? };
    Ok(Variable { name: name.to_string(), align: align.parse().map_err(|_| unknown())?, bytes })
}

/// `.visible .entry name( parameters ) .maxntid x, y, z`.
fn heading_of(at: Line, heading: &str) -> Result<RawKernel, Fault> {
    let unknown = |what: &str| fault(at, format!("`{what}` is not known in a kernel's heading"));
    let (before, rest) = heading.split_once('(').ok_or_else(|| unknown(heading))?;
    let (inside, after) = rest.split_once(')').ok_or_else(|| unknown(heading))?;
    let [".visible", ".entry", name] = before.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(unknown(before));
    };
    let mut parameters = Vec::new();
    let mut end = 0u32;
    for parameter in inside.split(',').map(str::trim).filter(|parameter| !parameter.is_empty()) {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        let number = |text: &str| text.parse::<u32>().map_err(|_| unknown(parameter));
        let (align, bytes, name) = match words[..] {
            [".param", ".align", align, ".b8", array] => {
                let (name, size) = array.trim_end_matches(']').split_once('[').ok_or_else(|| unknown(parameter))?;
                (number(align)?, number(size)?, name)
            }
            [".param", ".u64" | ".b64" | ".s64", name] => (8, 8, name),
            [".param", ".u32" | ".b32" | ".s32" | ".f32", name] => (4, 4, name),
            _ => return Err(unknown(parameter)),
        };
        let start = end.next_multiple_of(align);
        end = start + bytes;
        parameters.push((name.to_string(), start, end));
    }
    let mut most_threads = None;
    if !after.trim().is_empty() {
        let sizes = after.trim().strip_prefix(".maxntid").ok_or_else(|| unknown(after))?;
        let sizes: Result<Vec<u32>, _> = sizes.split(',').map(|size| size.trim().parse()).collect();
        most_threads = Some(sizes.map_err(|_| unknown(after))?.iter().product());
    }
    Ok(RawKernel { name: name.to_string(), line: at, parameters, most_threads, shared: Vec::new(), body: Vec::new() })
}
