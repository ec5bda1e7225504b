//! Which rank this process is, of how many, and where rank 0 is to be met: read from what launchers set.
//!
//! The first launcher whose rank variable is set is believed, in this order:
//!
//! | launcher | rank | world | on this host | of so many | rank 0's address |
//! |---|---|---|---|---|---|
//! | torchrun | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` | `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | `OMPI_COMM_WORLD_LOCAL_SIZE` | as torchrun, where set |
//! | Slurm | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` | `SLURM_TASKS_PER_NODE` is not read | as torchrun, else the first host of `SLURM_STEP_NODELIST` and a port made of `SLURM_JOB_ID` |
//!
//! torchrun comes first because it is started by the others on large clusters: inside a Slurm job its own
//! variables are the ones that tell workers apart. Where torchrun's agent keeps its own store on `MASTER_PORT`
//! (`TORCHELASTIC_USE_AGENT_STORE=True`), the next port is taken.
//!
//! A batch script of Slurm has a rank, too, and is alone: what `srun` has spread has a step, or a rank above 0.

use std::fmt;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, or another program that sets its variables.
    Torchrun,
    /// `mpirun` or `mpiexec` of Open MPI.
    OpenMpi,
    /// `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Slurm => "Slurm",
        })
    }
}

/// Where this process stands among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Who says so.
    pub launcher: Launcher,
    /// This rank, from 0.
    pub rank: usize,
    /// Ranks in all.
    pub world: usize,
    /// This process among those of its host, from 0, where the launcher says so.
    pub local_rank: Option<usize>,
    /// Processes on its host.
    pub local_world: Option<usize>,
    /// Where rank 0 waits for the others: host and port.
    pub meeting: Option<(String, u16)>,
    /// Whether a launcher has started this process as one of the ranks, wherever they are to meet.
    pub is_launched: bool,
}

/// Why the variables make no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// A variable that must come with another is not set.
    #[error("{found} is set, but {missing} is not: {launcher} sets both; set both or neither")]
    Missing {
        /// Whose variables they are.
        launcher: Launcher,
        /// The one that is set.
        found: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// A variable is no number that it could be.
    #[error("{variable} is `{value}`: it must be a whole number {accepted}")]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        accepted: &'static str,
    },
    /// The rank is beyond the world.
    #[error("{variable} is {rank}, but there are {world} ranks: ranks count from 0")]
    Beyond {
        /// The rank's variable.
        variable: &'static str,
        /// The rank.
        rank: usize,
        /// Ranks in all.
        world: usize,
    },
}

/// The names of one launcher's variables.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    world: &'static str,
    local_rank: &'static str,
    local_world: Option<&'static str>,
}

const LAUNCHERS: [Names; 3] = [
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_world: Some("LOCAL_WORLD_SIZE"),
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        world: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_world: None,
    },
];

/// The place that the variables give, as `read` reads them; none where no launcher has set its rank, unless
/// `WORLD_SIZE` says that there are several.
///
/// # Errors
/// [`BootstrapError`], naming the variable.
pub fn place(read: impl Fn(&str) -> Option<String>) -> Result<Option<Place>, BootstrapError> {
    let Some(names) = LAUNCHERS.iter().find(|names| read(names.rank).is_some()) else {
        // As one of several that does not know which it is, each process would make the whole run.
        let Names { launcher, rank: missing, world: found, .. } = LAUNCHERS[0];
        return match read(found).and_then(|world| world.trim().parse::<usize>().ok()) {
            Some(world) if world > 1 => Err(BootstrapError::Missing { launcher, found, missing }),
            _ => Ok(None),
        };
    };
    let launcher = names.launcher;
    let rank = number(&read, names.rank, "from 0")?.unwrap_or(0);
    let missing = BootstrapError::Missing { launcher, found: names.rank, missing: names.world };
    let world = number(&read, names.world, "from 1")?.ok_or(missing)?;
    if rank >= world {
        return Err(BootstrapError::Beyond { variable: names.rank, rank, world });
    }
    let local_rank = number(&read, names.local_rank, "from 0")?;
    let local_world = match names.local_world {
        Some(name) => number(&read, name, "from 1")?,
        None => None,
    };
    let meeting = meeting(&read, launcher)?;
    let in_step = ["SLURM_STEP_ID", STEP_HOSTS].iter().any(|variable| read(variable).is_some());
    let is_launched = launcher != Launcher::Slurm || world > 1 && (in_step || rank > 0 || meeting.is_some());
    Ok(Some(Place { launcher, rank, world, local_rank, local_world, meeting, is_launched }))
}

/// The variable with a secret that only the processes of one run are given.
pub const SECRET: &str = "PIPEPLAN_SECRET";

/// What tells the processes of one run from all others: [`SECRET`], else the run's name that `launcher` gives all of them.
/// Empty where neither is set: then a process of another run is known only by its rank and world.
pub fn secret(read: impl Fn(&str) -> Option<String>, launcher: Launcher) -> String {
    let of_launcher: &[&str] = match launcher {
        Launcher::Torchrun => &["TORCHELASTIC_RUN_ID"],
        Launcher::OpenMpi => &["PMIX_NAMESPACE"],
        Launcher::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    };
    let given = read(SECRET).filter(|secret| !secret.is_empty());
    given.unwrap_or_else(|| of_launcher.iter().filter_map(|name| read(name)).collect::<Vec<_>>().join("."))
}

