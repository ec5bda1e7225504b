//! The judge is shown faults, each in a few lines of PTX that are right but for it, and names them; and what is right passes.

use pipeplan_ptx::{Counts, Fault, Launch, Memory, Module};

/// Registers that the kernels below use. `%t` is the thread, `%at` its place in shared memory, `%to` in global memory.
const HEAD: &str = "
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
.visible .entry kernel(.param .u64 kernel_param_0)
.maxntid 128, 1, 1
{
    .reg .pred %p<8>; .reg .b32 %r<64>; .reg .f32 %f<16>; .reg .b64 %rd<16>;
    .reg .b32 %t, %at; .reg .b64 %to, %all;
    .shared .align 16 .b8 array[2048];
    ld.param.u64 %all, [kernel_param_0];
    mov.u32 %t, %tid.x;
    mov.u32 %at, array;
    mad.lo.s32 %at, %t, 4, %at;
    mul.wide.u32 %to, %t, 4;
    add.s64 %to, %all, %to;
";

/// Words of global memory that the kernels get, holding their numbers; as many more that nobody has written.
const WORDS: u32 = 256;

#[derive(Clone, Copy)]
struct Run {
    threads: u32,
    blocks: u32,
    shared: u32,
    seed: u64,
}

const RUN: Run = Run { threads: 64, blocks: 1, shared: 0, seed: 1 };

fn run(body: &str, Run { threads, blocks, shared, seed }: Run) -> Result<(Vec<u32>, Counts), Fault> {
    let module = Module::read(&format!("{HEAD}{body}\n ret;\n}}\n"))?;
    let mut memory = Memory::default();
    let at = memory.allocate(u64::from(8 * WORDS));
    let words: Vec<u8> = (0..WORDS).flat_map(u32::to_le_bytes).collect();
    memory.write(at, &words).expect("it is there");
    let launch = Launch {
        kernel: "kernel",
        grid: [blocks, 1, 1],
        threads,
        shared,
        parameters: &at.to_le_bytes(),
        most_shared: 227 << 10,
        most_instructions: 1 << 20,
        seed,
        counts_traffic: true,
    };
    let counts = module.launch(&mut memory, &launch)?;
    let mut bytes = vec![0; 4 * WORDS as usize];
    memory.read(at, &mut bytes).expect("it is there");
    Ok((bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(), counts))
}

/// What is found whatever the order of blocks and warps.
#[track_caller]
fn finds(part: &str, body: &str, how: Run) {
    for seed in 1..9 {
        match run(body, Run { seed, ..how }) {
            Ok(_) => panic!("nothing was found in {body}"),
            Err(fault) => assert!(fault.to_string().contains(part), "{part}: {fault}"),
        }
    }
}

#[track_caller]
fn passes(body: &str, how: Run) -> Vec<u32> {
    let mut results = (1..9).map(|seed| run(body, Run { seed, ..how }).unwrap_or_else(|fault| panic!("{fault}")).0);
    let first = results.next().expect("eight");
    assert!(results.all(|result| result == first));
    first
}

#[test]
fn accesses_are_watched() {
    passes("ld.global.u32 %r1, [%to]; add.s32 %r1, %r1, 1; st.global.u32 [%to], %r1;", RUN);
    finds("reads where nothing is: bytes 2048", "ld.global.u32 %r1, [%all+2048];", RUN);
    finds("reads where nothing is: bytes -4", "ld.global.u32 %r1, [%all+-4];", RUN);
    finds("thread 0", "ld.global.u32 %r1, [%all+2048];", Run { threads: 1, ..RUN });
    finds(
        "writes where nothing is: bytes 2044 to 2044 + 8",
        "mov.u32 %r1, 0; st.global.v2.u32 [%all+2044], {%r1, %r1};",
        RUN,
    );
    finds("reads what nobody has written", "ld.global.u32 %r1, [%all+1024];", RUN);
    finds("not aligned to the 16 bytes", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%to];", RUN);
    finds("not aligned to the 8 bytes", "ld.global.v2.u32 {%r1, %r2}, [%to+4];", RUN);
    finds("not aligned to the 4 bytes", "ld.global.u32 %r1, [%to+2];", RUN);
    finds("thread 37", "setp.eq.s32 %p1, %t, 37; @%p1 ld.global.u32 %r1, [%to+1];", RUN);
    finds("reads what nobody has written: shared", "ld.shared.u32 %r1, [%at];", RUN);
    finds("bytes 2048 to 2052 of an array of 2048", "mov.u32 %r1, array; st.shared.u32 [%r1+2048], %t;", RUN);
    finds("nothing is in shared memory: address 0x0", "mov.u32 %r1, 0; st.shared.u32 [%r1], %t;", RUN);
    // What the launch chooses begins where it says, and ends.
    let dynamic = "mov.u32 %r1, dynamic; mad.lo.s32 %r1, %t, 4, %r1; st.shared.u32 [%r1], %t;";
    passes(dynamic, Run { shared: 256, ..RUN });
    finds("of an array of 252", dynamic, Run { shared: 252, ..RUN });
    // It is aligned to what it says and to nothing more.
    let wide = "mov.u32 %r1, dynamic; and.b32 %r2, %r1, 31; setp.eq.s32 %p1, %r2, 0; @%p1 trap;";
    finds("no such instruction", wide, RUN);
    let wide = "mov.u32 %r1, dynamic; and.b32 %r2, %r1, 31; st.global.u32 [%all], %r2;";
    assert_eq!(passes(wide, Run { threads: 1, ..RUN })[0], 16);
}

#[test]
fn a_block_that_does_not_end_is_ended() {
    finds("the block does not end within 1048576 instructions", "again: bra.uni again;", RUN);
}

#[test]
fn races_are_found_whoever_comes_first() {
    // Each takes its neighbour's.
    let hand = |between: &str| {
        format!(
            "st.shared.u32 [%at], %t; {between}
            add.s32 %r1, %t, 1; and.b32 %r1, %r1, 63; mov.u32 %r2, array; mad.lo.s32 %r2, %r1, 4, %r2;
            ld.shared.u32 %r3, [%r2]; st.global.u32 [%to], %r3;"
        )
    };
    let result = passes(&hand("bar.sync 0;"), RUN);
    assert_eq!(result[..64], (0..64).map(|t| (t + 1) % 64).collect::<Vec<_>>());
    for seed in 1..9 {
        let fault = run(&hand(""), Run { seed, ..RUN }).expect_err("a race").to_string();
        assert!(fault.contains("a race") || fault.contains("reads what nobody has written"), "{fault}");
    }
    // Even where all of a warp go in step.
    finds("no barrier lies between", &hand(""), Run { threads: 32, ..RUN });
    finds("it writes, and thread", "mov.u32 %r1, array; st.shared.u32 [%r1], %t;", RUN);
    // Written again before all have read.
    let again = |between: &str| {
        format!(
            "mov.u32 %r1, array; setp.eq.s32 %p1, %t, 40; @%p1 st.shared.u32 [%r1], %t; bar.sync 0;
            ld.shared.u32 %r2, [%r1]; {between} @%p1 st.shared.u32 [%r1], %r2;"
        )
    };
    passes(&again("bar.sync 0;"), RUN);
    finds("no barrier lies between", &again(""), RUN);
    // Global memory, within a block and between blocks.
    finds("wrote it too", "st.global.u32 [%all], %t;", RUN);
    finds("a race: it", "ld.global.u32 %r1, [%to]; st.global.u32 [%to], %r1;", Run { blocks: 3, ..RUN });
    let one = "mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 1; @%p1 st.global.u32 [%to], %t; @!%p1 ld.global.u32 %r1, [%to];";
    finds("a race", one, Run { blocks: 2, ..RUN });
    passes("ld.global.u32 %r1, [%all]; bar.sync 0; setp.eq.s32 %p1, %t, 5; @%p1 st.global.u32 [%all], %t;", RUN);
    finds("a race", "ld.global.u32 %r1, [%all]; setp.eq.s32 %p1, %t, 5; @%p1 st.global.u32 [%all], %t;", RUN);
}

#[test]
fn copies_are_on_their_way_until_they_are_waited_for() {
    let copy = |wait: &str, barrier: &str, offset: u32| {
        format!(
            "mov.u32 %r1, array; mad.lo.s32 %r1, %t, 16, %r1; mul.wide.u32 %rd1, %t, 16; add.s64 %rd1, %all, %rd1;
            cp.async.cg.shared.global [%r1], [%rd1], 16; {wait} {barrier}
            xor.b32 %r2, %t, {offset}; mov.u32 %r3, array; mad.lo.s32 %r3, %r2, 16, %r3;
            ld.shared.u32 %r4, [%r3+4]; bar.sync 0; st.global.u32 [%to], %r4; cp.async.wait_all;"
        )
    };
    let result = passes(&copy("cp.async.wait_all;", "bar.sync 0;", 33), RUN);
    assert_eq!(result[..64], (0..64u32).map(|t| (t ^ 33) * 4 + 1).collect::<Vec<_>>());
    // Its own copy needs no barrier.
    passes(&copy("cp.async.wait_all;", "", 0), RUN);
    passes(&copy("cp.async.commit_group; cp.async.wait_group 0;", "", 0), RUN);
    finds("this thread still copies", &copy("", "", 0), RUN);
    finds("this thread still copies", &copy("cp.async.commit_group; cp.async.wait_group 1;", "", 0), RUN);
    finds("another thread still copies", &copy("", "bar.sync 0;", 1), RUN);
    finds("no barrier lies between", &copy("cp.async.wait_all;", "", 1), Run { threads: 32, ..RUN });
    finds("has not waited for copies", "cp.async.ca.shared.global [%at], [%to], 4;", RUN);
    finds("not aligned", "cp.async.cg.shared.global [%at], [%to], 16; cp.async.wait_all;", RUN);
    // Where nothing is there, nothing is read, and zeros come.
    let none = "mov.u32 %r1, 0; cp.async.ca.shared.global [%at], [%all+4096], 4, %r1; cp.async.wait_all;
        ld.shared.u32 %r2, [%at]; st.global.u32 [%to], %r2;";
    assert_eq!(passes(none, RUN)[..64], [0; 64]);
    finds("reads where nothing is", "cp.async.ca.shared.global [%at], [%all+4096], 4; cp.async.wait_all;", RUN);
}

#[test]
fn all_threads_come_to_what_they_do_together() {
    finds("not all threads of the block reach", "setp.lt.s32 %p1, %t, 32; @%p1 bra $L; bar.sync 0;\n$L:", RUN);
    finds(
        "not all threads of the block reach",
        "setp.lt.s32 %p1, %t, 32; @%p1 bra $L; bar.sync 0; ret;\n$L: bar.sync 0;",
        RUN,
    );
    finds("not all threads of a warp reach", "setp.lt.s32 %p1, %t, 16; @%p1 bra $L; bar.sync 0;\n$L:", RUN);
    finds("only some threads of a warp ask", "setp.lt.s32 %p1, %t, 16; @%p1 bar.sync 0;", RUN);
    // They meet again behind a branch.
    let meet = "setp.lt.s32 %p1, %t, 16; @%p1 bra $A; mov.u32 %r1, 1; bra.uni $B;\n$A: mov.u32 %r1, 2;\n$B:
        shfl.sync.bfly.b32 %r2|%p2, %r1, 16, 31, -1; st.global.u32 [%to], %r2;";
    assert_eq!(
        passes(meet, RUN)[..34],
        [[1; 16], [2; 16]].concat()[..].iter().copied().chain([1, 1]).collect::<Vec<_>>()[..]
    );
    // And in a loop that each leaves when it likes, in front of which its way out lies.
    let uneven = "and.b32 %r1, %t, 7; bra $LOOP;\n$OUT: shfl.sync.bfly.b32 %r2|%p2, %t, 1, 31, -1; st.global.u32 [%to], %r2; ret;
        $LOOP: add.s32 %r1, %r1, -1; setp.lt.s32 %p1, %r1, 0; @%p1 bra $OUT; bra $LOOP;";
    assert_eq!(passes(uneven, RUN)[..64], (0..64).map(|t| t ^ 1).collect::<Vec<_>>());
    finds("inactive lanes", "setp.lt.s32 %p1, %t, 40; @%p1 bra $L; shfl.sync.bfly.b32 %r2, %t, 1, 31, -1;\n$L:", RUN);
    finds("inactive lanes", "setp.eq.s32 %p1, %t, 3; @%p1 ret; vote.sync.ballot.b32 %r2, %p1, -1;", RUN);
    finds("lanes 0xffff0000 should take part", "shfl.sync.bfly.b32 %r2, %t, 1, 31, -1;", Run { threads: 16, ..RUN });
    finds("lacks it", "shfl.sync.bfly.b32 %r2, %t, 1, 31, 0xffff;", RUN);
    let half =
        "mov.u32 %r1, array; mad.lo.s32 %r1, %t, 16, %r1; st.shared.v4.u32 [%r1], {%t, %t, %t, %t}; bar.sync 0;
        setp.lt.s32 %p1, %t, 16; @%p1 bra $L; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];\n$L:";
    finds("inactive lanes", half, RUN);
    // One address too close to the last.
    let close =
        "mov.u32 %r1, array; mad.lo.s32 %r2, %t, 16, %r1; st.shared.v4.u32 [%r2], {%t, %t, %t, %t}; bar.sync 0;
        mad.lo.s32 %r2, %t, 8, %r1; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];";
    finds("not aligned to the 16 bytes", close, RUN);
    // Rows that only this warp's threads have written still need a barrier: others of them get the values.
    let own = "mov.u32 %r1, array; mad.lo.s32 %r2, %t, 16, %r1; st.shared.v4.u32 [%r2], {%t, %t, %t, %t};
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3, %r4, %r5, %r6}, [%r2];";
    finds("no barrier lies between", own, RUN);
    let or =
        "setp.eq.s32 %p1, %t, 50; bar.red.or.pred %p2, 0, %p1; selp.u32 %r1, 1, 0, %p2; st.global.u32 [%to], %r1;";
    assert_eq!(passes(or, RUN)[..64], [1; 64]);
}

