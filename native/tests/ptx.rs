//! What NVRTC makes of the kernels, run without a GPU by `pipeplan-ptx`: every operator against the CPU in `f64`, where any
//! access out of bounds, unaligned or of unwritten bytes, any race, and any barrier or instruction of a warp that not all its
//! threads reach, is a fault.
#![cfg(feature = "cuda")]

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pipeplan::backend::cuda::card::{Card, CardError, Format, Memory};
use pipeplan::backend::cuda::launch::Context;
use pipeplan::backend::cuda::warp_group_trial::{self, Shape, Unfit};
use pipeplan::backend::cuda::{compile, source};
use pipeplan::runner::optimizer::AdamW;
use pipeplan::selftest::{Row, operators, ring_attention};
use pipeplan_core::graph::{Heads, Spread};
use pipeplan_core::model::Dtype;
use pipeplan_ptx::Module;

#[path = "ptx/card.rs"]
mod card;

use card::Interpreted;

/// Of an H100.
const CAPABILITY: (u32, u32) = (9, 0);

/// Whether kernels are made with what Hopper alone has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ways {
    All,
    OfAnyCard,
}

/// `source` as NVRTC translates it; nothing (said plainly) without NVRTC.
fn translated(source: &str, ways: Ways) -> Option<Arc<Module>> {
    let text = match ways {
        Ways::All => compile::own_assembly(source, CAPABILITY),
        Ways::OfAnyCard => compile::assembly(source, CAPABILITY),
    };
    match text {
        Ok(text) => Some(Arc::new(Module::read(&text).unwrap_or_else(|fault| panic!("{fault}")))),
        Err(error @ CardError::Missing(_)) => {
            eprintln!("SKIPPED: what NVRTC makes of the kernels is not run: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// All kernels, as they are.
fn module() -> Option<Arc<Module>> {
    static MODULE: OnceLock<Option<Arc<Module>>> = OnceLock::new();
    MODULE.get_or_init(|| translated(&source::for_gpu(), Ways::All)).clone()
}

/// What is there because all kernels are made for both formats, and no launch names.
const NEVER_LAUNCHED: [&str; 4] = ["cast_from_f32", "cast_to_f32", "own_tokens_bf16", "shared_cross_entropy_bf16"];

#[test]
fn every_operator_is_right_and_does_nothing_that_a_card_would_not_forgive() {
    let Some(module) = module() else { return };
    let interpreted = Arc::new(Interpreted::new(Arc::clone(&module), 1, false));
    let card: Arc<dyn Card> = interpreted.clone();
    let mut rows: Vec<Row> = operators::cases().iter().map(|case| case.check(&card)).collect();
    rows.extend(operators::fused(&card));
    rows.extend(operators::fused_norms(&card));
    rows.extend(ring_attention::cases().iter().flat_map(|case| case.check(&card)));
    rows.extend(operators::dealt(&card));
    // What an H100 does by groups of warps, others do by warps.
    let other = Arc::new(Interpreted::plain(Arc::clone(&module), 2));
    let plain: Arc<dyn Card> = other.clone();
    let by_group = |case: &operators::Case| case.name().contains("attention") && case.name().contains("bf16");
    rows.extend(operators::cases().iter().filter(|case| by_group(case)).map(|case| case.check(&plain)));
    rows.iter().for_each(|row| println!("{:70} {:50} {}", row.name, row.found, row.against));
    let failed: Vec<&Row> = rows.iter().filter(|row| row.passed != Some(true)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(rows.len() > 200, "{} rows", rows.len());
    beside_the_graph(&card).unwrap_or_else(|error| panic!("{error}"));
    let mut ran = interpreted.ran();
    ran.extend(other.ran().into_iter().filter(|(kernel, _)| kernel.starts_with("tensor_")));
    for (kernel, ran) in &ran {
        println!("{kernel:40} {:6} launches, {:12} instructions of warps", ran.launches, ran.counts.instructions);
    }
    let never: BTreeSet<&str> = module.kernels().filter(|kernel| !ran.contains_key(*kernel)).collect();
    assert_eq!(never, BTreeSet::from(NEVER_LAUNCHED));
}

/// What is launched beside operators: the optimizer's step, and what members of a group have combined.
fn beside_the_graph(card: &Arc<dyn Card>) -> Result<(), CardError> {
    let context = Context::new(Arc::clone(card));
    let floats = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
    let held = |values: &[f32]| Memory::holding(card, &floats(values));
    const ELEMENTS: u64 = 1301;
    let some: Vec<f32> = (0..ELEMENTS).map(|at| (at % 97) as f32 - 40.0).collect();
    // Whole numbers whose squares a float adds up without rounding.
    let squares: f32 = some.iter().skip(1).map(|value| value * value).sum();
    assert_eq!(context.squares(held(&some)?.after(4), ELEMENTS - 1)?, f64::from(squares));
    for format in [Format::F32, Format::Bf16] {
        // The second half of a float's bytes is one of bf16, and whole numbers this small are exact in it.
        let narrow: Vec<u8> = match format {
            Format::F32 => floats(&some),
            Format::Bf16 => some.iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect(),
        };
        let from = [(); 3].map(|()| Memory::holding(card, &narrow));
        let from = from.into_iter().collect::<Result<Vec<_>, _>>()?;
        let places: Vec<_> = from.iter().map(Memory::at).collect();
        let to = Memory::new(card, ELEMENTS * format.bytes())?;
        context.combine(true, format, &places, to.at(), ELEMENTS)?;
        assert_eq!(to.read()?, narrow);
        context.combine(false, format, &places[..1], to.at(), ELEMENTS)?;
        assert_eq!(to.read()?, narrow);
        // The first step goes by the rate against the gradient's sign, whatever its size. A share may begin anywhere.
        let optimizer = AdamW { weight_decay: 0.0, ..AdamW::default() };
        for (start, clear) in [(0, true), (1, true), (0, false), (1, false)] {
            let (master, gradient) = (held(&some)?, held(&some)?);
            let [mean, square] = [Memory::zeros(card, 4 * ELEMENTS)?, Memory::zeros(card, 4 * ELEMENTS)?];
            let [of_master, of_gradient, of_mean, of_square] =
                [&master, &gradient, &mean, &square].map(|memory| memory.after(4 * start));
            let places = [to.after(format.bytes() * start), of_master, of_gradient, of_mean, of_square];
            context.adamw(&optimizer, 0, format, places, ELEMENTS - start, true, clear)?;
            let left = if clear { vec![0.0; some.len()] } else { some.clone() };
            assert_eq!(gradient.read()?[4 * start as usize..], floats(&left)[4 * start as usize..]);
            for (old, new) in some.iter().zip(master.read()?.chunks_exact(4)).skip(start as usize) {
                let new = f32::from_le_bytes([new[0], new[1], new[2], new[3]]);
                let direction = if *old == 0.0 { 0.0 } else { old.signum() };
                let expected = f64::from(*old) - optimizer.rate(0) * f64::from(direction);
                assert!(
                    (f64::from(new) - expected).abs() < 1e-5 * expected.abs().max(1.0),
                    "{old}: {new} {expected}"
                );
            }
        }
    }
    Ok(())
}

/// Attention as `heads` says, in both formats.
fn attention(card: &Arc<dyn Card>, formats: &[Dtype], spread: Spread) -> Vec<Row> {
    formats
        .iter()
        .flat_map(|format| operators::attention_cases(*format, spread))
        .map(|case| case.check(card))
        .collect()
}

/// The kernels of attention alone, those on tensor cores for one width: as they are, and with faults.
fn attention_source() -> String {
    let kept = ["prelude.cuh", "elementwise.cu", "attention.cu", "attention_tensor.cu", "attention_groups.cu"];
    let files = source::FILES.iter().filter(|(name, _)| kept.contains(name));
    let all: String = files.map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect();
    // Templates that nothing is made of cost nothing.
    let makes = |line: &str| ["KERNEL", "TENSOR_", "GROUP_"].iter().any(|name| line.starts_with(name));
    let lines = all.lines().map(|line| if makes(line) && !line.contains("(64, 64") { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Text, what it becomes, and what is then found.
type Fault = (&'static str, &'static str, &'static str);

/// Faults that someone could make in the kernels of attention.
const FAULTS: [Fault; 12] = [
    // Barriers that are missing: between the keys and who multiplies with them, and before they are overwritten.
    (
        "// The keys are there, and nobody reads the values before any more.\n        Way::arrive();",
        "wait_for_copies();",
        "reads what nobody has written: shared memory",
    ),
    (
        "// The values are there, and nobody reads these keys any more.\n        Way::arrive();",
        "wait_for_copies();",
        "a race",
    ),
    (
        "any more.\n        Way::arrive();\n        bool goes_on = step + 1 < steps;",
        "\n wait_for_copies();\n bool goes_on = step + 1 < steps;",
        "reads what nobody has written: shared memory",
    ),
    // Copies that nobody waits for.
    (
        "// The values are there, and nobody reads these keys any more.\n        Way::arrive();",
        "__syncthreads();",
        "still copies there",
    ),
    // The next tile comes into the buffer that is read.
    (
        "if (goes_on && buffers == 2) fetch(1 - now);",
        "if (goes_on && buffers == 2) fetch(now);",
        "another thread still copies there",
    ),
    // Rows of shared memory that matrices cannot be loaded from.
    ("bf16 v[N][D + 8];", "bf16 v[N][D + 4];", "not aligned to the 16 bytes"),
    // More shared memory than the launch asks for.
    ("bf16 v[N][D + 8];", "bf16 v[N][D + 16];", "nothing is in shared memory"),
    // Rows beyond the sequence.
    ("i < there ? row : from, i < there)", "row, true)", "reads where nothing is"),
    ("if (row + 8 < rows) *(unsigned*)", "if (row < rows) *(unsigned*)", "a race: it writes"),
    // Operands in another order.
    ("mma(c[2 * n], left, right[0], right[1]);", "mma(c[2 * n], left, right[1], right[0]);", "e"),
    ("\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])", "\"r\"(a[0]), \"r\"(a[2]), \"r\"(a[1]), \"r\"(a[3])", "e"),
    // Lanes that do not take part.
    (
        "now[half] = fmaxf(now[half], __shfl_xor_sync(0xffffffffu, now[half], 2));",
        "if (threadIdx.x % 32 < 30) now[half] = fmaxf(now[half], __shfl_xor_sync(0xffffffffu, now[half], 2));",
        "inactive lanes",
    ),
];

/// The same by groups of warps.
const FAULTS_OF_GROUPS: [Fault; 12] = [
    // What is written is not shown to tensor cores, or not waited for.
    ("asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");", "", "not shown to products"),
    (
        "asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");\n        __syncthreads();",
        "",
        "nobody has written",
    ),
    // Sums that are looked at before they are there, and products that nobody waits for.
    ("asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");", "", "have not waited for products"),
    ("asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");", "", "have not waited for products"),
    // Registers that products may find as they were before.
    ("    keep(left);\n    keep(c);\n    begin_products();", "", "no wgmma.fence"),
    // Matrices that lie elsewhere than is said, or in another way.
    ("__align__(1024)", "__align__(512)", "begin at no multiple of 1024"),
    ("1ull << 62", "2ull << 62", "a way that is not known"),
    ("(ull)(1024 >> 4) << 32", "(ull)(512 >> 4) << 32", "e"),
    ("((j / 8) ^ i) % 8 * 8", "j % 64", "e"),
    ("%36, p, 1, 1, 1;", "%36, p, 1, 1, 0;", "e"),
    // The next tile comes into the buffer that is read.
    ("if (goes_on && buffers == 2) fetch(1 - now);", "if (goes_on) fetch(now);", "still copies there"),
    // Products that some warps do not come to.
    (
        "if (Way::sees_any_key(at, query, key)) {",
        "if (threadIdx.x % GROUP < 96) {",
        "not all of warps 0..4 take part",
    ),
];

#[test]
fn faults_in_the_kernels_of_attention_are_found() {
    are_found(&FAULTS, Ways::OfAnyCard);
}

#[test]
fn faults_in_attention_by_groups_of_warps_are_found() {
    are_found(&FAULTS_OF_GROUPS, Ways::All);
}

/// Of more blocks than one, the last not full.
const SHAPE: Shape = Shape { rows: 200, sequences: 1, heads: [2, 1], window: 200, cap_e12: None };
const WINDOWS: Shape = Shape { sequences: 2, window: 90, cap_e12: Some(3_000_000_000_000), ..SHAPE };

/// A card on which it gives something else goes without it.
#[test]
fn attention_by_groups_of_warps_is_tried_out_first() {
    let source = attention_source();
    let tried = |source: &str| {
        let card: Arc<dyn Card> = Arc::new(Interpreted::new(translated(source, Ways::All)?, 1, false));
        Some((warp_group_trial::try_out(&card, &SHAPE, Duration::ZERO), card))
    };
    let Some((sound, card)) = tried(&source) else { return };
    assert!(sound.is_ok(), "{sound:?}");
    assert_eq!(warp_group_trial::widths(&card), [(64, 64)], "of the source that is short");
    let found = warp_group_trial::compare(&card, &WINDOWS, (64, 64), Duration::ZERO).expect("it runs");
    assert!(found.error < warp_group_trial::MOST && found.repeats, "{found:?}");
    // Pieces of rows that lie elsewhere than tensor cores look for them.
    let (text, fault, _) = FAULTS_OF_GROUPS[8];
    let (tried, _) = tried(&source.replace(text, fault)).expect("NVRTC is there");
    let Err(Unfit::Differ(error)) = tried else { panic!("{tried:?}") };
    assert!(error.to_string().contains("heads 64 and 64 wide differ by"), "{error}");
}

fn are_found(faults: &[Fault], ways: Ways) {
    let source = attention_source();
    let Some(module) = translated(&source, ways) else { return };
    // Sequences that end within a tile, and whose last row is the memory's.
    let spread = Spread { heads: Heads::usual(134, [1, 1], 64), value_width: 64, ways: 1, window: 134 };
    let rows = |module| {
        let card: Arc<dyn Card> = Arc::new(Interpreted::new(module, 1, false));
        attention(&card, &[Dtype::Bf16], spread)
    };
    let failed: Vec<Row> = rows(module).into_iter().filter(|row| row.passed != Some(true)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    for (text, fault, found) in faults {
        let changed = source.replace(text, fault);
        assert_ne!(changed, source, "{text}");
        let rows = translated(&changed, ways).map(rows).expect("NVRTC is there");
        let failed = |row: &Row| row.passed == Some(false) && row.found.contains(found);
        rows.iter().for_each(|row| println!("{fault}\n    {} {}", row.found, row.against));
        assert!(rows.iter().any(failed), "{fault}: {rows:#?}");
    }
}

/// Faults where pieces of sequences meet, which attention over whole ones does not have: text, and what it becomes.
const FAULTS_OF_RINGS: [(&str, &str); 8] = [
    // Keys behind the last one there, which queries of later pieces would see.
    ("if (last > at.count - 1) last = at.count - 1;", ""),
    ("query + queries <= at.count && key + keys <= at.count", "query + queries <= at.count"),
    // Queries that lie no later than the keys.
    ("ll first = key - at.lead;", "ll first = key;"),
    ("ll end = query + tile + at.lead;", "ll end = query + tile;"),
    // What was made of the keys before is left out, or counts by another measure.
    ("l[half * 8 * at.heads] * LOG2_E : -INFINITE;", "l[half * 8 * at.heads] : -INFINITE;"),
    ("total[half] = is_first ? 1.0f : 0.0f;", "total[half] = 1.0f;"),
    ("if (at.adds) add_tile<D>(dq", "if (false) add_tile<D>(dq"),
    ("if (at.adds) add_tile<E>(dv", "if (false) add_tile<E>(dv"),
];

#[test]
fn faults_where_pieces_of_sequences_meet_are_found() {
    let source = attention_source();
    let Some(module) = translated(&source, Ways::OfAnyCard) else { return };
    // Pieces that end within a tile.
    let spread = Spread { heads: Heads::usual(300, [1, 1], 64), value_width: 64, ways: 2, window: 300 };
    // Blocks that see nothing of the piece before, and have begun to fetch it.
    let short = Spread { window: 12, ..spread };
    let rows = |module, spread| {
        let card: Arc<dyn Card> = Arc::new(Interpreted::new(module, 1, false));
        ring_attention::RingCase::new(spread, Dtype::Bf16).check(&card)
    };
    for spread in [spread, short] {
        assert!(rows(Arc::clone(&module), spread).iter().all(|row| row.passed == Some(true)));
    }
    let of_short = ("    wait_for_copies();\n    end_softmax", "    end_softmax");
    let faults = FAULTS_OF_RINGS.map(|fault| (fault, spread)).into_iter().chain([(of_short, short)]);
    for ((text, fault), spread) in faults {
        let changed = source.replace(text, fault);
        assert_ne!(changed, source, "{text}");
        let rows = translated(&changed, Ways::OfAnyCard).map(|module| rows(module, spread)).expect("NVRTC is there");
        rows.iter().for_each(|row| println!("{fault}\n    {} {}", row.found, row.against));
        assert!(rows.iter().any(|row| row.passed == Some(false)), "{fault}: {rows:#?}");
    }
}

/// Sizes of attention beyond those of the selftest: several tiles both ways, widths with their own kernel and without,
/// windows that begin and end within tiles, groups of heads, caps.
#[test]
#[ignore = "a minute: cargo test -p pipeplan --test ptx -- --ignored --nocapture larger"]
fn larger_attention_is_right_too() {
    let Some(module) = module() else { return };
    let card: Arc<dyn Card> = Arc::new(Interpreted::new(module, 3, false));
    let mut rows = Vec::new();
    for (sequence, query, key_value, width, value_width, window, capped) in [
        (257, 4, 1, 16, 16, 257, false),
        (321, 8, 2, 32, 32, 321, false),
        (300, 2, 1, 32, 32, 64, true),
        (256, 4, 4, 64, 64, 256, false),
        (449, 4, 2, 64, 64, 130, false),
        (383, 3, 1, 64, 64, 383, true),
        (200, 2, 1, 80, 80, 200, false),
        (260, 4, 2, 96, 96, 100, true),
        (321, 4, 1, 128, 128, 321, false),
        (385, 2, 2, 128, 128, 129, true),
        (200, 2, 1, 160, 160, 200, false),
        (331, 4, 4, 192, 128, 331, false),
        (330, 4, 2, 192, 128, 65, true),
        (321, 4, 2, 256, 256, 321, false),
        (320, 2, 1, 256, 256, 64, true),
        (193, 1, 1, 256, 256, 2, false),
    ] {
        let cap_e12 = capped.then_some(3_000_000_000_000);
        let heads = Heads { cap_e12, ..Heads::usual(sequence, [query, key_value], width) };
        let spread = Spread { heads, value_width, ways: 1, window };
        // In floats a block goes the same way whatever the width: the larger of them would take hours.
        let formats: &[Dtype] = if width <= 32 { &[Dtype::Bf16, Dtype::F32] } else { &[Dtype::Bf16] };
        for row in attention(&card, formats, spread) {
            println!("{:70} {:50} {}", row.name, row.found, row.against);
            rows.push(row);
        }
    }
    let failed: Vec<&Row> = rows.iter().filter(|row| row.passed != Some(true)).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What each kernel does to memory in the operators' cases: by kernel and line, how often passes over the banks of shared
/// memory, or sectors of global memory, are more than its bytes need.
#[test]
#[ignore = "a table: cargo test -p pipeplan --test ptx -- --ignored --nocapture traffic"]
fn traffic_of_the_kernels() {
    let Some(module) = module() else { return };
    let interpreted = Arc::new(Interpreted::new(Arc::clone(&module), 5, true));
    let card: Arc<dyn Card> = interpreted.clone();
    // Whole tiles, as in training; the other kernels as in the selftest.
    for (width, value_width) in [(32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (48, 48)] {
        let heads = Heads::usual(256, [2, 1], width);
        let rows = attention(&card, &[Dtype::Bf16], Spread { heads, value_width, ways: 1, window: 256 });
        assert!(rows.iter().all(|row| row.passed == Some(true)), "{rows:#?}");
    }
    let others = operators::cases().into_iter().filter(|case| !case.name().contains("attention"));
    others.for_each(|case| drop(case.check(&card)));
    println!("{:42} {:>8} {:>6} {:>28}", "kernel", "shared", "global", "worst lines: taken / needed");
    for (kernel, ran) in interpreted.ran() {
        let sum = |is_shared: bool| {
            let of = ran.counts.traffic.iter().filter(|(_, traffic)| traffic.is_shared == is_shared);
            let (taken, needed) =
                of.fold((0, 0), |sum, (_, traffic)| (sum.0 + traffic.taken, sum.1 + traffic.needed));
            if needed == 0 { "-".to_string() } else { format!("{:.2}", taken as f64 / needed as f64) }
        };
        let mut worst: Vec<_> =
            ran.counts.traffic.iter().filter(|(_, traffic)| traffic.taken > traffic.needed).collect();
        worst.sort_by_key(|(_, traffic)| std::cmp::Reverse(traffic.taken - traffic.needed));
        let lines = worst.iter().take(4).map(|(line, traffic)| {
            let space = if traffic.is_shared { "shared" } else { "global" };
            format!("{} {space} {}/{}", module.place(*line), traffic.taken, traffic.needed)
        });
        println!("{kernel:42} {:>8} {:>6}   {}", sum(true), sum(false), lines.collect::<Vec<_>>().join(", "));
    }
}
