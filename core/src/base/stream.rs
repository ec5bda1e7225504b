//! JSON that is read while it is parsed: a reader says what becomes of a list, a table or a number where it stands, and no tree of
//! values is made of the whole.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::fields::{Fault, shown};

/// More faults than these are not looked for: a person reads the first ones.
const MOST_FAULTS: usize = 10_000;
/// Most entries of a list that is not wanted, as a fault shows it.
const MOST_SHOWN: usize = 1 << 16;

/// The place of a value, for its faults.
#[derive(Clone, Copy)]
pub(crate) enum Path<'p> {
    /// The whole.
    Top,
    /// A field of a table.
    Field(&'p Path<'p>, &'p str),
    /// An entry of a list.
    Entry(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Top => Ok(()),
            Path::Field(Path::Top, name) => f.write_str(name),
            Path::Field(of, name) => write!(f, "{of}.{name}"),
            Path::Entry(of, index) => write!(f, "{of}[{index}]"),
        }
    }
}

/// Collects faults.
#[derive(Default)]
pub(crate) struct Found {
    faults: Vec<Fault>,
    gave_up: bool,
}

impl Found {
    /// One more.
    ///
    /// # Errors
    /// Where there are so many that reading ends.
    pub(crate) fn fault<E: Error>(&mut self, fault: Fault) -> Result<(), E> {
        self.faults.push(fault);
        if self.faults.len() < MOST_FAULTS {
            return Ok(());
        }
        self.gave_up = true;
        Err(E::custom("too many faults"))
    }

    /// Where a reader of fields puts its own.
    pub(crate) fn faults(&mut self) -> &mut Vec<Fault> {
        &mut self.faults
    }

    /// All faults, where reading has ended because of them.
    pub(crate) fn too_many(&mut self) -> Option<Vec<Fault>> {
        self.gave_up.then(|| {
            let last = Fault::new("the whole input", "more faults than these", "a sound file");
            self.faults.push(last);
            core::mem::take(&mut self.faults)
        })
    }
}

/// What is wanted of a value. What it does not take is a fault, or is skipped.
pub(crate) trait Wanted<'de>: Sized {
    /// What it gives.
    type Out;

    /// For anything that is not taken: a number, a flag, null, a text; of lists and tables their kind and length.
    fn other<E: Error>(self, value: Value) -> Result<Self::Out, E>;

    /// For a whole number.
    fn number<E: Error>(self, number: u64) -> Result<Self::Out, E> {
        self.other(Value::from(number))
    }

    /// For a text.
    fn text<E: Error>(self, text: &str) -> Result<Self::Out, E> {
        self.other(Value::from(text))
    }

    /// For a text that stands in the input as it is.
    fn borrowed<E: Error>(self, text: &'de str) -> Result<Self::Out, E> {
        self.text(text)
    }

    /// For a list.
    fn list<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Out, A::Error> {
        let mut count = 0usize;
        while entries.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        self.other(Value::Array(vec![Value::Null; count.min(MOST_SHOWN)]))
    }

    /// For a table.
    fn table<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Out, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.other(Value::Object(Map::new()))
    }
}

/// Makes a reader of what is wanted.
pub(crate) struct Reader<W>(pub(crate) W);

