extern crate std;

use alloc::string::ToString;
use alloc::vec;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn read_with(text: &str, given: &[(&str, &str)]) -> Outcome {
    let given = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    read(text, &given, &BTreeMap::new()).unwrap_or_else(|fault| panic!("{fault}\n{text}"))
}

/// The words of each `train`, as a person reads them.
fn trained(outcome: &Outcome) -> Vec<Vec<String>> {
    let words = |ran: &Ran| ran.words.iter().map(|word| outcome.shown(word)).collect();
    outcome.ran.iter().map(words).collect()
}

/// Scripts whose commands do not depend on where they run.
const SCRIPTS: &[&str] = &[
    r#"A=1 B='two words' C="x $A"; train --a $A --b $B --c "$C" --d '$A'"#,
    "ARGS=\" \\\n --num-layers 24 \\\n --hidden 8 \\\n\"\ntrain $ARGS --tail",
    "ARGS=(\n --a 1 # --b 2\n --c 'x y'\n)\nARGS+=( --d \"${HOME_-}\" )\ntrain ${ARGS[@]} ; train \"${ARGS[@]}\"",
    "N=8; M=2; D=$((N*M/4)); train --d $D --e $(($N+1)) --f $((D**3 % 7)) --g $(( (1<<4) | 3 ))",
    "S=7B\nif [ $S = 7B ]; then L=32\nelif [ $S = 13B ]; then L=40\nelse L=80; fi\ntrain --l $L",
    "S=13B; case $S in 7B|8B) L=32;; 13*) L=40 ;; *) L=1;; esac; train --l $L",
    "S=x; [[ $S == x* && -n $S ]] && L=1 || L=2; [[ $S != y ]] && M=3; train --l $L --m $M",
    "for x in 1 2 3; do A+=\" --x $x\"; done; train $A",
    "A=(); for ((i=0; i<5; i++)); do if (( i < 2 )); then A+=(0); else A+=(1); fi; done\n\
     printf -v F '[%s]' \"$(IFS=', '; echo \"${A[*]}\")\"; train --f $F",
    "i=0; while [ $i -lt 3 ]; do i=$((i+1)); [ $i -eq 2 ] && continue; A=\"$A,$i\"; done; train --a $A",
    "add() { local n=$1; shift; R=\"$R --$n $*\"; }; n=keep; add a 1 2; add b 3; train $R --n $n",
    "train --a ${X:-d} --b ${Y-e} --c ${Z:=f} --d $Z --e ${Z:+g} --f x${W:+h}x",
    "P=/a/b/c.tar.gz; train --a ${P##*/} --b ${P%.*} --c ${P%%.*} --d ${P#*/} --e ${P/b/X} --f ${P//a/_} --g ${#P}",
    "V=hello; train --a ${V^^} --b ${V:1:3} --c ${V: -2} --d ${V^}",
    "A=(a b 'c d'); train --n ${#A[@]} --one ${A[1]} --last ${A[-1]} --all \"${A[@]:1}\" --star \"${A[*]}\"",
    "declare -A M=([7B]=32 [13B]=40); S=13B; train --l ${M[$S]} --k ${M[7B]}",
    "A=$(echo 3); B=`echo $A$A`; C=$(echo a; echo b); train --a $A --b $B --c \"$C\" --d $C",
    "cat <<EOF > /dev/null\n$A\nEOF\nread A B <<< '4 5 6'; train --a $A --b $B",
    "N=A; A=5; train --n ${!N}; unset A; train --a ${A:-none}",
    "train --a {1,2} --b {1..3} x{a,b}y",
    "set -- one 'two x'; train --a $1 --n $# --all \"$@\"; shift; train --b $1",
    "CMD=\"train --a 1\"; $CMD --b 2; eval \"$CMD --c '3 4'\"",
    "train --a \"quoted \\\"x\\\" \\$y\" --b back\\ slash --c a'b'\"c\"",
    "IFS=',' read -r A B <<< \"1,2\"; train --a $A --b $B",
    "x=3; until [ $x -le 0 ]; do x=$((x-1)); done; train --x $x",
    "A=1; (A=2; train --a $A); train --a $A; { A=3; }; train --a $A",
    "f() { if [ $1 = 1 ]; then return 1; fi; }; f 1 || train --failed; f 2 && train --ok",
    "[ 3 -gt 2 -a x = x ] && train --a; [ ! 1 = 2 ] && train --b; [ -z '' ] && train --c; ! false && train --d",
    "A=5; (( A += 2, A++ )); train --a $A --b $((A > 7 ? 1 : 2)) --c $((A-- - 1)) --d $A",
    "export A=1 B='x y'; declare -i C=3; train --a $A --b \"$B\" --c $C",
    "A=a,b,c; for x in ${A//,/ }; do train --x $x; done",
    "a='--x 1'; b=\"$a --y\"; train $b \"$a\"; train ${a}; train ''",
    "echo '2 * 3 + 1' | while read a b c; do train --a $a --c $c; done",
    "n=0x10; train --n $((n)) --o $((010)) --b $((2#101)); [ 08 = 8 ] || train --text",
    "for i in $(seq 2 4); do for j in 1 2; do [ $j = 2 ] && break; train --i $i --j $j; done; done",
    "seq_=([2]=x [0]=y); train \"${seq_[@]}\" --keys ${!seq_[@]}",
    "A='--x 1 --y'; if echo \"$A\" | grep -q -- '--z'; then train --z; else train --no; fi; echo $A | grep -q -- --x && train --x",
    "B=$(printf 'one\\ntwo\\nTwo\\n' | grep -i TW | grep -v T); train --b $B; echo a.b | grep -qF . || train --none",
    "train --a $'tab\\tx' --b $\"text\" --c ~x; train --u \"${U-}\" --e \"\"",
    "A=(); train --n \"$@\" --m \"${A[@]}\" --e \"\" --x \"x$@\" --s \"$*\"; set -- a; train --n \"$@\"",
    "W=8; N=$[$W / 4]; train --n $N --m $[ (W+4) % 5 ]",
    "w=\"a   b\"; train $w; train \"$w\"; IFS=:; p=x:y::z; train $p --",
    "if false; then :; elif true && ! false; then train --elif; else train --else; fi",
    "case x-y in *-*) train --dash;; esac; case '*' in '*') train --star;; esac; case ab in [a-c]b) train --set;; esac",
    "true || train --no; false && train --no; true && train --yes # train --comment",
    "A=1\nif true ; then A=2 ; fi ; train --semi $A",
];