/// By the tables of the PTX ISA, with numbers at the ends of what they can be.
#[test]
fn arithmetic_is_that_of_the_tables() {
    let result = |body: &str| passes(&format!("{body} st.global.u32 [%to], %r9;"), Run { threads: 1, ..RUN })[0];
    // By the sign, or not; too far; in 16 bits.
    assert_eq!(result("mov.u32 %r1, -8; shr.s32 %r9, %r1, 1;"), -4i32 as u32);
    assert_eq!(result("mov.u32 %r1, -8; shr.u32 %r9, %r1, 1;"), 0x7fff_fffc);
    assert_eq!(result("mov.u32 %r1, -8; shr.s32 %r9, %r1, 99;"), u32::MAX);
    assert_eq!(result("mov.u32 %r1, -8; shl.b32 %r9, %r1, 32;"), 0);
    assert_eq!(result("mov.u16 %r1, -3; setp.lt.s16 %p1, %r1, 0; selp.u32 %r9, 1, 0, %p1;"), 1);
    assert_eq!(result("mov.u16 %r1, -3; cvt.s32.s16 %r9, %r1;"), -3i32 as u32);
    assert_eq!(result("mov.u16 %r1, -3; cvt.u32.u16 %r9, %r1;"), 0xfffd);
    assert_eq!(
        result("mov.u32 %r1, -3; cvt.s64.s32 %rd1, %r1; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r9, %rd1;"),
        u32::MAX
    );
    assert_eq!(result("mov.u32 %r1, -3; mul.hi.s32 %r9, %r1, 7;"), u32::MAX);
    assert_eq!(result("mov.u32 %r1, -3; mul.hi.u32 %r9, %r1, 7;"), 6);
    assert_eq!(
        result("mov.u32 %r1, -7; div.s32 %r2, %r1, 2; rem.s32 %r3, %r1, 2; mad.lo.s32 %r9, %r2, 10, %r3;"),
        -31i32 as u32
    );
    assert_eq!(result("mov.u32 %r1, 5; bfi.b32 %r9, %r1, -1, 4, 3;"), 0xffff_ffdf);
    // Across the middle: 5 at bit 31 is 1 at bit 31 and 1 at bit 33.
    let wide = "mov.u64 %rd1, 5; mov.u64 %rd2, 0; bfi.b64 %rd1, %rd1, %rd2, 31, 3;";
    assert_eq!(result(&format!("{wide} cvt.u32.u64 %r9, %rd1;")), 1 << 31);
    assert_eq!(result(&format!("{wide} shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r9, %rd1;")), 2);
    assert_eq!(
        result(
            "mov.u32 %r1, 0x00800000; bfind.u32 %r2, %r1; bfind.shiftamt.u32 %r3, %r1; mad.lo.s32 %r9, %r2, 100, %r3;"
        ),
        2308
    );
    assert_eq!(result("mov.u32 %r1, 1; brev.b32 %r9, %r1;"), 1 << 31);
    // The mov of halves, low first.
    assert_eq!(result("mov.u16 %r1, 1; mov.u16 %r2, 2; mov.b32 %r9, {%r1, %r2};"), 0x2_0001);
    // What is no number is neither less nor not less, unless it is asked so; the other one is the greater.
    let compare = |how: &str| {
        result(&format!("mov.f32 %f1, 0f7FC00000; setp.{how}.f32 %p1, %f1, %f1; selp.u32 %r9, 1, 0, %p1;"))
    };
    assert_eq!(["eq", "ne", "lt", "ge", "num"].map(compare), [0; 5]);
    assert_eq!(["equ", "neu", "ltu", "geu", "nan"].map(compare), [1; 5]);
    assert_eq!(
        result("mov.f32 %f1, 0f7FC00000; mov.f32 %f2, 0fC0000000; max.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;"),
        0xc000_0000
    );
    assert_eq!(
        result("mov.f32 %f1, 0fBF800000; mov.f32 %f2, 0f40000000; copysign.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;"),
        0xc000_0000
    );
    assert_eq!(
        result("mov.f32 %f1, 0f40400000; mov.f32 %f2, 0f3F800000; cvt.rn.bf16x2.f32 %r9, %f1, %f2;"),
        0x4040_3f80
    );
    assert_eq!(result("mov.f32 %f1, 0fC2B00000; ex2.approx.ftz.f32 %f2, %f1; mov.b32 %r9, %f2;"), 0x1380_0000);
    assert_eq!(result("mov.f32 %f1, 0f7FC00000; cvt.sat.f32.f32 %f2, %f1; mov.b32 %r9, %f2;"), 0);
}

