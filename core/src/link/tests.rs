use std::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::spec::arbitrary::{model_spec, spec};

fn sealed(tag: u8, body: &[u8]) -> String {
    let mut bytes = checksum(tag, body).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    let mut link = String::from("#v1.");
    link.push(tag as char);
    URL_SAFE_NO_PAD.encode_string(&bytes, &mut link);
    link
}

#[test]
fn the_checksum_is_crc_32() {
    // The check value that every catalogue of CRCs gives for these nine bytes.
    assert_eq!(checksum(b'1', b"23456789"), 0xCBF4_3926);
}

#[test]
fn each_wrong_part_is_named() {
    let link = write(&model_spec());
    assert!(read(&link).is_ok());
    let bomb = sealed(b'd', &compress_to_vec(&std::vec![0; MAX_CONTENT_BYTES + 1], 10));
    let middle = link.len() / 2;
    let mut changed = link.clone();
    let other = if &link[middle..=middle] == "A" { "B" } else { "A" };
    changed.replace_range(middle..=middle, other);
    for (text, part) in [
        ("https://host/planner/".to_string(), "address"),
        ("https://host/planner/#".to_string(), "address"),
        (link.replace("v1", "v2"), "version"),
        (link.replace("v1.", "x"), "version"),
        (link[..4].to_string(), "length"),
        (link[..8].to_string(), "length"),
        (std::format!("#v1.r{}", "A".repeat(MAX_CHARS)), "length"),
        (link.replace(&link[middle..=middle], "+"), "alphabet"),
        (std::format!("{link}."), "alphabet"),
        (std::format!("{link}é"), "alphabet"),
        (changed, "checksum"),
        (link.replacen("v1.r", "v1.d", 1).replacen("v1.d", "v1.z", 1), "compression"),
        (sealed(b'd', b"no deflate"), "compression"),
        (bomb, "compression"),
        (sealed(b'r', b""), "content"),
        (sealed(b'r', &[0xff; 40]), "content"),
    ] {
        let error = read(&text).unwrap_err();
        assert_eq!(error.part(), part, "{text:.80}: {error}");
    }
}

#[test]
fn an_address_a_fragment_and_its_rest_are_one() {
    let spec = model_spec();
    let link = write(&spec);
    for text in [link.clone(), link[1..].to_string(), std::format!(" https://a.b/c/{link}\n")] {
        assert!(looks_like_one(&text), "{text}");
        assert_eq!(read(&text).as_ref(), Ok(&spec));
        assert_eq!(Spec::read(&text).as_ref(), Ok(&spec));
    }
    for text in ["# v1. of my spec", "v1.x=2", "{}", "", "ranks = 4"] {
        assert!(!looks_like_one(text), "{text}");
    }
}

#[test]
fn a_field_out_of_range_is_named_although_the_checksum_is_right() {
    let mut spec = model_spec();
    let crate::spec::Work::Model(work) = &mut spec.work else { unreachable!() };
    work.pipeline = 0;
    let error = read(&write(&spec)).unwrap_err();
    assert!(error.to_string().contains("parallel.pipeline: found 0"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_link_reads_back(spec in spec()) {
        let link = write(&spec);
        prop_assert_eq!(read(&link).map(|read| read.to_json()), Ok(spec.to_json()));
    }

    /// One changed character is always noticed: that is what the checksum is for.
    #[test]
    fn a_changed_character_is_refused(spec in spec(), at in any::<prop::sample::Index>(), to in "[ -~]") {
        let link = write(&spec);
        let at = at.index(link.len());
        let mut changed = link.clone();
        changed.replace_range(at..=at, &to);
        if changed != link && !(at == 0 && to == "#") && changed.trim() != link[1..].trim() {
            let read = read(&changed);
            prop_assert!(read.is_err(), "{} became {}", link, changed);
        }
    }

    #[test]
    fn nothing_makes_it_panic(text in ".{0,300}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&text);
        let _ = read(&std::format!("#v1.r{text}"));
        let _ = read(&sealed(b'r', &bytes));
        let _ = read(&sealed(b'd', &bytes));
        let _ = read(&sealed(b'd', &compress_to_vec(&bytes, 6)));
    }

    /// Damage that carries a right checksum reaches the decoder, the numbers and the fields.
    #[test]
    fn a_forged_content_is_refused_or_a_spec(spec in spec(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut content = wire::to_bytes(&spec);
        let at = at.index(content.len());
        content[at] = to;
        if let Ok(read) = read(&sealed(b'r', &content)) {
            prop_assert_eq!(super::read(&write(&read)).map(|again| again.to_json()), Ok(read.to_json()));
        }
    }
}
