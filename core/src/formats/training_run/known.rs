//! Tables of arguments: what each decides, and how many values it takes.

/// What is done with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It decides the plan, and is used.
    Used,
    /// It does not change the plan.
    Harmless,
    /// It changes the plan a little, and is planned otherwise, as this says.
    Told(&'static str),
    /// It changes the plan, and no spec can express it, for this reason.
    Refused(&'static str),
}

/// How many values an argument takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// It is a switch.
    None,
    /// One.
    One,
    /// One or more, or nobody knows.
    Many,
}

/// What is known of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What is done with it.
    pub class: Class,
    /// The values that it takes.
    pub values: Values,
    /// Values with which it changes nothing, with blanks between them.
    pub(super) neutral: &'static str,
}

impl Known {
    /// Whether it says nothing with this value, as a log has it.
    pub fn is_neutral(&self, value: &str) -> bool {
        matches!(value, "None" | "False" | "false" | "null" | "[]")
            || !value.is_empty() && self.neutral.split(' ').any(|one| one == value)
            || self.class != Class::Used && matches!(value, "0" | "0.0")
    }
}

/// Arguments of one framework by what is done with them. `=` takes one value, `+` several, nothing is a switch; `checkpoint.*`
/// stands for all of a table.
pub(super) struct Table {
    /// They decide the plan.
    pub used: &'static [&'static str],
    /// Names, values that change nothing, how it is planned.
    pub told: &'static [(&'static str, &'static str, &'static str)],
    /// Names, values that change nothing, the reason.
    pub refused: &'static [(&'static str, &'static str, &'static str)],
    /// They do not change the plan.
    pub harmless: &'static [&'static str],
}

impl Table {
    /// The argument of this name, with `_` between its words.
    pub fn find(&self, name: &str) -> Option<Known> {
        let listed = |lists: &[&'static str], class| {
            let entry = lists.iter().flat_map(|list| list.split_whitespace()).find(|entry| is_of(entry, name))?;
            Some(Known { class, values: values_of(entry), neutral: "" })
        };
        let reasoned = |rows: &[(&'static str, &'static str, &'static str)], class: fn(&'static str) -> Class| {
            rows.iter().find_map(|(entries, neutral, reason)| {
                let entry = entries.split_whitespace().find(|entry| is_of(entry, name))?;
                Some(Known { class: class(reason), values: values_of(entry), neutral })
            })
        };
        listed(self.used, Class::Used)
            .or_else(|| reasoned(self.told, Class::Told))
            .or_else(|| reasoned(self.refused, Class::Refused))
            .or_else(|| listed(self.harmless, Class::Harmless))
    }
}

fn is_of(entry: &str, name: &str) -> bool {
    match entry.strip_suffix('*') {
        Some(table) => name.starts_with(table),
        None => entry.trim_end_matches(['=', '+']) == name,
    }
}

fn values_of(entry: &str) -> Values {
    match entry.chars().next_back() {
        Some('=') => Values::One,
        Some('+' | '*') => Values::Many,
        _ => Values::None,
    }
}
