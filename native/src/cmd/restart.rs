//! What a rank and the command that started it say to each other about restarts, and the generations of a rank.
//!
//! The command writes lines to the standard inputs of its ranks, and a rank says how it ended by its exit code.

use std::fmt;
use std::io::BufRead as _;
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pipeplan::bootstrap::Place;
use pipeplan::runner::restart::processes::recover;
use pipeplan::runner::restart::{Generations, Kept, Restarting};
use pipeplan::runner::{Ending, Observer, RunError, RunOptions, Workload, run_process};
use pipeplan::transport::processes::Processes;
use pipeplan::transport::rendezvous::{ConnectError, Secret};
use pipeplan::transport::tcp::Tcp;

use super::failure::Failure;

/// Tells a rank that it was started by this command, whose end is that of its standard input.
pub const ENDS_WITH_INPUT: &str = "PIPEPLAN_ENDS_WITH_INPUT";
/// Tells a rank which generation it is started in.
pub const ANNOUNCED: &str = "PIPEPLAN_RESTART";
/// Tells a rank how often it has been started before.
pub const LIFE: &str = "PIPEPLAN_LIFE";

/// Tells a rank that the run may go on with fewer ranks, and how often it has done so.
pub const FEWER: &str = "PIPEPLAN_FEWER";

/// The exit code of a rank that would fail again, and so is not restarted.
pub const LASTS: i32 = 3;
/// That of a rank that waited for the others of its generation until its patience was over.
pub const NOBODY_CAME: i32 = 4;

/// Whether a rank that ended with this code may do better in a next generation. Refusals and stops stay.
pub fn may_pass(code: i32) -> bool {
    !matches!(code, 0 | 2 | 130 | LASTS)
}

/// A generation of ranks, and why it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// Its number: 0 for the first.
    pub generation: u32,
    /// Where rank 0 listens.
    pub port: u16,
    /// When the failure before it was noticed, in nanoseconds of the machine's clock.
    noticed_ns: u128,
    /// By restart the ranks that had failed.
    dead: Vec<Vec<usize>>,
}

fn clock_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}

impl Announced {
    /// The first generation.
    pub fn first(port: u16) -> Announced {
        Announced { generation: 0, port, noticed_ns: 0, dead: Vec::new() }
    }

    /// The one after it, since `ranks` failed.
    pub fn next(&self, port: u16, ranks: Vec<usize>, noticed: Instant) -> Announced {
        let noticed_ns = clock_ns().saturating_sub(noticed.elapsed().as_nanos());
        let dead = self.dead.iter().cloned().chain([ranks]).collect();
        Announced { generation: self.generation + 1, port, noticed_ns, dead }
    }

    /// When the failure was noticed.
    fn noticed(&self) -> Instant {
        let ago = clock_ns().saturating_sub(self.noticed_ns);
        let now = Instant::now();
        now.checked_sub(Duration::from_nanos(ago.min(u64::MAX.into()) as u64)).unwrap_or(now)
    }

    /// What the command has told this process at its start.
    fn given() -> Option<Announced> {
        std::env::var(ANNOUNCED).ok()?.parse().ok()
    }
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Announced { generation, port, noticed_ns, dead } = self;
        let ranks = |ranks: &Vec<usize>| ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let dead = dead.iter().map(ranks).collect::<Vec<_>>().join(";");
        write!(f, "{generation} {port} {noticed_ns} {dead}")
    }
}

impl FromStr for Announced {
    type Err = ();

    fn from_str(text: &str) -> Result<Announced, ()> {
        let parse = || {
            let mut words = text.split(' ');
            let (generation, port) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let noticed_ns = words.next()?.parse().ok()?;
            let ranks = |ranks: &str| ranks.split(',').map(|rank| rank.parse().ok()).collect::<Option<Vec<usize>>>();
            let dead = words.next()?.split(';').map(ranks).collect::<Option<Vec<_>>>()?;
            Some(Announced { generation, port, noticed_ns, dead })
        };
        parse().ok_or(())
    }
}

/// What the command says to a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// Meet the others again.
    Restart(Announced),
    /// There is no restart.
    End,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Restart(announced) => write!(f, "restart {announced}"),
            Word::End => f.write_str("end"),
        }
    }
}

