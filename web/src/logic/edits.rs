//! Which changes of the form are one step of the browser's history: a number typed digit by digit is one, however long a
//! hand rests between two digits.

/// Changes of the form, grouped as a person sees them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Edits {
    /// The edit under way, or the last one.
    number: u32,
    /// The field that is being typed in.
    field: Option<&'static str>,
    /// The edit that the newest entry of the history holds.
    written: Option<u32>,
}

impl Edits {
    /// A person types in `field`: the same edit until something else happens.
    pub fn typed(&mut self, field: &'static str) {
        if self.field != Some(field) {
            self.other();
            self.field = Some(field);
        }
    }

    /// Something else has changed the form.
    pub fn other(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.field = None;
    }

    /// A person left the field, or pressed Enter in it. The next typing is another edit.
    pub fn ended(&mut self) {
        self.field = None;
    }

    /// The form comes from the address: its link replaces that entry.
    pub fn opened(&mut self) {
        self.other();
        self.written = Some(self.number);
    }

    /// The form goes into the history. Whether it takes the place of the newest entry, which is of the same edit.
    pub fn write(&mut self) -> bool {
        self.written.replace(self.number) == Some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_typed_slowly_is_one_entry() {
        let mut edits = Edits::default();
        edits.opened();
        assert!(edits.write(), "the form that the address says");
        edits.typed("training.microbatches");
        assert!(!edits.write(), "the first digit comes after it");
        edits.typed("training.microbatches");
        edits.typed("training.microbatches");
        assert!(edits.write(), "further digits take its place");
        edits.typed("parallel.pipeline");
        assert!(!edits.write(), "another field");
        edits.typed("parallel.pipeline");
        edits.ended();
        assert!(edits.write(), "what was typed before the field was left");
        edits.typed("parallel.pipeline");
        assert!(!edits.write(), "what is typed in it later");
        edits.other();
        assert!(!edits.write(), "a choice");
    }

    #[test]
    fn digits_typed_at_once_come_after_what_was_there() {
        let mut edits = Edits::default();
        // Before the link that was opened has been written again.
        edits.opened();
        edits.typed("training.microbatches");
        edits.typed("training.microbatches");
        assert!(!edits.write());
    }
}