/// Bash itself says what a script comes to.
#[test]
fn a_script_comes_to_what_bash_makes_of_it() {
    const PRINTS: &str = "train() { printf '\\001train'; printf '\\002%s' \"$@\"; printf '\\n'; }\n";
    for script in SCRIPTS {
        let bash =
            Command::new("bash").env_clear().args(["--norc", "-c", &alloc::format!("{PRINTS}{script}")]).output();
        let Ok(bash) = bash else { return };
        let said = String::from_utf8(bash.stdout).unwrap();
        let expected: Vec<Vec<String>> = said
            .split('\u{1}')
            .skip(1)
            .map(|line| line.trim_end_matches('\n').split('\u{2}').map(String::from).collect())
            .collect();
        // A command without any `--` is no command with arguments.
        let is_kept = |words: &Vec<String>| words.iter().any(|word| word.starts_with("--"));
        let expected: Vec<Vec<String>> = expected.into_iter().filter(is_kept).collect();
        assert_eq!(trained(&read_with(script, &[])), expected, "{script}\n{}", String::from_utf8_lossy(&bash.stderr));
    }
}

#[test]
fn what_only_a_running_shell_knows_is_a_mark_with_its_name() {
    let outcome = read_with("N=$(nproc)\ntrain --n $N --m $((N*2)) --h $HOSTS --l ${LAYERS:-3} --p $1", &[]);
    assert_eq!(trained(&outcome)[0], ["train", "--n", "$N", "--m", "$N", "--h", "$HOSTS", "--l", "3", "--p", "$1"]);
    let given =
        read_with("N=$(nproc)\ntrain --n $N --p $1 --h $H", &[("N", "8"), ("1", "x"), ("H", "y"), ("U", "z")]);
    assert_eq!(trained(&given)[0], ["train", "--n", "8", "--p", "x", "--h", "y"]);
    assert_eq!(given.unused, ["U"]);
}

