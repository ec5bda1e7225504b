//! The processes of all ranks, started by one command on this machine, and started again where they die.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use pipeplan::bootstrap;
use pipeplan::runner::StopFlag;
use pipeplan::transport::rendezvous::Secret;

use super::failure::Failure;
use super::restart::{self, Announced, Word};
use super::{format, interrupt, output};

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

/// How long the others may take to end once one has: each has waited for all others' reports by then.
const GRACE: Duration = Duration::from_secs(3);

/// After a death, how long others are waited for that may have died with it: they are one failure.
const TOGETHER: Duration = Duration::from_millis(60);

/// After its start, a process listens to signals.
const LISTENS: Duration = Duration::from_secs(1);

/// How the processes of a run are started.
pub struct Start {
    /// Ranks in all.
    pub ranks: usize,
    /// What only they know.
    pub secret: Secret,
    /// The most restarts.
    pub restarts: u32,
    /// The numbers of ranks with which a run goes on that no restart mends, one after the other.
    pub smaller: Vec<usize>,
}

impl Start {
    /// Starts `rank` in the generation that `announced` says, for the `life`-th time from 0; where the run may go on with fewer
    /// ranks, after it has done so so many `times`.
    fn rank(&self, rank: usize, life: u32, announced: &Announced, times: Option<u32>) -> Result<Child, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::work(format!("the path of this command is unknown: {error}")))?;
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", self.ranks.to_string());
        command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", self.ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", announced.port.to_string());
        command.env_remove("TORCHELASTIC_USE_AGENT_STORE").env(bootstrap::SECRET, self.secret.text());
        command.env(restart::ENDS_WITH_INPUT, "1").stdin(Stdio::piped());
        if announced.generation > 0 {
            command.env(restart::ANNOUNCED, announced.to_string());
        }
        if let Some(times) = times {
            command.env(restart::FEWER, times.to_string());
        }
        let life = life + times.unwrap_or(0);
        if life > 0 {
            command.env(restart::LIFE, life.to_string());
        }
        command.spawn().map_err(|error| Failure::work(format!("rank {rank} cannot start: {error}")))
    }
}

/// The processes of all ranks, while they run, with the ends of their standard inputs.
pub struct Family {
    start: Start,
    children: Vec<Option<Child>>,
    /// How often each rank has been started again.
    lives: Vec<u32>,
    announced: Announced,
    /// Ranks that have died since the last restart, and how.
    dead: Vec<(usize, String)>,
    /// When the first and the last of them were noticed.
    noticed: Option<[Instant; 2]>,
    /// Whether some rank has ended well: a run that is over is not restarted.
    over: bool,
    /// How often the run has gone on with fewer ranks, where it may.
    fewer: Option<u32>,
    /// When the last of them was started.
    started: Instant,
}

impl Family {
    /// Starts all ranks.
    ///
    /// # Errors
    /// Where one cannot start.
    pub fn start(start: Start) -> Result<Family, Failure> {
        let ranks = start.ranks;
        let (announced, over) = (Announced::first(free_port()?), false);
        let (children, lives) = (Vec::with_capacity(ranks), vec![0; ranks]);
        let fewer = (!start.smaller.is_empty()).then_some(0);
        let (dead, started) = (Vec::new(), Instant::now());
        let mut family = Family { start, children, lives, announced, dead, noticed: None, over, fewer, started };
        family.start_all()?;
        Ok(family)
    }

