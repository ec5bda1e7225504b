//! Who waits in which collective, and for whom.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Dump, Entry};
use crate::base::fields::{Fault, Faults};
use crate::base::units::Nanos;

/// What dumps of ranks say about a run that hangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The ranks with a dump.
    pub ranks: Vec<usize>,
    /// Ranks that a group has, but no dump.
    pub without_dump: Vec<usize>,
    /// Every collective or transfer that has not ended, in the order in which they began.
    pub waits: Vec<Wait>,
    /// Ranks that others wait for and that wait for nobody: what they do is the cause. With what they did last.
    pub causes: Vec<(usize, Instead)>,
}

/// A collective or a transfer that some ranks have begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Name and description of the group.
    pub group: String,
    /// `all_reduce` number 7, or `send 0->1`.
    pub op: String,
    /// What the first of the waiting ranks sends: sizes and types.
    pub shape: String,
    /// The ranks that have begun it and not ended it.
    pub waiting: Vec<usize>,
    /// Those that have ended it.
    pub ended: Vec<usize>,
    /// The ranks of the group that have not begun it, with what they are in instead.
    pub missing: Vec<(usize, Instead)>,
    /// Where ranks began something else as this collective: the first of each.
    pub difference: Option<Difference>,
    /// At least how long the first rank has waited: up to the latest time in any dump, or the timeout where it ran out.
    pub waited_ns: Nanos,
    /// Where the first of the waiting ranks' program is.
    pub place: Option<String>,
}

/// Two ranks that do not agree on what a collective is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `op`, `sizes` or `types`.
    pub what: &'static str,
    /// A rank and its own.
    pub one: (usize, String),
    /// Another rank and its own.
    pub other: (usize, String),
}

/// What a rank does where others wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// It waits in another collective or transfer.
    Waits {
        /// Which one, of which group.
        op: String,
        /// Where its program is.
        place: Option<String>,
    },
    /// It has ended everything that it began; this came last.
    Idle {
        /// Which one, of which group.
        last: String,
        /// Where its program was then.
        place: Option<String>,
    },
    /// Its dump holds newer ops of the group only.
    Forgotten,
    /// There is no dump of it.
    NoDump,
}