/// The last word of the command that has started this process.
static HEARD: (Mutex<Option<Word>>, Condvar) = (Mutex::new(None), Condvar::new());

/// Listens to the command that has started this process as a rank, where one has, and ends with it, however it ends: it
/// holds the other end of the standard input.
pub fn listen_to_parent() {
    if std::env::var_os(ENDS_WITH_INPUT).is_none() {
        return;
    }
    // Without a thread, only a parent that is killed leaves this process behind.
    let _ = thread::Builder::new().name("parent".to_string()).spawn(|| {
        // An error is no parent, either.
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let word = match line.strip_prefix("restart ").map(str::parse) {
                Some(Ok(announced)) => Word::Restart(announced),
                _ => Word::End,
            };
            *HEARD.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(word);
            HEARD.1.notify_all();
        }
        std::process::exit(1);
    });
}

/// A generation after number `generation`, if there is word of one now.
fn newer(heard: &Option<Word>, generation: u32) -> Option<Option<Announced>> {
    match heard {
        Some(Word::Restart(announced)) if announced.generation > generation => Some(Some(announced.clone())),
        Some(Word::End) => Some(None),
        _ => None,
    }
}

/// From the failure of another rank to the command's word. It comes within a tenth of a second; where it does not, the command
/// has seen no process die, and sees this one.
const WORD: Duration = Duration::from_secs(10);

/// The generation after number `generation`, once there is word of one.
fn hear(generation: u32) -> Option<Announced> {
    let heard = HEARD.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = HEARD.1.wait_timeout_while(heard, WORD, |heard| newer(heard, generation).is_none());
    let (heard, _) = waited.unwrap_or_else(PoisonError::into_inner);
    newer(&heard, generation).flatten()
}

/// How often this rank has been started before.
pub fn life() -> usize {
    std::env::var(LIFE).ok().and_then(|life| life.parse().ok()).unwrap_or(0)
}

/// How often the run has gone on with fewer ranks, where it may.
pub fn fewer() -> Option<u32> {
    std::env::var(FEWER).ok()?.parse().ok()
}

/// How one generation of this rank ended.
enum Ended {
    /// The run is over.
    Well(Ending),
    /// It is refused.
    Refused(RunError),
    /// Another rank failed, or a newer generation is there.
    Left(Failure),
    /// This rank failed, and ends with this exit code.
    Failed(Failure, i32),
}

/// This process as one rank of a run that is restarted where ranks die: it keeps its state in memory, and meets the others
/// again, and those that were started in place of the dead.
pub fn over_generations(
    workload: &Workload,
    options: &RunOptions,
    observer: &mut dyn Observer,
    place: &Place,
    (secret, longest): (Secret, u64),
) -> Result<Result<Ending, RunError>, Failure> {
    // A run that only goes on with fewer ranks starts them all anew.
    let kept = Arc::new(if options.restarting.most > 0 { Kept::new(workload) } else { Kept::default() });
    let restarting = Restarting { kept: Some(Arc::clone(&kept)), ..options.restarting.clone() };
    let options = RunOptions { restarting, ..options.clone() };
    let mut generations = Generations::new(observer);
    let port = place.meeting.as_ref().map_or(0, |(_, port)| *port);
    let mut announced = Announced::given().unwrap_or_else(|| Announced::first(port));
    for (restart, ranks) in (1..).zip(&announced.dead) {
        match restart == announced.generation {
            true => kept.begin_restart(restart, ranks.clone(), announced.noticed()),
            false => kept.note_earlier(restart, ranks.clone()),
        }
    }
    loop {
        let meeting = Meeting { place, secret: &secret, longest, announced: &announced };
        let ended = match meeting.generation(workload, &options, &kept, &mut generations) {
            Ended::Well(Ending::First(report)) => {
                let report = generations.report(*report, &kept);
                return Ok(Ok(Ending::First(Box::new(report))));
            }
            Ended::Well(other) => return Ok(Ok(other)),
            Ended::Refused(error) => return Ok(Err(error)),
            Ended::Failed(failure, code) => return Err(failure.with_code(code as u8)),
            Ended::Left(failure) => failure,
        };
        let next = (announced.generation < options.restarting.most).then(|| hear(announced.generation)).flatten();
        let Some(next) = next else { return Err(ended) };
        kept.begin_restart(next.generation, next.dead.last().cloned().unwrap_or_default(), next.noticed());
        announced = next;
    }
}