impl<'de, W: Wanted<'de>> DeserializeSeed<'de> for Reader<W> {
    type Value = W::Out;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<W::Out, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, W: Wanted<'de>> Visitor<'de> for Reader<W> {
    type Value = W::Out;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<W::Out, E> {
        self.0.other(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<W::Out, E> {
        self.0.other(Value::from(flag))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<W::Out, E> {
        self.0.number(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<W::Out, E> {
        self.0.other(Value::from(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<W::Out, E> {
        self.0.other(Value::from(number))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<W::Out, E> {
        self.0.borrowed(text)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<W::Out, E> {
        self.0.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<W::Out, A::Error> {
        self.0.list(entries)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<W::Out, A::Error> {
        self.0.table(fields)
    }
}

/// A value as a fault shows it; of lists and tables their kind and length.
pub(crate) struct Outline;

impl Wanted<'_> for Outline {
    type Out = Value;

    fn other<E: Error>(self, value: Value) -> Result<Value, E> {
        Ok(value)
    }
}

/// A table whose fields a reader takes one by one.
pub(crate) trait Fields<'de> {
    /// The fields that [`Fields::field`] takes; all others are collected as outlines.
    const TAKEN: &'static [&'static str];

    /// Takes the value of the field with this number, at `path`.
    ///
    /// # Errors
    /// As the parser's.
    fn field<A: MapAccess<'de>>(
        &mut self,
        field: usize,
        path: &Path<'_>,
        fields: &mut A,
        found: &mut Found,
    ) -> Result<(), A::Error>;
}

/// A table of `fields` at `path`. Gives the outlines of all fields that those do not take; none where it is no table.
pub(crate) struct TableOf<'a, F> {
    pub(crate) fields: &'a mut F,
    pub(crate) path: &'a Path<'a>,
    pub(crate) found: &'a mut Found,
}

impl<'de, F: Fields<'de>> Wanted<'de> for TableOf<'_, F> {
    type Out = Option<Value>;

    fn other<E: Error>(self, value: Value) -> Result<Self::Out, E> {
        let path = match self.path {
            Path::Top => String::from("the whole input"),
            path => format!("{path}"),
        };
        self.found.fault(Fault::new(path, shown(&value), "a table of fields"))?;
        Ok(None)
    }

    fn table<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Out, A::Error> {
        let mut others = Map::new();
        let mut taken = 0u32;
        while let Some(key) = fields.next_key::<String>()? {
            match F::TAKEN.iter().position(|known| *known == key) {
                Some(known) if taken & (1 << known) == 0 => {
                    taken |= 1 << known;
                    self.fields.field(known, &Path::Field(self.path, F::TAKEN[known]), &mut fields, self.found)?;
                }
                None if !others.contains_key(&key) => {
                    let value = fields.next_value_seed(Reader(Outline))?;
                    others.insert(key, value);
                }
                _ => return Err(A::Error::custom(format_args!("the field {key:?} is given twice"))),
            }
        }
        Ok(Some(Value::Object(others)))
    }
}

/// A list of at most `most` entries, each of which `entry` takes; null counts as absent.
pub(crate) struct ListOf<'a, F> {
    pub(crate) most: usize,
    pub(crate) path: &'a Path<'a>,
    pub(crate) found: &'a mut Found,
    pub(crate) entry: F,
}

/// Takes the entries of a list.
pub(crate) trait Entry<'de> {
    /// Takes the one that comes next, which is at `path`; false where there is none.
    ///
    /// # Errors
    /// As the parser's.
    fn next<A: SeqAccess<'de>>(
        &mut self,
        entries: &mut A,
        path: &Path<'_>,
        found: &mut Found,
    ) -> Result<bool, A::Error>;
}

impl<'de, F: Entry<'de>> Wanted<'de> for ListOf<'_, F> {
    type Out = F;

    fn other<E: Error>(self, value: Value) -> Result<F, E> {
        if !value.is_null() {
            let accepted = format!("a list of at most {}", self.most);
            self.found.fault(Fault::new(format!("{}", self.path), shown(&value), accepted))?;
        }
        Ok(self.entry)
    }

    fn list<A: SeqAccess<'de>>(mut self, mut entries: A) -> Result<F, A::Error> {
        for index in 0..self.most {
            if !self.entry.next(&mut entries, &Path::Entry(self.path, index), self.found)? {
                return Ok(self.entry);
            }
        }
        let mut count = self.most;
        while entries.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        if count > self.most {
            let accepted = format!("a list of at most {}", self.most);
            self.found.fault(Fault::new(format!("{}", self.path), format!("a list of {count}"), accepted))?;
        }
        Ok(self.entry)
    }
}