#[test]
fn a_branch_on_an_unknown_is_read_both_ways() {
    let script = "L=1; SAME=5\nif [ $SIZE = 7B ]; then L=32; SAME=5; elif [ $SIZE = 13B ]; then L=40; else exit 1; fi\n\
                  A=(--x 1); [ \"$DEBUG\" = 1 ] && A+=(--y 2)\nif [ -f x ]; then B=1; fi\ntrain --l $L --s $SAME ${A[@]} --b $B";
    let outcome = read_with(script, &[]);
    assert_eq!(trained(&outcome), [["train", "--l", "$SIZE", "--s", "5", "--x", "1", "$DEBUG", "--b", "[ -f x ]"]]);
    let size = outcome.root(unknown_in(&outcome.ran[0].words[2]).unwrap()).unwrap();
    assert_eq!(size.values.iter().collect::<Vec<_>>(), ["13B", "7B"]);
    let extra = &outcome.unknowns[only_unknown(&outcome.ran[0].words[7]).unwrap()];
    assert!(extra.alternatives.contains(&vec!["--y".to_string(), "2".to_string()]), "{extra:?}");
    assert_eq!(trained(&read_with(script, &[("SIZE", "13B"), ("DEBUG", "0")]))[0][2], "40");
    // Nor is it known whether a program succeeds, whatever its options.
    for test in [
        "nvidia-smi --query-gpu=name | grep -q H100",
        "python -c --x",
        "grep --quiet x file",
        "which --all x",
        "python check.py",
    ] {
        let outcome = read_with(&alloc::format!("if {test}; then N=8; else N=4; fi; train --n $N"), &[]);
        let trained = outcome.ran.iter().find(|ran| ran.words[0] == "train").expect("it trains");
        let unknown = unknown_in(&trained.words[2]).unwrap_or_else(|| panic!("{test}: {:?}", trained.words));
        let alternatives = &outcome.unknowns[unknown].alternatives;
        assert!(
            ["4", "8"].iter().any(|value| alternatives.contains(&vec![value.to_string()])),
            "{test}: {alternatives:?}"
        );
    }
    // What nothing sets is empty where that is asked.
    let unset = read_with("if [ -z \"$TP\" ]; then TP=4; fi; [ -n \"$PP\" ] || PP=2; train --tp $TP --pp $PP", &[]);
    assert_eq!(trained(&unset)[0], ["train", "--tp", "4", "--pp", "2"]);
}

