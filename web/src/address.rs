//! The spec in the address, also with what has got behind it on its way.

use pipeplan_core::link::{self, LinkError};
use pipeplan_core::spec::Spec;

/// Reads what stands after `#`. Chat programs take the full stop or bracket behind a link for a part of it; what comes
/// before the first character that no link has is taken where it is whole, which its checksum says.
///
/// # Errors
/// What is wrong with all of it.
pub fn read(fragment: &str) -> Result<Spec, LinkError> {
    let fragment = fragment.trim();
    link::read(fragment).or_else(|error| {
        let LinkError::Alphabet { position, .. } = error else { return Err(error) };
        let before = position.checked_sub(1).and_then(|length| fragment.get(..length));
        before.and_then(|before| link::read(before).ok()).ok_or(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_behind_a_link_does_no_harm() {
        let stages = json!({ "forward_ns": 1, "backward_input_ns": 1 });
        let spec =
            Spec::from_value(&json!({ "problem": { "ranks": 2, "microbatches": 3, "stages": stages } })).unwrap();
        let link = link::write(&spec);
        let link = link.trim_start_matches('#');
        for behind in ["", ".", ").", "%3E", "…", "”, he said", "!?"] {
            assert_eq!(read(&format!("{link}{behind}")), Ok(spec.clone()), "{behind}");
        }
        let cut = &link[..link.len() - 1];
        for damaged in [cut.to_owned(), format!("{cut}."), format!("{link}A"), "v1.é.".to_owned(), ".".to_owned()] {
            assert!(read(&damaged).is_err(), "{damaged}");
        }
        // It says what is wrong with what was given.
        assert_eq!(read(&format!("{cut}.")).unwrap_err().part(), "alphabet");
    }
}