/// What the dumps say; each with its rank.
///
/// # Errors
/// Several dumps of one rank, or none.
pub fn waits(dumps: &[(String, usize, Dump)]) -> Result<Report, Faults> {
    let mut faults = Vec::new();
    let mut of_rank: BTreeMap<usize, &Dump> = BTreeMap::new();
    for (name, rank, dump) in dumps {
        if of_rank.insert(*rank, dump).is_some() {
            faults.push(Fault::new(name.as_str(), format!("another dump of rank {rank}"), "one of each rank"));
        }
    }
    if dumps.is_empty() {
        faults.push(Fault::new("the files", "no dump", super::ACCEPTED));
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let latest_ns = of_rank.values().flat_map(|dump| &dump.entries).map(Entry::latest_ns).max().unwrap_or(0);
    let members = members(&of_rank);
    let mut waits = Vec::new();
    for (group, ranks) in &members {
        collectives(&of_rank, group, ranks, latest_ns, &mut waits);
    }
    transfers(&of_rank, &members, latest_ns, &mut waits);
    waits.sort_by_key(|(begun_ns, _): &(Nanos, Wait)| *begun_ns);
    let waits: Vec<Wait> = waits.into_iter().map(|(_, wait)| wait).collect();
    let is_waiting = |rank: &usize| waits.iter().any(|wait| wait.waiting.contains(rank));
    let mut causes: BTreeMap<usize, Instead> = BTreeMap::new();
    for (rank, instead) in waits.iter().flat_map(|wait| &wait.missing).filter(|(rank, _)| !is_waiting(rank)) {
        causes.entry(*rank).or_insert_with(|| instead.clone());
    }
    let all: BTreeSet<usize> = members.values().flatten().copied().collect();
    Ok(Report {
        ranks: of_rank.keys().copied().collect(),
        without_dump: all.into_iter().filter(|rank| !of_rank.contains_key(rank)).collect(),
        waits,
        causes: causes.into_iter().collect(),
    })
}

type Group = (String, String);

/// The ranks of each group: as a dump lists them, and all that have begun something in it.
fn members(dumps: &BTreeMap<usize, &Dump>) -> BTreeMap<Group, Vec<usize>> {
    let mut members: BTreeMap<Group, BTreeSet<usize>> = BTreeMap::new();
    for (rank, dump) in dumps {
        for entry in &dump.entries {
            members.entry(entry.process_group.clone()).or_default().insert(*rank);
        }
    }
    for (group, ranks) in &mut members {
        // Of gloo, the only group that is listed has no name.
        let listed = dumps.values().flat_map(|dump| &dump.pg_config);
        let of_name =
            listed.filter(|(key, config)| !group.0.is_empty() && (config.name == group.0 || **key == group.0));
        for (_, config) in of_name {
            ranks.extend(config.ranks.ranks().into_iter().filter_map(|rank| usize::try_from(rank).ok()));
        }
        // The group of all processes.
        if group.1 == "default_pg" {
            ranks.extend(dumps.keys());
        }
    }
    members.into_iter().map(|(group, ranks)| (group, ranks.into_iter().collect())).collect()
}

/// The first collective of a group that has not ended everywhere or that ranks do not agree on. Those behind it wait for it.
fn collectives(
    dumps: &BTreeMap<usize, &Dump>,
    group: &Group,
    ranks: &[usize],
    latest_ns: Nanos,
    waits: &mut Vec<(Nanos, Wait)>,
) {
    // By number, the entry of each rank.
    let mut begun: BTreeMap<u64, BTreeMap<usize, &Entry>> = BTreeMap::new();
    let mut oldest: BTreeMap<usize, u64> = BTreeMap::new();
    for (rank, dump) in dumps {
        for entry in dump.entries.iter().filter(|entry| !entry.is_p2p && entry.process_group == *group) {
            begun.entry(entry.collective_seq_id).or_default().entry(*rank).or_insert(entry);
            let known = oldest.entry(*rank).or_insert(entry.collective_seq_id);
            *known = entry.collective_seq_id.min(*known);
        }
    }
    for (number, of_rank) in &begun {
        let difference = difference(of_rank);
        let waiting: Vec<usize> =
            of_rank.iter().filter(|(_, entry)| !entry.is_done()).map(|(rank, _)| *rank).collect();
        if waiting.is_empty() && difference.is_none() {
            continue;
        }
        let Some(first) = waiting.first().or(of_rank.keys().next()).and_then(|rank| of_rank.get(rank)) else {
            continue;
        };
        let begun_ns = of_rank.values().map(|entry| entry.time_created_ns).min().unwrap_or(0);
        let missing = ranks.iter().filter(|rank| !of_rank.contains_key(rank)).map(|rank| {
            let instead = match oldest.get(rank) {
                Some(oldest) if oldest > number => Instead::Forgotten,
                _ => instead(dumps, *rank),
            };
            (*rank, instead)
        });
        let ended = of_rank.iter().filter(|(_, entry)| entry.is_done()).map(|(rank, _)| *rank).collect();
        let wait = Wait {
            group: name_of(group),
            op: format!("{} number {number}", first.op()),
            shape: first.shape(),
            missing: missing.collect(),
            waiting,
            ended,
            difference,
            waited_ns: waited_ns(first, begun_ns, latest_ns),
            place: first.place(),
        };
        waits.push((begun_ns, wait));
        break;
    }
}

/// The first difference between the entries of ranks for one collective.
fn difference(of_rank: &BTreeMap<usize, &Entry>) -> Option<Difference> {
    let (one, first) = of_rank.iter().next()?;
    for (other, entry) in of_rank.iter().skip(1) {
        let differ = |what, here: String, there: String| {
            (here != there).then_some(Difference { what, one: (*one, here), other: (*other, there) })
        };
        let found = differ("op", first.op().to_string(), entry.op().to_string()).or_else(|| {
            // Ranks may send and receive parts of other lengths in these.
            let alike = [
                "all_reduce",
                "broadcast",
                "reduce",
                "_all_gather_base",
                "_reduce_scatter_base",
                "all_gather",
                "reduce_scatter",
            ];
            if !alike.contains(&first.op()) {
                return None;
            }
            let sizes = |entry: &Entry| format!("{:?} to {:?}", entry.input_sizes, entry.output_sizes);
            let types = |entry: &Entry| entry.input_dtypes.join(" ");
            differ("types", types(first), types(entry)).or_else(|| differ("sizes", sizes(first), sizes(entry)))
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Sends and receives that have not ended.
fn transfers(
    dumps: &BTreeMap<usize, &Dump>,
    members: &BTreeMap<Group, Vec<usize>>,
    latest_ns: Nanos,
    waits: &mut Vec<(Nanos, Wait)>,
) {
    for (rank, dump) in dumps {
        let open = dump.entries.iter().filter(|entry| entry.is_p2p && !entry.is_done());
        for entry in open {
            let mut ended = Vec::new();
            let mut missing = Vec::new();
            let mut waiting = Vec::from([*rank]);
            if let Some((is_send, from, to)) = ends(entry) {
                let peer = if is_send { to } else { from };
                let all = members.get(&entry.process_group);
                let Some(peer) = all.and_then(|ranks| ranks.get(peer)).copied() else { continue };
                let is_other_end = |other: &&Entry| {
                    other.process_group == entry.process_group && ends(other) == Some((!is_send, from, to))
                };
                let others = || dumps.get(&peer).into_iter().flat_map(|dump| &dump.entries).filter(is_other_end);
                if others().any(|other| !other.is_done()) {
                    // It is told once, by the sender.
                    if !is_send {
                        continue;
                    }
                    waiting.push(peer);
                } else if entry_is_answered(entry, others().next_back()) {
                    ended.push(peer);
                } else {
                    missing.push((peer, instead(dumps, peer)));
                }
            }
            let begun_ns = entry.time_created_ns;
            let wait = Wait {
                group: name_of(&entry.process_group),
                op: entry.op().to_string(),
                shape: entry.shape(),
                waiting,
                ended,
                missing,
                difference: None,
                waited_ns: waited_ns(entry, begun_ns, latest_ns),
                place: entry.place(),
            };
            waits.push((begun_ns, wait));
        }
    }
}

/// Whether the other end has ended it: its last transfer on this way ended after this end began.
fn entry_is_answered(entry: &Entry, other: Option<&Entry>) -> bool {
    other
        .and_then(|other| other.time_discovered_completed_ns)
        .is_some_and(|ended_ns| ended_ns > entry.time_created_ns)
}

/// Whether it sends, from which place in the group, to which: `send 0->1`, `recv 1<-0`.
fn ends(entry: &Entry) -> Option<(bool, usize, usize)> {
    let (word, places) = entry.op().split_once(' ')?;
    let two = |mark: &str| {
        let (one, other) = places.split_once(mark)?;
        Some((one.trim().parse().ok()?, other.trim().parse().ok()?))
    };
    match word {
        "send" => two("->").map(|(from, to)| (true, from, to)),
        "recv" => two("<-").map(|(to, from)| (false, from, to)),
        _ => None,
    }
}

fn instead(dumps: &BTreeMap<usize, &Dump>, rank: usize) -> Instead {
    let Some(dump) = dumps.get(&rank) else { return Instead::NoDump };
    let told = |entry: &Entry| {
        let number = if entry.is_p2p { String::new() } else { format!(" number {}", entry.collective_seq_id) };
        format!("{}{number} of {}", entry.op(), name_of(&entry.process_group))
    };
    let open = dump.entries.iter().filter(|entry| !entry.is_done()).min_by_key(|entry| entry.record_id);
    let last = dump.entries.iter().max_by_key(|entry| entry.record_id);
    match (open, last) {
        (Some(open), _) => Instead::Waits { op: told(open), place: open.place() },
        (None, Some(last)) => Instead::Idle { last: told(last), place: last.place() },
        (None, None) => Instead::Idle { last: "nothing".to_string(), place: None },
    }
}

fn waited_ns(entry: &Entry, begun_ns: Nanos, latest_ns: Nanos) -> Nanos {
    let timed_out = entry.retired && !entry.is_done();
    let timeout_ns = if timed_out { entry.timeout_ms.saturating_mul(1_000_000) } else { 0 };
    latest_ns.saturating_sub(begun_ns).max(timeout_ns)
}

fn name_of((name, description): &Group) -> String {
    match description.as_str() {
        "" | "undefined" => format!("group {name}"),
        description => format!("group {name} ({description})"),
    }
}
