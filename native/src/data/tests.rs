//! Formats against files written by their published layouts, and damaged files.

use std::path::{Path, PathBuf};

use super::tokenizer::Tokenizer;
use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// An index as `_IndexWriter` of Megatron-LM writes it, field by field: sequences of these lengths, documents that begin at
/// these sequences.
fn index(code: u8, size: u64, lengths: &[i32], documents: &[i64]) -> Vec<u8> {
    let mut bytes = b"MMIDIDX\x00\x00".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.push(code);
    bytes.extend((lengths.len() as u64).to_le_bytes());
    bytes.extend((documents.len() as u64).to_le_bytes());
    bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
    let mut place = 0i64;
    for length in lengths {
        bytes.extend(place.to_le_bytes());
        place += i64::from(*length) * size as i64;
    }
    bytes.extend(documents.iter().flat_map(|document| document.to_le_bytes()));
    bytes
}

/// Writes a file, and gives its path.
fn file(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    path
}

fn all(source: &Source) -> Vec<u32> {
    source.read(0, source.tokens as usize, u64::MAX).expect("read")
}

fn halves(tokens: &[u16]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

#[test]
fn indexed_data_of_megatron_is_read_by_any_of_its_names() {
    let folder = folder();
    let data = file(&folder, "web.bin", &halves(&[7, 8, 9, 65_000, 1, 2]));
    // Two documents: of two sequences and of one.
    let index = file(&folder, "web.idx", &index(8, 2, &[2, 1, 3], &[0, 2, 3]));
    for path in [data, index, folder.path().join("web")] {
        let source = open(&path, &Tokenizer::Bytes).expect("read");
        assert_eq!((source.format, source.width), (Format::Megatron, Width::U16));
        assert_eq!(all(&source), [7, 8, 9, 65_000, 1, 2]);
        assert_eq!(source.lengths, [(3, 2)].into());
    }
}

#[test]
fn every_type_of_an_index_is_read_by_its_code() {
    for (code, size) in [(1, 1), (2, 1), (3, 2), (4, 4), (5, 8), (8, 2)] {
        let folder = folder();
        let bytes: Vec<u8> = [5u64, 100].iter().flat_map(|token| token.to_le_bytes()[..size].to_vec()).collect();
        let data = file(&folder, "a.bin", &bytes);
        file(&folder, "a.idx", &index(code, size as u64, &[2], &[0, 1]));
        assert_eq!(all(&open(&data, &Tokenizer::Bytes).expect("read")), [5, 100], "code {code}");
    }
}

#[test]
fn an_index_that_does_not_fit_says_where_and_what_is_expected() {
    let good = index(8, 2, &[2, 2], &[0, 1, 2]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut index = good.clone();
        index[at..at + bytes.len()].copy_from_slice(bytes);
        index
    };
    for (index, says) in [
        (changed(0, b"X"), "byte 0: another file; expected is MMIDIDX"),
        (changed(9, &[2]), "byte 9: version 2; expected is version 1"),
        (changed(17, &[7]), "byte 17: type 7; expected is 1 (uint8)"),
        (changed(18, &u64::MAX.to_le_bytes()), "expected is as many as fit"),
        (changed(34, &9i32.to_le_bytes()), "sequence 0: ends at byte 18"),
        (changed(34, &(-1i32).to_le_bytes()), "sequence 0: -1 tokens; expected is 0 or more"),
        (changed(50, &6i64.to_le_bytes()), "sequence 1: begins at byte 6; expected is byte 4"),
        (changed(58, &7i64.to_le_bytes()), "begins at sequence 7; expected is 0 to 2"),
        (good[..30].to_vec(), "its size: 30 bytes; expected is at least 34 bytes"),
        (good[..50].to_vec(), "expected is as many as fit"),
    ] {
        let folder = folder();
        let data = file(&folder, "a.bin", &halves(&[1, 2, 3, 4]));
        file(&folder, "a.idx", &index);
        let error = open(&data, &Tokenizer::Bytes).expect_err("refused").to_string();
        assert!(error.contains("a.idx, ") && error.contains(says), "{error}");
    }
}

#[test]
fn what_is_written_as_indexed_data_is_read_again() {
    let folder = folder();
    for (vocabulary, width) in [(65_499, Width::U16), (65_500, Width::I32)] {
        let name = folder.path().join(format!("v{vocabulary}"));
        let mut writer = megatron::Writer::new(&name, vocabulary).expect("made");
        writer.add(&[1, 2, 3]).expect("written");
        writer.add(&[4]).expect("written");
        writer.finish().expect("written");
        let source = open(&name, &Tokenizer::Bytes).expect("read");
        assert_eq!((source.width, &source.lengths), (width, &[(1, 1), (3, 1)].into()));
        assert_eq!(all(&source), [1, 2, 3, 4]);
        // Byte for byte as field by field.
        let written = std::fs::read(beside(&name, "idx")).expect("read");
        let code = if width == Width::U16 { 8 } else { 4 };
        assert_eq!(written, index(code, width.bytes(), &[3, 1], &[0, 1, 2]));
    }
}

#[test]
fn tokens_without_a_header_are_16_bits_or_32_by_what_they_hold() {
    let folder = folder();
    let narrow = file(&folder, "a.bin", &halves(&[400, 500, 60_000, 7000]));
    assert_eq!(all(&open(&narrow, &Tokenizer::Bytes).expect("read")), [400, 500, 60_000, 7000]);
    let wide: Vec<u8> = [400u32, 151_643].iter().flat_map(|token| token.to_le_bytes()).collect();
    for name in ["b.bin", "b.u32"] {
        let wide = file(&folder, name, &wide);
        assert_eq!(all(&open(&wide, &Tokenizer::Bytes).expect("read")), [400, 151_643]);
    }
    let odd = open(&file(&folder, "c.u16", &[1, 2, 3]), &Tokenizer::Bytes).expect_err("odd").to_string();
    assert!(odd.contains("its size: 3 bytes of tokens; expected is a multiple of 2"), "{odd}");
}

/// The header of `write_datafile` in llm.c's `dev/data/data_common.py`: 256 numbers of 32 bits.
#[test]
fn files_of_llm_c_have_a_header_that_counts_their_tokens() {
    let folder = folder();
    let written = |magic: u32, version: u32, count: u32, tokens: &[u8]| {
        let header = [magic, version, count].into_iter().chain([0; 253]);
        header.flat_map(u32::to_le_bytes).chain(tokens.iter().copied()).collect::<Vec<u8>>()
    };
    let gpt_2 = file(&folder, "a.bin", &written(20_240_520, 1, 3, &halves(&[50_256, 1, 2])));
    let source = open(&gpt_2, &Tokenizer::Bytes).expect("read");
    assert_eq!((source.format, all(&source)), (Format::LlmC, vec![50_256, 1, 2]));
    let llama = written(20_240_801, 7, 1, &128_000u32.to_le_bytes());
    assert_eq!(all(&open(&file(&folder, "b.bin", &llama), &Tokenizer::Bytes).expect("read")), [128_000]);
    for (bytes, says) in [
        (written(20_240_520, 2, 3, &halves(&[1, 2, 3])), "byte 4: version 2; expected is version 1"),
        (written(20_240_520, 1, 4, &halves(&[1, 2, 3])), "byte 8: 4 tokens, so that 1032 bytes are needed"),
    ] {
        let error = open(&file(&folder, "c.bin", &bytes), &Tokenizer::Bytes).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// The header of `numpy/lib/format.py`: magic, version, its length, a dictionary.
#[test]
fn arrays_of_numpy_are_read_row_by_row() {
    let folder = folder();
    let written = |header: &str, data: &[u8]| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    };
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }      \n";
    let source = file(&folder, "a.npy", &written(header, &halves(&[1, 2, 3, 4, 5, 6])));
    let source = open(&source, &Tokenizer::Bytes).expect("read");
    assert_eq!((all(&source), source.lengths.clone()), (vec![1, 2, 3, 4, 5, 6], [(3, 2)].into()));
    for (header, says) in [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "an array of \"<f4\""),
        ("{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3), }", "rows in order"),
        ("{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }", "expected is the 6 numbers"),
        ("{'descr': '<u2'}", "rows in order"),
    ] {
        let bytes = written(header, &halves(&[1, 2, 3, 4, 5, 6]));
        let error = open(&file(&folder, "b.npy", &bytes), &Tokenizer::Bytes).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn json_lines_hold_texts_tokens_and_what_is_not_to_be_predicted() {
    let folder = folder();
    let read = |text: &str| {
        let source = open(&file(&folder, "a.txt", text.as_bytes()), &Tokenizer::Bytes).expect("read");
        assert_eq!(source.format, Format::JsonLines);
        (all(&source), source.is_masked)
    };
    // Byte 0 ends each text.
    assert_eq!(read("{\"text\": \"ab\"}\n\n{\"text\": \"c\", \"id\": 3}\n"), (vec![97, 98, 0, 99, 0], false));
    let masked = |token: u32| token | MASKED;
    assert_eq!(read("{\"prompt\": \"a\", \"completion\": \"b\"}"), (vec![masked(97), 98, 0], true));
    assert_eq!(read("{\"input_ids\": [5, 6], \"labels\": [-100, 6]}"), (vec![masked(5), 6], true));
    assert_eq!(read("{\"tokens\": [5, 6]}"), (vec![5, 6], false));
    for (text, says) in [
        ("{\"text\": \"a\"}\n{\"text\": 5}", "line 2: `text` is a number; expected is a text"),
        ("{\"text\": \"a\"}\nno", "line 2: "),
        ("{\"other\": 1}", "line 1: an object with other; expected is `text`"),
        ("{\"messages\": []}", "`messages` without a message of the assistant"),
        ("{\"messages\": [{}]}", "`messages[0]` has no `role`"),
        (
            "{\"messages\": [{\"role\": \"assistant\"}]}",
            "a conversation, without a tokenizer; expected is `--tokenizer FOLDER`",
        ),
        ("{\"input_ids\": [1, 2], \"labels\": [1]}", "line 1: 1 labels for 2 tokens"),
        ("{\"input_ids\": [1, 2], \"labels\": [2, 1]}", "label 0 is 2; expected is -100, or 1"),
        ("{\"input_ids\": [-1]}", "token 0 is -1"),
    ] {
        let error = open(&file(&folder, "b", text.as_bytes()), &Tokenizer::Bytes).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
    // What only begins like JSON is a text.
    let code = open(&file(&folder, "c", b"{ int x; }\n"), &Tokenizer::Bytes).expect("read");
    assert_eq!(code.format, Format::Bytes);
}

/// A tokenizer of words, as `tokenizers` writes it.
fn words() -> &'static str {
    r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 3, "content": "</s>", "single_word":
    false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}], "normalizer": null, "pre_tokenizer":
    {"type": "Whitespace"}, "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "vocab": {"<unk>": 0,
    "hello": 1, "world": 2, "</s>": 3}, "unk_token": "<unk>"}}"#
}