#[test]
fn commands_are_found_where_scripts_put_them() {
    let commands = |script: &str| trained(&read_with(script, &[]));
    assert_eq!(
        commands("srun -n 8 bash -c \"python t.py --a $((1+1))\""),
        [["srun", "-n", "8", "python", "t.py", "--a", "2"]]
    );
    assert_eq!(commands("cat > r.sh <<'EOF'\ntrain --a $X\nEOF\nX=1 bash r.sh"), [["train", "--a", "1"]]);
    assert_eq!(commands("sbatch <<EOF\n#!/bin/bash\ntrain --a 1\nEOF"), [["train", "--a", "1"]]);
    assert_eq!(commands("sbatch --wrap='train --a 1'"), [["train", "--a", "1"]]);
    // A job that the script has written says itself what it asks for, and its options say it before.
    let job = "N=2\ncat > j.sh <<EOF\n#SBATCH --nodes=$N\n#SBATCH --gpus-per-node=4\nEOF\n\
               echo 'train --n $SLURM_NNODES --g $SLURM_GPUS_PER_NODE --u '$UNKNOWN >> j.sh\nsbatch -N 3 j.sh";
    assert_eq!(commands(job), [["train", "--n", "3", "--g", "4", "--u", "$UNKNOWN"]]);
    assert_eq!(read_with(job, &[]).ran[0].batch.devices(), Some(12));
    // What the job is called with, and its text, are not options of `sbatch`.
    let devices = |script: &str| read_with(script, &[]).ran[0].batch.devices();
    let job = "cat > j.sh <<EOF\n#SBATCH -N 2\n#SBATCH --gres=nvme:1,gpu:h100:8\ntrain --a 1\n#SBATCH -N 7\nEOF\n";
    assert_eq!(devices(&format!("{job}sbatch j.sh")), Some(16));
    assert_eq!(devices(&format!("{job}sbatch -N 4 j.sh -n 5")), Some(32));
    assert_eq!(devices("sbatch -N 2 --ntasks-per-node 8 --wrap 'train --a 1 -N 1'"), Some(16));
    // An unknown number of nodes is not that of the job's own lines.
    assert_eq!(devices(&format!("{job}sbatch -N $NODES j.sh")), None);
    // A later option with a number takes the place of an unknown one.
    let step = BatchJob::of_options(&["--nodes=2"], BatchJob::of("#SBATCH --nodes=2-4\n#SBATCH --gpus-per-node=8"));
    assert_eq!((step.devices(), step.unknown()), (Some(16), None));
    // Lines of a job that a script writes are not its own.
    assert_eq!(BatchJob::of(&format!("#!/bin/bash\n#SBATCH -n 3\n\n{job}")).devices(), Some(3));
    // Without options to parse, `getopt` says that there are none.
    let options = "A=1; O=$(getopt -o '' --long a:,b -- \"$@\"); eval set -- \"$O\"\nwhile true; do case \"$1\" in \
                   --a) A=$2; shift 2;; --) shift; break;; *) exit 1;; esac; done; train --a $A";
    assert_eq!(commands(options), [["train", "--a", "1"]]);
    assert_eq!(commands("while true; do train --a 1 2>&1 | tee log; sleep 1; done"), [["train", "--a", "1"]]);
    assert_eq!(
        commands("while [ $# -gt 0 ]; do T=$1; shift; done\n[ $# -lt 1 ] && exit 1\ntrain --a 1"),
        [["train", "--a", "1"]]
    );
    // What `ps` prints has no quotes.
    assert_eq!(
        commands("t.py --moe-layer-freq ([0]*3 + [1]*58) --pipeline-model-parallel-layout Et*2|(t|)*3,L --b"),
        [[
            "t.py",
            "--moe-layer-freq",
            "([0]*3 + [1]*58)",
            "--pipeline-model-parallel-layout",
            "Et*2|(t|)*3,L",
            "--b"
        ]]
    );
    assert_eq!(read_with("[ -z \"$1\" ] && exit 1\ntrain --a", &[]).ended, Some(1));
}