#[test]
fn launches_and_texts_are_watched() {
    finds("129 threads a block", "", Run { threads: 129, ..RUN });
    finds("2048 + 230401 bytes of shared memory", "", Run { shared: 230_401, ..RUN });
    passes("", Run { shared: (227 << 10) - 2048, ..RUN });
    finds("divides by 0", "div.s32 %r1, %t, %t;", RUN);
    for unknown in [
        "trap;",
        "add.f16 %r1, %r2, %r3;",
        "ld.volatile.global.u32 %r1, [%to];",
        "bar.sync 1;",
        "mov.u32 %r1, %clock;",
        "mov.u32 %r1, %nothing;",
        "bar.warp.sync -1;",
        "@%p9 bra $X;",
        "bra $NOWHERE;",
        "ld.global.v3.u32 {%r1, %r2, %r3}, [%to];",
        "cp.async.cg.shared.global [%at], [%to], 8;",
        "add.s32 %rd1, %rd1, 1;",
    ] {
        let fault = run(unknown, RUN).expect_err(unknown);
        assert!(fault.what.contains("is not known") && fault.line > 0, "{fault}");
    }
    for text in [
        ".global .u32 x; }",
        ".visible .func f() { ret; }",
        ".visible .entry k() { ret;",
        ".visible .entry k() .minnctapersm 2 { ret; }",
        ".visible .entry k() { .local .b8 x[4]; ret; }",
        ".visible .entry k() { bar.sync 0; }",
        "\u{fffd};",
    ] {
        assert!(Module::read(text).is_err(), "{text}");
    }
    // Lines of the source, where the text has them.
    let text = ".file 1 \"some.cu\"\n.visible .entry k()\n{\n.reg .b32 %r<2>;\n.loc 1 12 3\nmov.u32 %r1, 0;\n.loc 1 13 5, function_name $x, inlined_at 1 9 1\nst.shared.u32 [%r1], %r1;\nret;\n}";
    let module = Module::read(text).expect("it is known");
    let launch = Launch {
        kernel: "k",
        grid: [1; 3],
        threads: 1,
        shared: 0,
        parameters: &[],
        most_shared: 0,
        most_instructions: 100,
        seed: 0,
        counts_traffic: false,
    };
    let fault = module.launch(&mut Memory::default(), &launch).expect_err("nothing is there");
    assert_eq!(
        (fault.line, fault.source, fault.block, fault.thread),
        (8, Some(("some.cu".to_string(), 13)), Some([0; 3]), Some(0))
    );
}

