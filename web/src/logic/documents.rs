//! Documents in the form, in words and in a link.

use std::borrow::Cow;

use pipeplan_core::spec::{Distribution, Documents, Draw, Spec, Work};
use serde_json::{Value, json};

use crate::text;

/// With more documents a link is longer than chat and mail carry.
pub const MOST_LINKED: usize = 4096;

/// The seed of documents that a link draws.
const SEED: u64 = 1;

/// `spec` as a link has it: more documents than [`MOST_LINKED`] as a histogram of their lengths, where the step that is drawn of it
/// has no more documents than a step may have.
pub fn linked(of_step: &Spec) -> Cow<'_, Spec> {
    let spec = of_step;
    let Work::Model(work) = &spec.work else { return Cow::Borrowed(spec) };
    let Documents::OfStep(lengths) = &work.batch.documents else { return Cow::Borrowed(spec) };
    if lengths.len() <= MOST_LINKED {
        return Cow::Borrowed(spec);
    }
    let mut rising: Vec<u64> = lengths.iter().map(|length| u64::from(*length)).collect();
    rising.sort_unstable();
    let counts: Vec<(u64, u64)> =
        rising.chunk_by(|one, next| one == next).map(|of| (of[0], of.len() as u64)).collect();
    let Some(lengths) = Distribution::of_lengths(&counts) else { return Cow::Borrowed(spec) };
    let mut spec = spec.clone();
    if let Work::Model(work) = &mut spec.work {
        work.batch.documents = Documents::Drawn(Draw { lengths, seed: SEED });
    }
    match Spec::from_value(&spec.to_value()) {
        Ok(read) => Cow::Owned(read),
        // Short documents that do not fill their microbatches: a draw would.
        Err(_) => Cow::Borrowed(of_step),
    }
}

/// The text of the form's field for these lengths.
pub fn typed(lengths: &[u32]) -> String {
    json!(lengths).to_string()
}

/// What a text of the form's field says in a few words; none where it says something else than lengths.
pub fn said(typed: &str) -> Option<String> {
    let value: Value = serde_json::from_str(typed).ok()?;
    let (documents, tokens) = counted(&value)?;
    let noun = if documents == 1 { "document" } else { "documents" };
    Some(format!("{} {noun}, {} tokens", text::count(documents), text::count(tokens)))
}

/// Documents and tokens in lists of lists.
fn counted(value: &Value) -> Option<(u64, u64)> {
    match value {
        Value::Array(items) => items.iter().map(counted).try_fold((0, 0), |(documents, tokens), of| {
            let (more, further) = of?;
            Some((documents + more, u64::saturating_add(tokens, further)))
        }),
        value => Some((1, value.as_u64()?)),
    }
}

#[cfg(test)]
mod tests {
    use pipeplan_core::spec::link;

    use super::*;

    fn spec(lengths: &[u32]) -> Spec {
        let value = json!({
            "model": { "name": "llama-2-7b" }, "cluster": { "device": "h100" },
            "parallel": { "pipeline": 4, "data": 8 },
            "training": { "microbatches": 256, "sequence": 4096, "documents": lengths },
        });
        Spec::from_value(&value).unwrap_or_else(|faults| panic!("{faults}"))
    }

    /// A link has few documents one by one, and many as a histogram that has each of them.
    #[test]
    fn a_link_has_many_documents_as_a_histogram() {
        let few: Vec<u32> = (0..MOST_LINKED as u32).map(|at| 1 + at * 7919 % 1500).collect();
        assert!(matches!(linked(&spec(&few)), Cow::Borrowed(_)));
        assert!(link::write(&spec(&few)).len() < 10_000);
        // Ten tokens each in room for eight million: a draw would be of more documents than a step may have.
        let short: Vec<u32> = (0..5000).map(|at| 10 + at % 41).collect();
        assert!(matches!(linked(&spec(&short)), Cow::Borrowed(_)));
        assert!(link::read(&link::write(&linked(&spec(&short)))).is_ok());
        let many = [few.clone(), few].concat();
        let linked = linked(&spec(&many)).into_owned();
        let Work::Model(work) = &linked.work else { panic!("a model") };
        let Documents::Drawn(Draw { lengths: Distribution::Histogram(pairs), .. }) = &work.batch.documents else {
            panic!("{:?}", work.batch.documents)
        };
        assert_eq!(pairs.iter().map(|[_, documents]| *documents as usize).sum::<usize>(), many.len());
        assert!(link::write(&linked).len() < 1000);
        assert_eq!(link::read(&link::write(&linked)).map_err(|error| error.to_string()), Ok(linked));
    }

    #[test]
    fn documents_are_counted_in_any_list() {
        let said = |typed: &str| said(typed).unwrap_or_default().replace('\u{202f}', " ");
        assert_eq!(said(&typed(&[4000, 96, 1])), "3 documents, 4 097 tokens");
        assert_eq!(said("[[[5], [1, 2]], [[], [3]]]"), "4 documents, 11 tokens");
        assert_eq!(said("[7]"), "1 document, 7 tokens");
        for other in ["5, 6", "{\"distribution\": \"log-normal\"}", "[1, -2]", "[\"a\"]"] {
            assert_eq!(said(other), "", "{other}");
        }
    }
}