/// Where the ranks of one generation meet.
struct Meeting<'m> {
    place: &'m Place,
    secret: &'m Secret,
    longest: u64,
    announced: &'m Announced,
}

impl Meeting<'_> {
    /// One generation of this rank.
    fn generation(
        &self,
        workload: &Workload,
        options: &RunOptions,
        kept: &Kept,
        generations: &mut Generations<'_>,
    ) -> Ended {
        let (generation, patience) = (self.announced.generation, options.transport.patience);
        let link = match self.connect(patience) {
            Ok(Some(link)) => link,
            Ok(None) => return Ended::Left(Failure::work("a rank died while the ranks were meeting")),
            Err(error) if generation == 0 => return Ended::Failed(Failure::work(error), 1),
            Err(error) => return Ended::Failed(Failure::work(error), NOBODY_CAME),
        };
        let mut transport = Processes::new(link, patience);
        let options = if generation == 0 {
            options.clone()
        } else {
            match recover(&mut transport, workload, options, kept, generation) {
                Ok(options) => options,
                Err(cause) => return Ended::Left(Failure::work(cause)),
            }
        };
        if let Some(restart) = kept.history().last().filter(|_| generation > 0 && self.place.rank == 0) {
            generations.tell(restart);
        }
        let generation_may_follow = generation < options.restarting.most;
        match run_process(workload, &options, transport, generations) {
            Ok(ending) => Ended::Well(ending),
            Err(error @ RunError::Refused(_)) => Ended::Refused(error),
            Err(error) => match kept.own_failure() {
                Some((_, true)) => Ended::Failed(Failure::work(&error), LASTS),
                // The others go on, and none of them reports.
                Some((what, false)) if generation_may_follow => Ended::Failed(Failure::work(what), 1),
                Some((_, false)) => Ended::Failed(Failure::work(&error), 1),
                None => Ended::Left(Failure::work(&error)),
            },
        }
    }

    /// Connects with all ranks of the generation; nothing where a newer one is there first.
    fn connect(&self, patience: Duration) -> Result<Option<Tcp>, ConnectError> {
        let Announced { generation, port, .. } = *self.announced;
        let host = self.place.meeting.as_ref().map_or_else(String::new, |(host, _)| host.clone());
        let (rank, world, longest) = (self.place.rank, self.place.world, self.longest);
        // A rank of another generation is none of this one.
        let secret = self.secret.of_generation(generation);
        let (tell, told) = mpsc::channel();
        // A thread of its own, which is left alone where nobody waits for it any longer.
        let meeting = move || {
            let _ = tell.send(Tcp::connect(rank, world, (&host, port), &secret, longest, patience));
        };
        let thread = thread::Builder::new().name("meeting".to_string()).spawn(meeting);
        thread.map_err(|source| ConnectError::Broken { rank, source })?;
        loop {
            match told.recv_timeout(Duration::from_millis(20)) {
                Ok(connected) => return connected.map(Some),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let heard = HEARD.0.lock().unwrap_or_else(PoisonError::into_inner);
                    if newer(&heard, generation).is_some() {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_read_back() {
        let first = Announced::first(4000);
        let second = first.next(4001, vec![2, 3], Instant::now()).next(4002, vec![0], Instant::now());
        assert_eq!((second.generation, second.port), (2, 4002));
        assert_eq!(second.to_string().parse(), Ok(second.clone()));
        assert_eq!(Word::Restart(second.clone()).to_string(), format!("restart {second}"));
        assert!(second.to_string().ends_with(" 2,3;0"), "{second}");
        for text in ["", "1", "1 2 3", "x 1 2 3", "1 70000 3 2"] {
            assert_eq!(text.parse::<Announced>(), Err(()), "{text}");
        }
    }

    #[test]
    fn refusals_stops_and_what_lasts_are_not_restarted() {
        for (code, passes) in [(1, true), (101, true), (NOBODY_CAME, true), (0, false), (2, false), (130, false)] {
            assert_eq!(may_pass(code), passes, "{code}");
        }
        assert!(!may_pass(LASTS));
    }
}