/// What a warp's matrices become, from the definition of the product: 16 x 8 of `a` 16 x 16 and `b` 16 x 8, in whole numbers.
#[test]
fn matrices_multiply_by_the_definition() {
    // Rows of `a` as bf16 lie in the first 512 bytes, rows of `b` transposed (its columns) in the next 256; small whole numbers
    // are exact.
    let a = |row: u32, k: u32| (row * 5 + k * 3) % 7;
    let b = |k: u32, column: u32| (column * 2 + k * 5) % 11;
    let half = |value: u32| (value as f32).to_bits() >> 16;
    let pair = |low: u32, high: u32| half(high) << 16 | half(low);
    let mut store = String::from("mov.u32 %r1, array; setp.ne.s32 %p1, %t, 0; @%p1 bra $GO;\n");
    for word in 0..128 {
        let (row, k) = (word / 8, word % 8 * 2);
        store +=
            &format!("mov.u32 %r2, {}; st.shared.u32 [%r1+{}], %r2;\n", pair(a(row, k), a(row, k + 1)), word * 4);
    }
    for word in 0..64 {
        let (column, k) = (word / 8, word % 8 * 2);
        store += &format!(
            "mov.u32 %r2, {}; st.shared.u32 [%r1+{}], %r2;\n",
            pair(b(k, column), b(k + 1, column)),
            512 + word * 4
        );
    }
    // Lane i points to row i mod 16 of `a`, at the half of its columns that i / 16 says; for `b` to row i mod 8, half i / 8.
    let multiply = |left: &str, right: &str| {
        format!(
            "{store}$GO: bar.sync 0;
            and.b32 %r3, %t, 15; shl.b32 %r3, %r3, 5; shr.u32 %r4, %t, 4; shl.b32 %r4, %r4, 4; add.s32 %r3, %r3, %r4; add.s32 %r3, %r3, %r1;
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r3];
            and.b32 %r5, %t, 7; shl.b32 %r5, %r5, 5; shr.u32 %r6, %t, 3; and.b32 %r6, %r6, 1; shl.b32 %r6, %r6, 4;
            add.s32 %r5, %r5, %r6; add.s32 %r5, %r5, %r1;
            ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r14, %r15}}, [%r5+512];
            mov.f32 %f1, 0f3F800000;
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f2, %f3, %f4, %f5}}, {{{left}}}, {{{right}}}, {{%f1, %f1, %f1, %f1}};
            shr.u32 %r7, %t, 2; shl.b32 %r7, %r7, 5; and.b32 %r8, %t, 3; shl.b32 %r8, %r8, 3; add.s32 %r7, %r7, %r8;
            cvt.u64.u32 %rd1, %r7; add.s64 %rd1, %all, %rd1;
            st.global.f32 [%rd1], %f2; st.global.f32 [%rd1+4], %f3; st.global.f32 [%rd1+256], %f4; st.global.f32 [%rd1+260], %f5;"
        )
    };
    let expected: Vec<f32> = (0..16u32)
        .flat_map(|row| {
            (0..8u32).map(move |column| (0..16).map(|k| (a(row, k) * b(k, column)) as f32).sum::<f32>() + 1.0)
        })
        .collect();
    let found = |left: &str, right: &str| -> Vec<f32> {
        let result = passes(&multiply(left, right), Run { threads: 32, ..RUN });
        result[..128].iter().map(|bits| f32::from_bits(*bits)).collect()
    };
    assert_eq!(found("%r10, %r11, %r12, %r13", "%r14, %r15"), expected);
    // Operands in another order are found by what comes out.
    assert_ne!(found("%r10, %r12, %r11, %r13", "%r14, %r15"), expected);
    assert_ne!(found("%r10, %r11, %r12, %r13", "%r15, %r14"), expected);
    // Whole warps only.
    let few = multiply("%r10, %r11, %r12, %r13", "%r14, %r15");
    finds("matrices need a whole warp", &few, Run { threads: 31, ..RUN });
    // Transposed: of the matrix whose row i holds 8 i to 8 i + 7, a lane gets two of a column.
    let transposed = "mov.u32 %r1, array; setp.ge.s32 %p1, %t, 8; @%p1 bra $GO; shl.b32 %r2, %t, 4; add.s32 %r2, %r2, %r1; shl.b32 %r3, %t, 3;
        mad.lo.s32 %r3, %r3, 65537, 65536; mov.u32 %r4, 131074; add.s32 %r4, %r3, %r4; add.s32 %r5, %r4, 131074; add.s32 %r6, %r5, 131074;
        st.shared.v4.u32 [%r2], {%r3, %r4, %r5, %r6};
        $GO: bar.sync 0; and.b32 %r7, %t, 7; shl.b32 %r7, %r7, 4; add.s32 %r7, %r7, %r1;
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r8}, [%r7]; st.global.u32 [%to], %r8;";
    let expected: Vec<u32> =
        (0..32).map(|lane| (((lane % 4 * 2 + 1) * 8 + lane / 4) << 16) | (lane % 4 * 16 + lane / 4)).collect();
    assert_eq!(passes(transposed, Run { threads: 32, ..RUN })[..32], expected);
}