#[test]
fn a_tokenizer_makes_the_tokens_and_ends_of_documents() {
    let folder = folder();
    let tokenizer = Tokenizer::load(&file(&folder, "tokenizer.json", words().as_bytes())).expect("read");
    let text = file(&folder, "a.txt", b"hello world hello");
    assert_eq!(all(&open(&text, &tokenizer).expect("read")), [1, 2, 1, 3]);
    let lines = file(&folder, "a.jsonl", b"{\"text\": \"hello\"}\n{\"text\": \"world you\"}\n");
    let source = open(&lines, &tokenizer).expect("read");
    assert_eq!((all(&source), source.end), (vec![1, 3, 2, 0, 3], Some(3)));
    let mut documents = Vec::new();
    let note = |document: &[u32]| {
        documents.push(document.to_vec());
        Ok(())
    };
    source.each_document(note).expect("read");
    assert_eq!(documents, [vec![1, 3], vec![2, 0, 3]]);
    // Another name for the end, in the file beside it.
    file(&folder, "tokenizer_config.json", br#"{"eos_token": {"content": "world"}}"#);
    let named = Tokenizer::load(folder.path()).expect("read");
    assert_eq!(named.end(), Some(2));
    assert!(named.fits(4).is_ok());
    let error = named.fits(3).expect_err("too small").to_string();
    assert!(error.contains("tokenizer.json, its vocabulary: 4 tokens; expected is at most 3"), "{error}");
}

/// The format of ChatML: each message between `<|im_start|>` with its role and `<|im_end|>`.
const CHATML: &str = "{% for message in messages %}
{{ '<|im_start|>' + message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant' }}
{% endif %}";

/// What ChatML makes of a conversation, byte by byte, and which of it the assistant says: its message with its end.
#[test]
fn a_chat_template_writes_conversations_and_tells_what_the_assistant_says() {
    use chat::{Chat, ChatTemplate};
    let folder = folder();
    let tokenizer = folder.path().join("tokenizer.json");
    let chat = |text: &str| {
        let fields = serde_json::from_str(text).expect("JSON");
        Chat::of(&fields).expect("a conversation").expect("a conversation")
    };
    let said = |template: &str, text: &str| -> Result<(String, Vec<String>), String> {
        file(&folder, "chat_template.jinja", template.as_bytes());
        let template = ChatTemplate::beside(&tokenizer).expect("read").expect("a template");
        let written = template.write(&chat(text))?;
        let said = written.said.iter().map(|range| written.text[range.clone()].to_string()).collect();
        Ok((written.text, said))
    };
    let two = r#"{"messages": [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "é"}, {"role": "assistant", "content": "d"}]}"#;
    let text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
                <|im_start|>user\né<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n";
    let both = vec!["b<|im_end|>\n".to_string(), "d<|im_end|>\n".to_string()];
    assert_eq!(said(CHATML, two), Ok((text.to_string(), both)));
    // The names of ShareGPT say the same.
    let shared = r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#;
    assert_eq!(said(CHATML, shared).expect("written").1, ["b<|im_end|>\n"]);
    // A template that says itself what counts: the end of a message does not.
    let marked = CHATML.replace(
        "{{ message.content | trim }}<",
        "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content \
         | trim }}{% endif %}<",
    );
    assert_eq!(said(&marked, two), Ok((text.to_string(), vec!["b".into(), "d".into()])));
    // One that strips what it thought before.
    let forgets = CHATML.replace("{{ message.content", "{{ ('' if not loop.last else 'hm ') + message.content");
    let refused = said(&forgets, two).expect_err("message 1 changes");
    assert!(refused.contains("writes message 1 in another way once others follow it"), "{refused}");
    assert!(refused.contains("chat_template.jinja"), "{refused}");
    // Objects are written as Python writes them, in the order of the file.
    let tools =
        r#"{"tools": [{"name": "é", "a": [1, 2.5, null]}], "messages": [{"role": "assistant", "content": "b"}]}"#;
    let json = said("{{ tools | tojson }}{% if tools is iterable and none is not iterable %}!{% endif %}", tools);
    assert_eq!(json.expect("written").0, r#"[{"name": "é", "a": [1, 2.5, null]}]!"#);
    for (template, says) in [
        ("{{ raise_exception('no tools') }}", "line 1 says: invalid operation: no tools"),
        ("{{ strftime_now('%Y') }}", "it asks for today's date"),
        ("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "fuel"),
    ] {
        let refused = said(template, two).expect_err("refused");
        assert!(refused.contains(says), "{refused}");
    }
    file(&folder, "chat_template.jinja", b"{% if %}");
    let error = ChatTemplate::beside(&tokenizer).expect_err("no template").to_string();
    assert!(error.contains("chat_template.jinja, its chat template: "), "{error}");
}

#[test]
fn of_a_conversation_the_assistants_tokens_are_trained_on() {
    let folder = folder();
    file(&folder, "tokenizer.json", words().as_bytes());
    file(
        &folder,
        "tokenizer_config.json",
        br#"{"eos_token": "</s>", "chat_template": "{% for m in messages %}{{ m.content }} {{ eos_token }} {% endfor %}"}"#,
    );
    let tokenizer = Tokenizer::load(folder.path()).expect("read");
    let lines = br#"{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]}"#;
    let source = open(&file(&folder, "a.jsonl", lines), &tokenizer).expect("read");
    let masked = |token: u32| token | MASKED;
    // The template writes the ends; no other follows.
    assert_eq!((all(&source), source.is_masked), (vec![masked(1), masked(3), 2, 3], true));
}

/// Two texts in three rows, and a column of numbers beside them, by the same crate's low-level writer: the format is judged by
/// pyarrow in `native/tests/data.rs`.
fn write_parquet(path: &Path, compression: parquet::basic::Compression) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    let schema =
        parse_message_type("message m { optional binary text (UTF8); required int32 other; }").expect("schema");
    let file = std::fs::File::create(path).expect("made");
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).expect("writer");
    let mut group = writer.next_row_group().expect("group");
    let mut column = group.next_column().expect("column").expect("text");
    let texts = ["ab", "c"].map(ByteArray::from);
    column.typed::<ByteArrayType>().write_batch(&texts, Some(&[1, 0, 1]), None).expect("written");
    column.close().expect("closed");
    let mut column = group.next_column().expect("column").expect("other");
    column.typed::<parquet::data_type::Int32Type>().write_batch(&[1, 2, 3], None, None).expect("written");
    column.close().expect("closed");
    group.close().expect("closed");
    writer.close().expect("closed");
}

#[test]
fn parquet_of_every_compression_has_a_column_of_text() {
    use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
    let folder = folder();
    let path = folder.path().join("a.parquet");
    let all_compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
    ];
    for compression in all_compressions {
        write_parquet(&path, compression);
        // The row without a text is none.
        let source = open(&path, &Tokenizer::Bytes).unwrap_or_else(|error| panic!("{compression:?}: {error}"));
        assert_eq!((source.format, all(&source)), (Format::Parquet, vec![97, 98, 0, 99, 0]), "{compression:?}");
        // Damaged at each place, it is read or refused, and nothing panics or takes the machine's memory.
        let bytes = std::fs::read(&path).expect("read");
        for at in 0..bytes.len() {
            for value in [0, 0xff, bytes[at] ^ 1] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                std::fs::write(&path, damaged).expect("written");
                let _ = open(&path, &Tokenizer::Bytes);
            }
        }
    }
}

/// Files of every format, changed at each byte and cut at each length: read, or refused with their name.
#[test]
fn damaged_files_are_read_or_refused_by_name() {
    let folder = folder();
    let numpy = b"\x93NUMPY\x01\x00\x3a\x00{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }\n\x01\0\x02\0";
    let header = [20_240_520u32, 1, 2].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes);
    let llm_c: Vec<u8> = header.chain(halves(&[1, 2])).collect();
    file(&folder, "m.bin", &halves(&[1, 2, 3, 4]));
    let cases: [(&str, Vec<u8>, usize); 4] = [
        ("a.npy", numpy.to_vec(), numpy.len()),
        ("l.bin", llm_c, 16),
        ("m.idx", index(8, 2, &[2, 2], &[0, 1, 2]), 200),
        ("j.jsonl", b"{\"input_ids\": [1, 2], \"labels\": [-100, 2]}\n".to_vec(), 100),
    ];
    for (name, bytes, looked_at) in cases {
        let check = |damaged: &[u8]| {
            let path = file(&folder, name, damaged);
            match open(&path, &Tokenizer::Bytes) {
                Ok(source) => drop(source.read(0, source.tokens as usize, u64::MAX)),
                Err(error) => assert!(error.to_string().contains(&name[..1]), "{error}"),
            }
        };
        for at in 0..bytes.len().min(looked_at) {
            check(&bytes[..at]);
            for value in [0, 1, 0x7f, 0xff, bytes[at] ^ 1] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                check(&damaged);
            }
        }
    }
}

