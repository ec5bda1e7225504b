use std::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::program::lower::Lowering;
use crate::spec::Work;
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
    let mut spec = model_spec();
    // One that the first version of links has words for.
    spec.messages.lowering = Lowering::Grouped;
    if let Work::Model(work) = &mut spec.work {
        work.device.matmul_permille = 869;
    }
    let link = write(&spec);
    assert!(read(&link).is_ok());
    let bomb = sealed(b'd', &compress_to_vec(&std::vec![0; MAX_CONTENT_BYTES + 1], 10));
    let middle = link.len() / 2;
    let mut changed = link.clone();
    let other = if &link[middle..=middle] == "A" { "B" } else { "A" };
    changed.replace_range(middle..=middle, other);
    for (text, part) in [
        ("https://host/planner/".to_string(), "address"),
        ("https://host/planner/#".to_string(), "address"),
        (link.replace("v1", "v3"), "version"),
        (link.replace("v1.", "x"), "version"),
        (link[..4].to_string(), "length"),
        (link[..8].to_string(), "length"),
        (std::format!("#v1.r{}", "A".repeat(MAX_CHARS)), "length"),
        (link.replace(&link[middle..=middle], "+"), "alphabet"),
        (std::format!("{}.", &link[..link.len() - 1]), "alphabet"),
        (std::format!("{link}A."), "alphabet"),
        ("#v1.é.".to_string(), "alphabet"),
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

/// A promise to everybody who keeps a link: what it opened it opens for ever, with every field as it was. These links were
/// made when `v1` and `v2` were new. Where this test fails, the code that reads links has to change back, never the
/// links here; a field that a spec newly has must be what such a spec meant before.
#[test]
fn links_that_people_keep_open_for_ever() {
    // When these were made, no spec said what Gemma 2 multiplies and caps, nor how experts are weighted; an A100 had as many
    // GiB as its name says GB; messages went in groups, and the best matmuls reached as much of any device's rate as of an A100's.
    let model = "name = \"frozen\"\nschedule = \"1f1b\"\nobjective = \"longest_span\"\n\
        [model]\nname = \"mixtral-8x7b\"\nlayers = 24\nexperts = { normed = false }\n\
        [cluster]\ndevice = { name = \"a100-80\", memory_bytes = \"80 GiB\" }\nlink = { bytes_per_s = 300000000000, latency_ns = 2000 }\n\
        node_link = { bytes_per_s = 25000000000, latency_ns = 6000 }\ndevices_per_node = 4\n\
        [parallel]\npipeline = 4\nchunks = 3\npartition = [5, 7, 7, 5]\ntensor = 2\nsequence_parallel = true\n\
        data = 4\nzero = 1\ncontext = 2\nexpert = 4\nwhole_experts = true\n\
        [training]\nmicrobatches = 32\nmicrobatch_size = 2\nsequence = 8192\ndtype = \"bf16\"\n\
        recompute = \"cheap\"\nexpert_imbalance = 1.25\nf32_logits = true\n\
        [memory]\nlimit_bytes = \"76 GiB\"\noverhead_bytes = \"2 GiB\"";
    let problem = "{ \"ranks\": 2, \"chunks\": 2, \"microbatches\": 6, \"placement\": \"v\", \
        \"stages\": { \"forward_ns\": 50, \"backward_input_ns\": 55, \"backward_weight_ns\": 45, \
        \"forward_bytes\": 2, \"backward_input_bytes\": -1, \"backward_weight_bytes\": -1, \
        \"forward_workspace_bytes\": 3, \"backward_workspace_bytes\": 4 }, \"transfer_ns\": [[0, 5], [6, 0]], \
        \"static_bytes\": [7, 8], \"limit_bytes\": [16, null], \"objective\": \"longest_span\", \
        \"backward\": \"fused\", \"overlap_permille\": 250 }";
    let windowed = "name = \"frozen\"\n[model]\nname = \"gemma-2-9b\"\nwindow = { tokens = 512, full_every = 3 }\n\
        multi_token = 2\nfactors = \"none\"\ncaps = \"none\"\nnorm_offset = false\n[cluster]\ndevice = { name = \"h100\", memory_bytes = \"80 GiB\", matmul_permille = 869 }\n[parallel]\npipeline = 2\n[training]\nmicrobatches = 4";
    for (link, text) in [
        (
            "#v1.rnV1f4gZmcm96ZW4EMWYxYgAMbWl4dHJhbC04eDdiABiAICAIgAGAcID6AYCAAsCEPYCt4gQAAAAAAAEIAoBwAAAAB2ExMDAtODCA\
             gK7JsvhGgMz77qs7gICAgMACuBcEgPCSy90I0A-A9PaQXfAuBAMgAoBAAAGAgICAsAIBAAACAgECBAHiCQEEAQMEBQcHBYCAgIAI",
            model,
        ),
        ("#v1.rp210ugAEYmVzdAECAgYDATI3LQQBAQMAAAEEAQICAAUCBgACBwgCARAAAQH6AQ", problem),
        (
            "#v2.rS7jo7wZmcm96ZW4EYmVzdAAKZ2VtbWEtMi05YgAqgBwQCIACgHCA0A-AQJBOwIQ9AQAAAQEAAARoMTAwgLCF4J7-4AGAuL3cv2GAgICAwAK4FwiAqNywjA3QD4Do7aG6AYgnAgIEAYAgAAAAAAAAAQABAQDoBwABAAAAAgCABAMBAg",
            windowed,
        ),
    ] {
        let mut expected = Spec::read(text).unwrap_or_else(|error| panic!("{error}"));
        expected.messages.lowering = Lowering::Grouped;
        assert_eq!(write(&expected), link, "no page writes another one for it");
        assert_eq!(read(link).map(|spec| spec.to_json()), Ok(expected.to_json()), "{link}");
    }
}

#[test]
fn what_is_written_behind_a_link_does_no_harm() {
    let spec = model_spec();
    let link = write(&spec);
    for behind in ["", ".", ").", "%3E", "…", "é", "”, he said", "!?"] {
        assert_eq!(read(&std::format!("https://a.b/c/{link}{behind}")).as_ref(), Ok(&spec), "{behind}");
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
        let (mut content, _) = wire::to_bytes(&spec);
        let at = at.index(content.len());
        content[at] = to;
        if let Ok(read) = read(&sealed(b'r', &content)) {
            prop_assert_eq!(super::read(&write(&read)).map(|again| again.to_json()), Ok(read.to_json()));
        }
    }
}
