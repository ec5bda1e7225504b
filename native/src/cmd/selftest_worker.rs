//! The selftest of a device in a separate process: a fault of the device, or a test that does not end, costs that
//! process, and another goes on behind it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use pipeplan::backend::cuda::warp_group_trial;
use pipeplan::selftest::{self, Asked, News, Report, Row};
use pipeplan_core::hardware::profile::Profile;
use serde::{Deserialize, Serialize};

use super::failure::Failure;

/// A line of what a worker prints.
#[derive(Serialize, Deserialize)]
enum Line {
    /// As it goes on.
    News(News),
    /// Last: the test has come to its end.
    Whole,
    /// Instead of all: why the device cannot be used.
    Unusable(String),
}

/// How long a worker may say nothing: a kernel that does not end is not told from a long one otherwise.
pub const SILENCE: Duration = Duration::from_secs(180);

/// How much longer than the deadline what is under way then may take.
const GRACE: Duration = Duration::from_secs(30);

/// The most sections that may each cost a process.
const MOST_LOST: usize = 40;

/// What a process does before its first section.
const OPENING: &str = "device: opening it";

/// As a worker: tests what is `asked` for, but for the sections that standard input names, and prints a line for each thing
/// that happens.
pub fn work(asked: Asked) -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(Failure::work)?;
    // Nothing comes from who does not listen to lines, such as a checker of memory: that looks at how this ends.
    let is_watched = !text.is_empty();
    let past: BTreeSet<String> = match is_watched {
        false => BTreeSet::new(),
        true => serde_json::from_str(&text).map_err(|error| Failure::input(format!("standard input: {error}")))?,
    };
    let mut failed = 0;
    let report = selftest::run(Asked { past, ..asked }, |news| {
        failed += usize::from(matches!(&news, News::Found(row) if row.passed == Some(false)));
        say(&Line::News(news));
    });
    match report {
        Ok(_) => {
            say(&Line::Whole);
            match failed {
                1.. if !is_watched => Err(Failure::work(format!("{failed} rows of the table failed"))),
                _ => Ok(()),
            }
        }
        Err(why) => {
            say(&Line::Unusable(why.clone()));
            if is_watched { Ok(()) } else { Err(Failure::input(why)) }
        }
    }
}

/// Whether `output`, all that a worker said, is that of one which came to its end.
#[cfg(feature = "cuda")]
pub fn is_whole(output: &str) -> bool {
    let last = output.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    matches!(last, Some(Line::Whole))
}

/// Where nobody listens any more there is nothing left to do.
fn say(line: &Line) {
    let said = serde_json::to_string(line).map_err(std::io::Error::other);
    let mut output = std::io::stdout().lock();
    // A library may have begun its own line.
    if said.and_then(|text| writeln!(output, "\n{text}").and_then(|()| output.flush())).is_err() {
        std::process::exit(1);
    }
}

/// Variables of the environment for all that is started.
pub type Variables = &'static [(&'static str, &'static str)];

/// Variables with which a process can open a card that a test of wgmma breaks.
#[cfg(feature = "cuda")]
const CAREFUL: Variables = &[(warp_group_trial::VARIABLE, "warps")];
#[cfg(not(feature = "cuda"))]
const CAREFUL: Variables = &[];

/// The part of an error that says so.
#[cfg(feature = "cuda")]
fn advice() -> String {
    warp_group_trial::advice()
}
#[cfg(not(feature = "cuda"))]
fn advice() -> String {
    String::new()
}