/// How often the launcher has started all processes of this run again after a failure: torchrun's
/// `TORCHELASTIC_RESTART_COUNT`, or Slurm's `SLURM_RESTART_COUNT` for a job that was requeued.
///
/// # Errors
/// [`BootstrapError::NotANumber`].
pub fn restarts(read: impl Fn(&str) -> Option<String>) -> Result<usize, BootstrapError> {
    for variable in ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"] {
        // torchrun inside a job that was requeued counts from 0 again.
        if let Some(count @ 1..) = number(&read, variable, "from 0")? {
            return Ok(count);
        }
    }
    Ok(0)
}

fn number(
    read: impl Fn(&str) -> Option<String>,
    variable: &'static str,
    accepted: &'static str,
) -> Result<Option<usize>, BootstrapError> {
    let Some(value) = read(variable) else { return Ok(None) };
    match value.trim().parse() {
        Ok(number) if number > 0 || accepted == "from 0" => Ok(Some(number)),
        _ => Err(BootstrapError::NotANumber { variable, value, accepted }),
    }
}

/// The hosts of a step of Slurm.
pub const STEP_HOSTS: &str = "SLURM_STEP_NODELIST";

/// The port where nothing is said.
const PORT: u16 = 29_500;

fn meeting(
    read: impl Fn(&str) -> Option<String>,
    launcher: Launcher,
) -> Result<Option<(String, u16)>, BootstrapError> {
    let port = match read("MASTER_PORT") {
        None => None,
        Some(value) => match value.trim().parse::<u16>() {
            Ok(port) if port > 0 => Some(port),
            _ => {
                let (variable, accepted) = ("MASTER_PORT", "from 1 to 65535");
                return Err(BootstrapError::NotANumber { variable, value, accepted });
            }
        },
    };
    // The agent's own store sits on that port already.
    let taken = read("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let port = port.map(|port| if taken { port.checked_add(1).unwrap_or(port - 1) } else { port });
    if let Some(host) = read("MASTER_ADDR") {
        return Ok(Some((host, port.unwrap_or(PORT))));
    }
    if launcher != Launcher::Slurm {
        return Ok(None);
    }
    let Some(host) = read(STEP_HOSTS).and_then(|list| first_host(&list)) else { return Ok(None) };
    let job: Option<u64> = read("SLURM_JOB_ID").and_then(|value| value.trim().parse().ok());
    // Jobs that share a host get different ports, mostly; below the range that systems hand out by themselves.
    let of_job = job.map(|job| 15_000 + (job % 10_000) as u16);
    Ok(Some((host, port.or(of_job).unwrap_or(PORT))))
}

/// The first host of Slurm's short form: `node[03-05,9],login` begins with `node03`.
fn first_host(list: &str) -> Option<String> {
    let Some((prefix, rest)) = list.split_once('[').filter(|(prefix, _)| !prefix.contains(',')) else {
        return list.split(',').next().map(str::to_string).filter(|host| !host.is_empty());
    };
    let (inside, after) = rest.split_once(']')?;
    let first: String = inside.chars().take_while(char::is_ascii_digit).collect();
    let suffix: String = after.chars().take_while(|c| *c != ',').collect();
    // A second bracket in one name is beyond this reading.
    (!first.is_empty() && !suffix.contains('[')).then(|| format!("{prefix}{first}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&'static str, &str)]) -> Result<Option<Place>, BootstrapError> {
        place(|name| variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_string()))
    }

    fn found(variables: &[(&'static str, &str)]) -> Place {
        read(variables).expect("it reads").expect("a launcher")
    }

    const TORCHRUN: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29400"),
    ];
    const OPEN_MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];
    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NODELIST", "node[03-05,9]"),
        ("SLURM_JOB_ID", "1234567"),
    ];

    #[test]
    fn each_launcher_is_read() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(
            found(&TORCHRUN),
            Place {
                launcher: Launcher::Torchrun,
                rank: 3,
                world: 8,
                local_rank: Some(1),
                local_world: Some(2),
                meeting: Some(("10.0.0.1".to_string(), 29400)),
                is_launched: true,
            }
        );
        assert_eq!(
            found(&OPEN_MPI),
            Place {
                launcher: Launcher::OpenMpi,
                rank: 1,
                world: 4,
                local_rank: Some(1),
                local_world: Some(4),
                meeting: None,
                is_launched: true,
            }
        );
        assert_eq!(
            found(&SLURM),
            Place {
                launcher: Launcher::Slurm,
                rank: 5,
                world: 16,
                local_rank: Some(1),
                local_world: None,
                meeting: Some(("node03".to_string(), 15_000 + 4567)),
                is_launched: true,
            }
        );
    }

    #[test]
    fn the_inner_launcher_wins() {
        assert_eq!(found(&[&TORCHRUN[..], &SLURM].concat()).launcher, Launcher::Torchrun);
        assert_eq!(found(&[&OPEN_MPI[..], &TORCHRUN].concat()).launcher, Launcher::Torchrun);
        let place = found(&[&SLURM[..], &OPEN_MPI].concat());
        assert_eq!((place.launcher, place.rank), (Launcher::OpenMpi, 1));
        // An address alone is no launcher, and helps any.
        assert_eq!(read(&TORCHRUN[4..]), Ok(None));
        assert_eq!(found(&[&OPEN_MPI[..], &TORCHRUN[4..]].concat()).meeting, Some(("10.0.0.1".to_string(), 29400)));
    }

    /// Each task that took itself for such a script would make the whole run.
    #[test]
    fn a_task_of_srun_is_told_from_a_batch_script() {
        let task = |rank, more: &[(&'static str, &'static str)]| {
            let place = found(&[&[("SLURM_PROCID", rank), ("SLURM_NTASKS", "4")], more].concat());
            (place.is_launched, place.meeting.is_some())
        };
        assert_eq!(task("0", &[]), (false, false));
        assert_eq!(task("0", &[("MASTER_ADDR", "node1")]), (true, true));
        assert_eq!(task("0", &[("SLURM_STEP_ID", "0")]), (true, false));
        assert_eq!(task("1", &[]), (true, false));
        for hosts in ["r[1-2]n[3-4]", ""] {
            assert_eq!(task("0", &[("SLURM_STEP_NODELIST", hosts)]), (true, false), "{hosts}");
        }
        assert!(!found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")]).is_launched);
    }

    #[test]
    fn the_port_of_an_agents_store_is_left_to_it() {
        let agent = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        assert_eq!(found(&[&TORCHRUN[..], &[agent]].concat()).meeting, Some(("10.0.0.1".to_string(), 29401)));
    }

    #[test]
    fn a_secret_given_by_hand_comes_before_the_launchers_name_of_the_run() {
        let of = |variables: &[(&'static str, &str)], launcher| {
            secret(
                |name| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_string()),
                launcher,
            )
        };
        let run = ("TORCHELASTIC_RUN_ID", "run-7");
        assert_eq!(of(&[run], Launcher::Torchrun), "run-7");
        assert_eq!(of(&[run, (SECRET, "s")], Launcher::Torchrun), "s");
        assert_eq!(of(&[run, (SECRET, "")], Launcher::Torchrun), "run-7");
        assert_eq!(of(&[run, ("SLURM_JOB_ID", "12"), ("SLURM_STEP_ID", "3")], Launcher::Slurm), "12.3");
        assert_eq!(of(&[run], Launcher::OpenMpi), "");
    }

    #[test]
    fn restarts_of_a_launcher_are_counted() {
        let of = |variables: &[(&'static str, &str)]| {
            restarts(|name| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| (*value).to_string()))
        };
        assert_eq!(of(&[]), Ok(0));
        assert_eq!(of(&[("TORCHELASTIC_RESTART_COUNT", "2")]), Ok(2));
        assert_eq!(of(&[("TORCHELASTIC_RESTART_COUNT", "0"), ("SLURM_RESTART_COUNT", "1")]), Ok(1));
        let text = of(&[("SLURM_RESTART_COUNT", "often")]).expect_err("refused").to_string();
        assert_eq!(text, "SLURM_RESTART_COUNT is `often`: it must be a whole number from 0");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = |variables: &[(&'static str, &str)]| read(variables).expect_err("refused").to_string();
        assert_eq!(
            text(&[("RANK", "0")]),
            "RANK is set, but WORLD_SIZE is not: torchrun sets both; set both or neither"
        );
        assert_eq!(
            text(&[("WORLD_SIZE", "2")]),
            "WORLD_SIZE is set, but RANK is not: torchrun sets both; set both or neither"
        );
        // One variable alone is not a mistake: a program that sets a rank also sets the world size.
        assert_eq!(read(&[("WORLD_SIZE", "1")]), Ok(None));
        assert_eq!(found(&[&SLURM[..], &[("WORLD_SIZE", "2")]].concat()).world, 16);
        assert_eq!(
            text(&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "2")]),
            "OMPI_COMM_WORLD_RANK is `x`: it must be a whole number from 0"
        );
        assert_eq!(
            text(&[("RANK", "0"), ("WORLD_SIZE", "0")]),
            "WORLD_SIZE is `0`: it must be a whole number from 1"
        );
        assert_eq!(
            text(&[("SLURM_PROCID", "4"), ("SLURM_NTASKS", "4")]),
            "SLURM_PROCID is 4, but there are 4 ranks: ranks count from 0"
        );
        assert!(text(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "70000")]).contains("from 1 to 65535"));
    }

    #[test]
    fn hosts_are_read_from_short_forms() {
        for (list, host) in [
            ("node7", Some("node7")),
            ("a1,a[2-3]", Some("a1")),
            ("node[003-5]", Some("node003")),
            ("rack[2,4]-x,b", Some("rack2-x")),
            ("r[1-2]n[3-4]", None),
            ("n[", None),
            ("n[]", None),
            ("", None),
        ] {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
    }
}
