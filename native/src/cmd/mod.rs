//! The commands of pipeplan, one file each, and what they share.
//!
//! - In: arguments, and files, standard input or links ([`input`]).
//! - Out: files and standard output ([`output`]), or an error with its exit code ([`failure`]).
//! - Knows: the planner (`pipeplan-core`) and the runner. Nothing depends on this folder.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod analysis;
mod calibrate;
mod check;
mod compare;
mod custom_schedule;
mod data;
mod doctor;
mod documents;
mod evaluate;
mod exact_search;
mod export;
pub mod failure;
mod family;
mod format;
mod hang;
mod http;
mod import;
mod input;
mod interrupt;
mod interval;
mod layers;
mod link;
mod memory;
mod nsight;
mod output;
mod paddle;
mod passes;
mod plan;
mod plan_summary;
mod processes;
mod profile;
mod restart;
mod run;
mod schema;
mod search;
mod selection;
mod selftest;
#[cfg(feature = "cuda")]
mod selftest_nccl;
#[cfg(feature = "cuda")]
mod selftest_sanitizer;
mod selftest_worker;
mod sensitivity;
mod serve;
mod show;
mod trace;
mod tune;

use failure::Failure;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the work failed: a file cannot be written, a port is in use, a rank ended early
  2    the input is not accepted, or has no valid plan; standard error gives the reason
  130  Ctrl-C ended a run before its last step

Every SPEC is a spec or a bare problem in TOML or JSON: a file, - for standard input, or a link.
Every PLAN is a plan file or a SPEC; a SPEC is planned first.";

const EXAMPLES: &str = "\
Examples:
  pipeplan compare examples/tiny-llama.toml
  pipeplan memory examples/llama-2-70b.toml
  pipeplan tune examples/llama-2-70b.toml --devices 64
  pipeplan plan examples/tiny-llama.toml --schedule zb-v -o plan.json
  pipeplan show plan.json
  pipeplan run plan.json --trace trace.json
  pipeplan link examples/llama-2-70b.toml
  pipeplan serve --plan plan.json --trace trace.json";

/// What `--help` says after the options: the examples that `-h` shows too, then what all commands share.
fn long_help(examples: &str) -> String {
    format!("{examples}\n\n{EXIT_CODES}")
}

/// Plans pipeline-parallel training, shows the plan, proves how good it is, and runs it.
#[derive(Parser)]
#[command(name = "pipeplan", version, after_help = EXAMPLES, after_long_help = long_help(EXAMPLES))]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Plan(plan::Args),
    Compare(compare::Args),
    Memory(memory::Args),
    Tune(tune::Args),
    Layers(layers::Args),
    Passes(passes::Args),
    Check(check::Args),
    Show(show::Args),
    Sensitivity(sensitivity::Args),
    // Boxed: it has by far the most options.
    Run(Box<run::Args>),
    Data(data::Args),
    Trace(trace::Args),
    Calibrate(calibrate::Args),
    Evaluate(evaluate::Args),
    Profile(profile::Args),
    Link(link::Args),
    Import(import::Args),
    Export(export::Args),
    Serve(serve::Args),
    Schema(schema::Args),
    Doctor(doctor::Args),
    Selftest(selftest::Args),
    Completions(Completions),
}

/// Print a script that completes commands in a shell.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  pipeplan completions bash > ~/.local/share/bash-completion/completions/pipeplan"
)]
struct Completions {
    /// The shell.
    shell: clap_complete::Shell,
}

impl Cli {
    /// What this process was called with. Where it cannot be read, or only asks for help, that is said and the process ends.
    ///
    /// A number below 0 is told to the option that it follows, which says what it takes; else it would be taken for an
    /// separate option.
    pub fn read() -> Cli {
        let takes_numbers = |arg: clap::Arg| {
            let is_option = !arg.is_positional() && arg.get_action().takes_values();
            if is_option { arg.allow_negative_numbers(true) } else { arg }
        };
        let command = Cli::command().mut_subcommands(|command| command.mut_args(takes_numbers));
        let matches = command.clone().try_get_matches();
        let read = matches.and_then(|matches| Cli::from_arg_matches(&matches));
        read.unwrap_or_else(|error| in_words(error, &command).exit())
    }

    /// Runs the command.
    pub fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Plan(args) => plan::run(args),
            Command::Compare(args) => compare::run(args),
            Command::Memory(args) => memory::run(args),
            Command::Tune(args) => tune::run(args),
            Command::Layers(args) => layers::run(args),
            Command::Passes(args) => passes::run(args),
            Command::Check(args) => check::run(args),
            Command::Show(args) => show::run(args),
            Command::Sensitivity(args) => sensitivity::run(args),
            Command::Run(args) => run::run(*args),
            Command::Data(args) => data::run(args),
            Command::Trace(args) => trace::run(args),
            Command::Calibrate(args) => calibrate::run(args),
            Command::Evaluate(args) => evaluate::run(args),
            Command::Profile(args) => profile::run(args),
            Command::Link(args) => link::run(args),
            Command::Import(args) => import::run(args),
            Command::Export(args) => export::run(args),
            Command::Serve(args) => serve::run(args),
            Command::Schema(args) => schema::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::Selftest(args) => selftest::run(args),
            Command::Completions(args) => {
                let mut script = Vec::new();
                clap_complete::generate(args.shell, &mut Cli::command(), "pipeplan", &mut script);
                output::print_bytes(&script)
            }
        }
    }
}

/// `error` with what a number must be in the place of the parser's words about its digits.
fn in_words(error: clap::Error, command: &clap::Command) -> clap::Error {
    let Some(wrong) = error.source().and_then(|source| source.downcast_ref::<ParseIntError>()) else { return error };
    let expected = match wrong.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "a smaller whole number is needed",
        _ => "a whole number in digits is needed, such as 8",
    };
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let (value, option) = (said(ContextKind::InvalidValue), said(ContextKind::InvalidArg));
    let message = format!("invalid value '{value}' for '{option}': {expected}");
    clap::Error::raw(error.kind(), format!("{message}\n")).with_cmd(command)
}