#[test]
fn a_file_that_shrinks_and_a_token_outside_the_vocabulary_are_named_with_their_place() {
    let folder = folder();
    let path = file(&folder, "a.u16", &halves(&[1, 2, 300, 4]));
    let source = open(&path, &Tokenizer::Bytes).expect("read");
    let outside = source.read(1, 3, 256).expect_err("outside").to_string();
    assert!(outside.contains("a.u16, token 2 (byte 4): 300; expected is 0 to 255"), "{outside}");
    std::fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4)).expect("cut");
    let shrunk = source.read(0, 4, 1000).expect_err("shrunk").to_string();
    let expected = "a.u16, tokens 0 to 4: the file now ends at byte 4; expected is all of the 4 tokens";
    assert!(shrunk.contains(expected), "{shrunk}");
}

#[test]
fn weights_of_a_blend_are_shares() {
    use argument::{Argument, shares};
    let close = |found: Vec<f64>, expected: &[f64]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}")
    };
    close(shares(&[None, None], &[30, 10]).expect("fits"), &[0.75, 0.25]);
    close(shares(&[Some(7.0), Some(3.0)], &[1, 1]).expect("fits"), &[0.7, 0.3]);
    close(shares(&[Some(0.4), None, None], &[9, 1, 2]).expect("fits"), &[0.4, 0.2, 0.4]);
    assert!(shares(&[Some(1.0), None], &[1, 1]).is_err());
    let read = |text: &str| Argument::read(text).map(|argument| (argument.path, argument.weight));
    assert_eq!(read("web:0.3"), Ok((PathBuf::from("web"), Some(0.3))));
    assert_eq!(read("a:b"), Ok((PathBuf::from("a:b"), None)));
    assert!(read("web:0").is_err() && read("web:-1").is_err());
}