/// Scripts that never end, that stand for themselves, and that grow.
#[test]
fn what_has_no_end_is_refused_with_its_line() {
    let given = BTreeMap::new();
    let fault = |script: &str| read(script, &given, &BTreeMap::new()).unwrap_err().to_string();
    for (script, part) in [
        ("A=1\nwhile true; do A=$((A+1)); done", "line 2: the script takes more steps"),
        ("A=B\nB=A\ntrain --a $((A))", "line 3: "),
        ("A=xy\nfor i in {1..60}; do A=$A$A; done", "line 2: a value of more than"),
        ("f() { f; }\nf", "too deep"),
        ("if true; then\ntrain", "line 2: the script ends where `fi` is missing"),
        ("train \"a", "line 1: a quote"),
        ("train --a $((1/0))", "1 / 0 has no value"),
        ("select x in a; do :; done", "`select` is not read"),
        ("cat <<EOF\nx", "a here-document without its end, `EOF`"),
    ] {
        assert!(fault(script).contains(part), "{script}: {}", fault(script));
    }
    for deep in ["(", "{ ", "$(", "\"$(", "if ", "((", "[[ ( ", "${A:-", "! ", "f() ", "case x in a) "] {
        let _ = read(&deep.repeat(20_000), &given, &BTreeMap::new());
        let _ = read(&alloc::format!("train {}", deep.repeat(20_000)), &given, &BTreeMap::new());
    }
    assert!(fault(&"#".repeat(MOST_OF_SCRIPT + 1)).contains("has at most"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(which in 0..SCRIPTS.len(), at in any::<prop::sample::Index>(), with in "[ -~\n]{0,6}") {
        let mut script = SCRIPTS[which].to_string();
        script.insert_str(at.index(script.len()), &with);
        let _ = read(&script, &BTreeMap::new(), &BTreeMap::new());
    }

    #[test]
    fn no_signs_panic(script in r#"[a1$(){}"'`\\;&|<>=!#*/?@\[\]:+~ \n-]{0,40}"#) {
        let _ = read(&script, &BTreeMap::new(), &BTreeMap::new());
    }
}

/// Files are found beside the script and beside the file that names them; those without text are told as wanted.
#[test]
fn what_a_script_takes_from_files_is_read_where_it_is_given() {
    let script = "HERE=\"$(cd -- \"$(dirname -- \"${BASH_SOURCE[0]}\")\" &>/dev/null && pwd)\"\n\
                  source \"$HERE/models/a.sh\"\n. ./env.sh one\ntrain ${ARGS[@]} --x $X --l $L --y $Y";
    let read_with_files = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        read(script, &BTreeMap::new(), &files)
    };
    let wanted = |outcome: &Outcome| outcome.wanted.iter().cloned().collect::<Vec<_>>();
    let without = read_with_files(&[]).unwrap();
    assert_eq!(wanted(&without), ["env.sh", "models/a.sh"]);
    assert_eq!(trained(&without), [["train", "$ARGS", "--x", "$X", "--l", "$L", "--y", "$Y"]]);
    let first = ("models/a.sh", "L=3 . \"$(dirname $0)/b.sh\"\nreturn 0\nL=5");
    let env = ("env.sh", "X=$1\nY=${2-none}");
    let part = read_with_files(&[first, env]).unwrap();
    assert_eq!(wanted(&part), ["b.sh", "models/b.sh"]);
    // Beside the file that names it first.
    let files = [first, env, ("models/b.sh", "ARGS=(--a 1 --n $L)"), ("b.sh", "ARGS=(--b 2)")];
    let whole = read_with_files(&files).unwrap();
    assert!(whole.wanted.is_empty());
    assert_eq!(trained(&whole), [["train", "--a", "1", "--n", "3", "--x", "one", "--l", "$L", "--y", "none"]]);
    assert_eq!(whole.notes.iter().filter(|note| note.ends_with("is read, too")).count(), 3);
    // A file that reads itself ends, and one that is no script is told with its line.
    let own = read_with_files(&[("models/a.sh", "source models/a.sh; ARGS=(--c 3)"), ("env.sh", "X=1")]).unwrap();
    assert!(own.notes.iter().any(|note| note.contains("`models/a.sh`") && note.ends_with("is not read")));
    let fault = read_with_files(&[("models/a.sh", "A=1\nif true"), env]).unwrap_err().to_string();
    assert!(fault.starts_with("line 2: models/a.sh, line"), "{fault}");
    for (text, path) in [("a.sh", Some("a.sh")), ("./a/../b.sh", Some("a/../b.sh")), ("~/.bashrc", None), ("", None)]
    {
        assert_eq!(path_of(text), path);
    }
}