    fn start_all(&mut self) -> Result<(), Failure> {
        for rank in 0..self.start.ranks {
            let child = self.start.rank(rank, 0, &self.announced, self.fewer)?;
            self.children.push(Some(child));
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Waits as [`Family::wait_for_all`]. A run that has failed for good goes on with fewer ranks, where it may.
    ///
    /// # Errors
    /// Where a rank cannot be started again.
    pub fn wait(&mut self, interrupted: &StopFlag, again: &StopFlag) -> Result<i32, Failure> {
        loop {
            let code = self.wait_for_all(interrupted, again)?;
            if self.start.smaller.is_empty() || self.over || !restart::may_pass(code) || interrupted.is_raised() {
                return Ok(code);
            }
            let (ranks, was) = (self.start.smaller.remove(0), self.start.ranks);
            output::tell(&format!("{ranks} of {was} ranks go on, from the latest checkpoint (training.elastic)"));
            (self.start.ranks, self.lives) = (ranks, vec![0; ranks]);
            (self.announced, self.fewer) = (Announced::first(free_port()?), self.fewer.map(|times| times + 1));
            self.children.clear();
            self.start_all()?;
        }
    }

    /// Waits for all; the first exit code that is not 0, or 0. Once one has failed for good, the others have the grace. Where
    /// `interrupted` is raised they are asked to stop after the step that is under way, and where `again` is, ended.
    ///
    /// # Errors
    /// Where a rank cannot be started again.
    fn wait_for_all(&mut self, interrupted: &StopFlag, again: &StopFlag) -> Result<i32, Failure> {
        let mut code = 0;
        let mut failed_at: Option<Instant> = None;
        let mut asked = false;
        while self.children.iter().any(Option::is_some) || !self.dead.is_empty() {
            if interrupted.is_raised() && !asked {
                asked = true;
                self.ask_to_stop();
            }
            if again.is_raised() {
                self.end();
                return Ok(130);
            }
            self.hand_on_recording();
            for (rank, ended, how) in self.ended() {
                self.over |= ended == 0;
                let may_restart = self.announced.generation < self.start.restarts && !self.over && !asked;
                if may_restart && failed_at.is_none() && restart::may_pass(ended) {
                    if ended == restart::NOBODY_CAME {
                        // Some rank lives and does not come: none of those that wait knows which.
                        self.end();
                        let all = 0..self.start.ranks;
                        self.dead = all.map(|rank| (rank, "waited for the others in vain".to_string())).collect();
                    } else {
                        self.dead.push((rank, how));
                    }
                    let now = Instant::now();
                    self.noticed = Some([self.noticed.map_or(now, |[first, _]| first), now]);
                } else if ended != 0 {
                    failed_at.get_or_insert_with(|| {
                        // Those that wait for a restart end with what they know.
                        Self::say(&mut self.children, &Word::End);
                        Instant::now()
                    });
                    code = if code == 0 { ended } else { code };
                }
            }
            if failed_at.is_some() {
                self.dead.clear();
            } else if self.noticed.is_some_and(|[_, last]| last.elapsed() > TOGETHER) {
                self.restart()?;
            }
            if failed_at.is_some_and(|at| at.elapsed() > GRACE) {
                self.end();
            }
            thread::sleep(LOOK);
        }
        Ok(code)
    }

    /// The ranks that have ended since the last look, with exit codes, and in words.
    fn ended(&mut self) -> Vec<(usize, i32, String)> {
        let mut all = Vec::new();
        for (rank, place) in self.children.iter_mut().enumerate() {
            let Some(child) = place else { continue };
            let (code, how) = match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => (status.code().unwrap_or(1), status.to_string()),
                Err(error) => (1, error.to_string()),
            };
            *place = None;
            all.push((rank, code, how));
        }
        all
    }

    /// Starts the ranks that have died, and calls the others to meet them.
    fn restart(&mut self) -> Result<(), Failure> {
        let (dead, noticed) = (std::mem::take(&mut self.dead), self.noticed.take());
        let ranks: Vec<usize> = dead.iter().map(|(rank, _)| *rank).collect();
        self.announced =
            self.announced.next(free_port()?, ranks, noticed.map_or_else(Instant::now, |[first, _]| first));
        let how: Vec<String> = dead.iter().map(|(rank, how)| format!("rank {rank} ended ({how})")).collect();
        let left = self.start.restarts - self.announced.generation;
        let number = self.announced.generation;
        output::tell(&format!(
            "{}: restart {number}, {} left",
            how.join(", "),
            format::count(left as usize, "restart")
        ));
        Self::say(&mut self.children, &Word::Restart(self.announced.clone()));
        for (rank, _) in dead {
            self.lives[rank] += 1;
            self.children[rank] = Some(self.start.rank(rank, self.lives[rank], &self.announced, self.fewer)?);
        }
        self.started = Instant::now();
        Ok(())
    }

    /// Says `word` to all that live.
    fn say(children: &mut [Option<Child>], word: &Word) {
        for input in children.iter_mut().flatten().filter_map(|child| child.stdin.as_mut()) {
            // One that has just died hears nothing, and is noticed at the next look.
            let _ = writeln!(input, "{word}").and_then(|()| input.flush());
        }
    }

    /// Like SIGUSR1 to each of them: a second one does not kill a process.
    fn ask_to_stop(&self) {
        #[cfg(unix)]
        for child in self.children.iter().flatten() {
            let id = nix::unistd::Pid::from_raw(child.id() as i32);
            // One that has just ended needs no asking.
            let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGUSR1);
        }
    }

    /// SIGUSR2 to one of them, which tells the others, once it listens: before, the signal would end it.
    fn hand_on_recording(&self) {
        let recording = interrupt::recording();
        if !recording.is_asked() || self.started.elapsed() < LISTENS {
            return;
        }
        recording.take();
        #[cfg(unix)]
        if let Some(child) = self.children.iter().flatten().next() {
            let id = nix::unistd::Pid::from_raw(child.id() as i32);
            let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGUSR2);
        }
    }

    fn end(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.iter_mut().for_each(|child| *child = None);
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.end();
    }
}

/// A port of this machine that nobody has.
fn free_port() -> Result<u16, Failure> {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    Ok(port.map_err(|error| Failure::work(format!("no free port was found: {error}")))?.port())
}