/// What four warps' products become, from the definition: 64 x 64 of `a` 64 x 16 and `b` 16 x 64, in whole numbers; and what
/// is wrong around them.
#[test]
fn products_of_four_warps_are_by_the_definition_and_watched() {
    let a = |row: u32, k: u32| (row * 5 + k * 3) % 7;
    let b = |k: u32, column: u32| (column * 2 + k * 5) % 11;
    // Rows of 128 bytes whose pieces of 16 are swizzled.
    let place = |row: u32, column: u32| row * 128 + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
    let mut store = String::from(
        ".shared .align 1024 .b8 tiles[24576]; .reg .f32 %s<32>; .reg .b64 %d<4>; .reg .pred %q<2>;
        mov.u32 %r1, tiles; setp.ne.s32 %p1, %t, 0; @%p1 bra $GO;\n",
    );
    let mut put = |tile: u32, row: u32, column: u32, value: u32| {
        let (at, bits) = (tile * 8192 + place(row, column), (value as f32).to_bits() >> 16);
        store += &format!("mov.u16 %h1, {bits}; st.shared.u16 [%r1+{at}], %h1;\n");
    };
    for (row, k) in (0..64).flat_map(|row| (0..16).map(move |k| (row, k))) {
        put(0, row, k, a(row, k));
        // By its columns, and by its rows.
        put(1, row, k, b(k, row));
        put(2, k, row, b(k, row));
    }
    let store = store.replace(".reg .f32 %s<32>;", ".reg .f32 %s<32>; .reg .b16 %h<2>;");
    let sums: Vec<String> = (0..32).map(|sum| format!("%s{sum}")).collect();
    let sums = sums.join(", ");
    const PRODUCT: &str = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16";
    const SHOW: &str = "fence.proxy.async.shared::cta;";
    const FENCE: &str = "wgmma.fence.sync.aligned;";
    const WAIT: &str = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";
    // 1024 bytes from eight rows to the next, swizzled by 128.
    let matrix = |name: &str, offset: u32| {
        format!(
            "add.s32 %r2, %r1, {offset}; shr.u32 %r2, %r2, 4; cvt.u64.u32 {name}, %r2;
            or.b64 {name}, {name}, {};",
            64u64 << 32 | 1 << 62
        )
    };
    let product = |right: u32, transposed: u32| {
        let (left, right) = (matrix("%d1", 0), matrix("%d2", right));
        (
            format!("{left}{right} setp.eq.s32 %q1, %t, -1;"),
            format!("{PRODUCT} {{{sums}}}, %d1, %d2, %q1, 1, 1, 0, {transposed};"),
        )
    };
    let whole = |show: &str, fence: &str, (matrices, product): (String, String), wait: &str, sum: usize| {
        format!("{store}{show} $GO: bar.sync 0; {matrices} {fence} {product} {wait} st.global.f32 [%to], %s{sum};")
    };
    let four = Run { threads: 128, ..RUN };
    for sum in [0, 6, 27] {
        let expected: Vec<f32> = (0..128u32)
            .map(|thread| {
                let (i, lane) = (sum as u32, thread % 32);
                let row = thread / 32 * 16 + lane / 4 + i % 4 / 2 * 8;
                let column = i / 4 * 8 + lane % 4 * 2 + i % 2;
                (0..16).map(|k| (a(row, k) * b(k, column)) as f32).sum()
            })
            .collect();
        for (right, transposed) in [(8192, 0), (16384, 1)] {
            let found = passes(&whole(SHOW, FENCE, product(right, transposed), WAIT, sum), four);
            let found: Vec<f32> = found[..128].iter().map(|bits| f32::from_bits(*bits)).collect();
            assert_eq!(found, expected, "sum {sum}, transposed {transposed}");
        }
        let other = passes(&whole(SHOW, FENCE, product(8192, 0), WAIT, (sum + 1) % 32), four);
        assert_ne!(other[..128].iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>(), expected);
    }
    finds("written and not shown", &whole("", FENCE, product(8192, 0), WAIT, 0), four);
    finds("no wgmma.fence", &whole(SHOW, "", product(8192, 0), WAIT, 0), four);
    finds(
        "was changed since the last wgmma.fence",
        &whole(SHOW, &format!("{FENCE} mov.f32 %s9, 0f00000000;"), product(8192, 0), WAIT, 0),
        four,
    );
    finds("have not waited for products", &whole(SHOW, FENCE, product(8192, 0), "", 0), four);
    finds("no multiple of 1024", &whole(SHOW, FENCE, product(8192 + 128, 0), WAIT, 0), four);
    finds("four whole warps", &whole(SHOW, FENCE, product(8192, 0), WAIT, 0), Run { threads: 96, ..RUN });
    let change = "bar.sync 0; mov.u32 %r3, 0; st.shared.u32 [%r1+8192], %r3;".to_string() + SHOW + "bar.sync 0;";
    finds(
        "changed before anybody waited",
        &whole(SHOW, FENCE, product(8192, 0), &(changed_by_first(&change) + WAIT), 0),
        four,
    );
    let some = "setp.ge.s32 %p2, %t, 96; @%p2 bra $OUT;";
    let (matrices, alone) = product(8192, 0);
    let some = whole(SHOW, FENCE, (matrices, format!("{some}{alone}{WAIT} $OUT:")), "", 0);
    finds("not all of warps 0..4 take part", &some, four);
}