/// All rows of what `command` starts workers for, until `deadline`, telling of each as it comes, and the variables without
/// which the device could not be opened. A worker that says nothing for as long as `silence` is ended.
pub fn watch(
    command: impl Fn(Variables) -> Command,
    deadline: Instant,
    silence: Duration,
    mut tell: impl FnMut(&Row),
) -> Result<(Report, Variables), Failure> {
    let mut variables: Variables = &[];
    let report = Report { device: String::new(), rows: Vec::new(), profile: None, rate: None };
    let mut watched =
        Watched { report, past: BTreeSet::new(), done: BTreeSet::new(), under_way: None, is_again: false };
    for _ in 0..MOST_LOST {
        let before = watched.past.len();
        let mut worker = Worker::start(command(variables), &watched.past).map_err(Failure::work)?;
        let end = watched.listen(&worker.lines, deadline, silence, &mut tell);
        let status = worker.end(matches!(end, End::Lost | End::Silent | End::Over));
        let is_closed = watched.report.device.is_empty();
        let blamed = |watched: &mut Watched| watched.under_way.take().unwrap_or_else(|| OPENING.to_string());
        let (section, why) = match &end {
            End::Whole => return Ok((watched.report, variables)),
            End::Unusable(why) if is_closed && (!variables.is_empty() || !is_advised(why)) => {
                return Err(Failure::input(why));
            }
            End::Unusable(why) => (OPENING.to_string(), Some(why.clone())),
            // What failed is among the rows.
            End::Lost => (blamed(&mut watched), None),
            End::Over => (blamed(&mut watched), Some("did not end in time: the rest was not tested".to_string())),
            End::Silent => (blamed(&mut watched), Some(format!("did not end within {} s", silence.as_secs()))),
            End::Gone => (blamed(&mut watched), Some(format!("its process ended early: {status}"))),
        };
        if let Some(why) = why {
            let (group, name) = section.split_once(": ").unwrap_or(("", &section));
            let row = Row::broken(group.to_string(), name, &why);
            tell(&row);
            watched.report.rows.push(row);
        }
        // Once, and only where it did not come so far as to test something.
        if is_closed && section == OPENING && variables != CAREFUL && !matches!(end, End::Over) {
            variables = CAREFUL;
            continue;
        }
        watched.past.insert(section);
        // A process that has not come so far as to begin a section will not the next time.
        if matches!(end, End::Over) || watched.past.len() == before || is_closed {
            return Ok((watched.report, variables));
        }
    }
    watched.report.rows.push(Row::broken("device", "the rest", &"not tested: the device was lost too often"));
    Ok((watched.report, variables))
}

/// Whether an error says what the next process could do without.
fn is_advised(why: &str) -> bool {
    !CAREFUL.is_empty() && why.contains(&advice())
}

/// What is known of the test, over all its processes.
struct Watched {
    report: Report,
    /// Sections that are not to be done again.
    past: BTreeSet<String>,
    /// Those and groundwork.
    done: BTreeSet<String>,
    under_way: Option<String>,
    /// Whether it is groundwork whose rows are there.
    is_again: bool,
}

/// How a worker came to its end.
enum End {
    Whole,
    Unusable(String),
    /// The device answers this process no more.
    Lost,
    Silent,
    /// The time for all is over.
    Over,
    Gone,
}

impl Watched {
    fn listen(
        &mut self,
        lines: &Receiver<Line>,
        deadline: Instant,
        silence: Duration,
        tell: &mut impl FnMut(&Row),
    ) -> End {
        self.under_way = None;
        loop {
            let left = (deadline + GRACE).saturating_duration_since(Instant::now());
            match lines.recv_timeout(left.min(silence)) {
                Ok(Line::News(News::Device(name))) => self.report.device = name,
                Ok(Line::News(News::Begins(section))) => {
                    // The one before was preparation; otherwise its end is reported.
                    self.done.extend(self.under_way.replace(section.clone()));
                    self.is_again = self.done.contains(&section);
                }
                Ok(Line::News(News::Found(row))) if !self.is_again || self.is_new_failure(&row) => {
                    tell(&row);
                    self.report.rows.push(row);
                }
                Ok(Line::News(News::Found(_))) => {}
                Ok(Line::News(News::Ended(section))) => {
                    self.done.insert(section.clone());
                    self.past.insert(section);
                    self.under_way = None;
                }
                Ok(Line::News(News::Lost)) => return End::Lost,
                // Kept at once: what comes behind may cost the process, or all the time that is left.
                Ok(Line::News(News::Profile(text))) => self.report.profile = Profile::of_json(&text).ok(),
                Ok(Line::News(News::Rate(rate))) => self.report.rate = Some(rate),
                Ok(Line::Whole) => return End::Whole,
                Ok(Line::Unusable(why)) => return End::Unusable(why),
                Err(RecvTimeoutError::Timeout) if left <= silence => return End::Over,
                Err(RecvTimeoutError::Timeout) => return End::Silent,
                Err(RecvTimeoutError::Disconnected) => return End::Gone,
            }
        }
    }
}