/// `body`, of which the first thread alone stores.
fn changed_by_first(body: &str) -> String {
    body.replace("st.shared", "setp.eq.s32 %p3, %t, 0; @%p3 st.shared")
}

#[test]
fn traffic_is_counted() {
    let traffic = |body: &str| {
        let (_, counts) = run(body, Run { threads: 32, ..RUN }).unwrap_or_else(|fault| panic!("{fault}"));
        counts
            .traffic
            .iter()
            .map(|(_, traffic)| (traffic.is_shared, traffic.taken, traffic.needed))
            .collect::<Vec<_>>()
    };
    // Side by side: 128 bytes are four sectors, and one pass over the banks.
    assert_eq!(traffic("ld.global.u32 %r1, [%to]; st.shared.u32 [%at], %r1;"), [(false, 4, 4), (true, 1, 1)]);
    // Every eighth word of shared memory: eight threads share a bank; and every eighth of global memory, a sector each.
    let apart = "mov.u32 %r1, array; mad.lo.s32 %r1, %t, 32, %r1; st.shared.u32 [%r1], %t;
        mul.wide.u32 %rd1, %t, 32; add.s64 %rd1, %all, %rd1; ld.global.u32 %r2, [%rd1];";
    assert_eq!(traffic(apart), [(true, 8, 1), (false, 32, 4)]);
    // All the same word: at once.
    let same = "mov.u32 %r1, array; setp.eq.s32 %p1, %t, 0; @%p1 st.shared.u32 [%r1], %t; bar.sync 0; ld.shared.u32 %r2, [%r1];";
    assert_eq!(traffic(same), [(true, 1, 1), (true, 1, 1)]);
    // 16 bytes a thread take four passes.
    let wide = "mov.u32 %r1, array; mad.lo.s32 %r1, %t, 16, %r1; st.shared.v4.u32 [%r1], {%t, %t, %t, %t};";
    assert_eq!(traffic(wide), [(true, 4, 4)]);
}