impl Watched {
    /// Whether what had held before fails now.
    fn is_new_failure(&self, row: &Row) -> bool {
        let is_known = |known: &Row| (&known.group, &known.name, known.passed) == (&row.group, &row.name, row.passed);
        row.passed == Some(false) && !self.report.rows.iter().any(is_known)
    }
}

/// A process and what it says.
struct Worker {
    child: Child,
    lines: Receiver<Line>,
}

impl Worker {
    fn start(mut command: Command, past: &BTreeSet<String>) -> std::io::Result<Worker> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        // One that ends before it has read this says so by itself.
        let text = serde_json::to_string(past).map_err(std::io::Error::other)?;
        let _ = input.map(|mut input| input.write_all(text.as_bytes()));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok);
            // What libraries print among it is nobody's line.
            let known = lines.filter_map(|line| serde_json::from_str(&line).ok());
            for line in known {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Worker { child, lines })
    }

    /// How it ended: by itself or, where it is given up or takes long to do so, by force.
    fn end(&mut self, is_given_up: bool) -> String {
        const LONGEST: Duration = Duration::from_secs(20);
        let until = Instant::now() + if is_given_up { Duration::ZERO } else { LONGEST };
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                _ => break,
            }
        }
        let _ = self.child.kill();
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of rows and what they found, and whether they hold.
    type Shown = Vec<(String, Option<bool>)>;

    /// A worker of three sections, the first of them groundwork, that tells of a rate before the one in the middle:
    /// `second` is
    /// what becomes of that, where standard input does not name it.
    fn outcome(second: &str) -> (Shown, Result<Option<f64>, String>) {
        let row = |name: &str, passed| {
            serde_json::to_string(&Line::News(News::Found(Row {
                group: "g".into(),
                name: name.to_string(),
                found: String::new(),
                against: String::new(),
                passed: Some(passed),
            })))
        };
        let line = |line: Line| serde_json::to_string(&line).expect("JSON");
        let news = |news: News| line(Line::News(news));
        let begins = |name: &str| news(News::Begins(format!("g: {name}")));
        let ended = |name: &str| news(News::Ended(format!("g: {name}")));
        let script = format!(
            "past=$(cat); say() {{ echo \"$1\"; }}\nsay '{}'; say '{}'; say '{}'\n\
             case $past in *'g: two'*) ;; *) say '{}'; say '{}'; {second} ;; esac\n\
             case $past in *'g: three'*) exit 9 ;; esac\n\
             say 'a library says something'; say '{}'; say '{}'; say '{}'; say '{}'",
            news(News::Device("a card".to_string())),
            begins("one"),
            row("1", true).expect("JSON"),
            news(News::Rate(1.5)),
            begins("two"),
            begins("three"),
            row("3", true).expect("JSON"),
            ended("three"),
            line(Line::Whole),
        );
        let script = script.replace("FAILS", &format!("say '{}'", row("2", false).expect("JSON")));
        let script = script.replace("LOST", &format!("say '{}'", news(News::Lost)));
        let script = script.replace("ENDED", &format!("say '{}'", ended("two")));
        let command = |_: Variables| {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            command
        };
        let deadline = Instant::now() + Duration::from_secs(600);
        let report = watch(command, deadline, Duration::from_secs(3), |_| ()).map(|(report, _)| report);
        let rows = report.as_ref().map_or(Vec::new(), |report| {
            report.rows.iter().map(|row| (format!("{} {}", row.name, row.found), row.passed)).collect()
        });
        (rows, report.map(|report| report.rate).map_err(|failure| failure.message().to_string()))
    }

    /// Whatever becomes of a section, those before and behind it are there once, and what was measured.
    #[test]
    fn a_section_that_costs_its_process_costs_no_other_section() {
        for (second, found) in [
            ("FAILS; ENDED", Some("2 ")),
            ("FAILS; LOST; exec sleep 600", Some("2 ")),
            ("kill -SEGV $$", Some("two its process ended early: signal: 11 (SIGSEGV)")),
            ("exit 0", Some("two its process ended early: exit status: 0")),
            ("exec sleep 600", Some("two did not end within 3 s")),
            ("ENDED", None),
        ] {
            let (rows, rate) = outcome(second);
            let mut expected = vec![("1 ".to_string(), Some(true))];
            expected.extend(found.map(|found| (found.to_string(), Some(false))));
            expected.push(("3 ".to_string(), Some(true)));
            let shown: Shown =
                rows.iter().map(|(name, passed)| (name.replace(" (core dumped)", ""), *passed)).collect();
            assert_eq!((shown, rate), (expected, Ok(Some(1.5))), "{second}");
        }
    }

    /// Groundwork that had held and fails in the next process says so; what failed before does so once.
    #[test]
    fn groundwork_that_fails_when_it_is_done_again_is_told() {
        let line = |line: Line| serde_json::to_string(&line).expect("JSON");
        let found = |name: &str, passed| line(Line::News(News::Found(Row::fact("g", name, "", "", passed))));
        let begins = |name: &str| line(Line::News(News::Begins(format!("g: {name}"))));
        let script = format!(
            "past=$(cat); say() {{ echo \"$1\"; }}\nsay '{}'; say '{}'; say '{}'\n\
             case $past in *'g: two'*) say '{}'; say '{}' ;; *) say '{}'; say '{}'; exit 1 ;; esac",
            line(Line::News(News::Device("a card".to_string()))),
            begins("one"),
            found("always", false),
            found("later", false),
            line(Line::Whole),
            found("later", true),
            begins("two"),
        );
        let command = |_: Variables| {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            command
        };
        let (report, _) =
            watch(command, Instant::now() + Duration::from_secs(600), SILENCE, |_| ()).expect("a table");
        let names: Vec<(&str, Option<bool>)> =
            report.rows.iter().map(|row| (row.name.as_str(), row.passed)).collect();
        let expected = [("always", false), ("later", true), ("two", false), ("later", false)];
        assert_eq!(names, expected.map(|(name, passed)| (name, Some(passed))));
    }

    /// A process that ends where it never gets as far as a section is begun again once, without what could be to blame.
    #[test]
    fn a_device_that_cannot_be_opened_is_said_so() {
        let deadline = Instant::now() + Duration::from_secs(600);
        let run = |script: &str| {
            let command = |variables: Variables| {
                let mut command = Command::new("sh");
                command.args(["-c", script]).envs(variables.iter().copied());
                command
            };
            let silence = Duration::from_secs(3);
            let (report, variables) =
                watch(command, deadline, silence, |_| ()).map_err(|failure| failure.message().to_string())?;
            let found: Vec<String> = report.rows.iter().map(|row| row.found.replace(" (core dumped)", "")).collect();
            Ok::<_, String>((found, report.device, variables))
        };
        let ended = "its process ended early: exit status: 4".to_string();
        let (rows, device, _) = run("exit 4").expect("a table");
        let times = if CAREFUL.is_empty() { 1 } else { 2 };
        assert_eq!((rows, &*device), (vec![ended.clone(); times], ""));
        // Nor is anything begun again where a section is lost, also on a device that has no name.
        let begins = serde_json::to_string(&Line::News(News::Begins("g: one".to_string()))).expect("JSON");
        let (rows, ..) = run(&format!("echo '{begins}'; exit 4")).expect("a table");
        assert_eq!(rows, std::slice::from_ref(&ended));
        assert_eq!(run("echo '{\"Unusable\":\"no driver\"}'"), Err("no driver".to_string()));
        // A word about the variable alone is no advice.
        let other = "PIPEPLAN_ATTENTION is `warp`";
        assert_eq!(run(&format!("echo '{{\"Unusable\":\"{other}\"}}'")), Err(other.to_string()));
        // What is on trial there is not in every build.
        let Some((variable, word)) = CAREFUL.first() else { return };
        let opens = |otherwise: &str| {
            let device = r#"echo '{"News":{"Device":"a card"}}'; echo '"Whole"'"#;
            run(&format!("if [ \"${variable}\" = {word} ]; then {device}; else {otherwise}; fi"))
        };
        let advice = advice();
        for (otherwise, found) in [
            ("exit 4".to_string(), &*ended),
            ("kill -SEGV $$".to_string(), "its process ended early: signal: 11 (SIGSEGV)"),
            ("exec sleep 600".to_string(), "did not end within 3 s"),
            (format!("echo '{{\"Unusable\":\"{advice}\"}}'"), &*advice),
        ] {
            let expected = (vec![found.to_string()], "a card".to_string(), CAREFUL);
            assert_eq!(opens(&otherwise), Ok(expected), "{otherwise}");
        }
        assert_eq!(run(&format!("echo '{{\"Unusable\":\"{advice}\"}}'")), Err(advice));
    }
}
