//! Microbatches that differ, in words.

use super::Scene;
use crate::protocol::{DocumentFigures, PackingTimes, Width};
use crate::text;

/// The longest, the shortest and the mean microbatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// How long each takes, in nanoseconds.
    pub time_ns: [f64; 3],
    /// The share of attention in that; none without documents.
    pub attention: Option<[f64; 3]>,
}

impl Spread {
    /// Of these microbatches; none where there is none.
    pub fn of(all: &[Width]) -> Option<Spread> {
        let (longest, shortest) = (all.iter().max_by_key(|of| of.time_ns)?, all.iter().min_by_key(|of| of.time_ns)?);
        let sum = |of: fn(&Width) -> u64| all.iter().map(|width| of(width) as f64).sum::<f64>();
        let (time_ns, attention_ns) = (sum(|of| of.time_ns), sum(|of| of.attention_ns));
        let share = |of: &Width| of.attention_ns as f64 / of.time_ns.max(1) as f64;
        let attention = [share(longest), share(shortest), attention_ns / time_ns.max(1.0)];
        Some(Spread {
            time_ns: [longest.time_ns as f64, shortest.time_ns as f64, time_ns / all.len() as f64],
            attention: (attention_ns > 0.0).then_some(attention),
        })
    }

    /// In words.
    pub fn sentence(&self) -> String {
        let told = |at: usize| {
            let attention = self.attention.map(|shares| format!(" ({} attention)", text::percent(shares[at])));
            format!("{}{}", text::duration(self.time_ns[at]), attention.unwrap_or_default())
        };
        format!("The longest microbatch takes {}, the shortest {}, the mean is {}.", told(0), told(1), told(2))
    }
}

impl PackingTimes {
    /// Each packing with its meaning and what it costs.
    pub fn named(&self) -> [(&'static str, &'static str, Option<u64>); 5] {
        [
            (
                "In their order",
                "Packed by first fit in the order of the list, and assigned to replicas in turn",
                self.given_ns,
            ),
            (
                "Sorted",
                "The same, with the microbatches of each replica in the best of a few sorted orders",
                self.sorted_ns,
            ),
            ("Longest first", "The same microbatches assigned to replicas longest first, then sorted", self.dealt_ns),
            ("As planned", "The packing and order of this plan", Some(self.found_ns)),
            ("Lower bound", "No packing, order and schedule takes less", Some(self.bound_ns)),
        ]
    }

    /// What packing and ordering gain, in words.
    pub fn gain(&self) -> String {
        let against = |given_ns: u64| {
            let share = 1.0 - self.found_ns as f64 / given_ns.max(1) as f64;
            match share > 0.0 {
                true => {
                    format!("The plan's step is {} shorter than with documents in their order", text::percent(share))
                }
                false => "The plan's step is as long as with documents in their order".to_owned(),
            }
        };
        let first = self.given_ns.map_or_else(|| "Documents in their order have no plan".to_owned(), against);
        let gap = pipeplan_core::plan::planner::gap(self.found_ns, self.bound_ns);
        let gap = gap.map_or_else(String::new, |gap| match gap > 0.0 {
            true => format!(", and at most {} above the best of all packings", text::percent(gap)),
            false => ", and the best of all packings".to_owned(),
        });
        format!("{first}{gap}.")
    }
}

impl Scene {
    /// Its documents, in words; empty without.
    pub fn documents_packed(&self) -> String {
        let Some(documents) = self.widths.documents else { return String::new() };
        let DocumentFigures { documents, tokens, replicas, microbatches, fill } = documents;
        let of_each = match replicas {
            1 => format!("{} microbatches", text::count(microbatches)),
            _ => format!(
                "{} microbatches of each of {} data parallel replicas",
                text::count(microbatches),
                text::count(replicas)
            ),
        };
        let slowest = match replicas {
            1 => "",
            _ if self.widths.packing.is_some() => " The timeline is that of the slowest replica.",
            _ => "",
        };
        format!(
            "{} documents of {} tokens in {of_each}, {} full.{slowest}",
            text::count(documents),
            text::count(tokens),
            text::percent(fill)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_longest_the_shortest_and_the_mean() {
        let width = |time_ns, attention_ns| Width { documents: 1, tokens: 8, longest: 8, time_ns, attention_ns };
        let all = [width(1000, 100), width(4000, 2000), width(1000, 0)];
        let spread = Spread::of(&all).expect("microbatches");
        assert_eq!(spread.time_ns, [4000.0, 1000.0, 2000.0]);
        assert_eq!(spread.attention, Some([0.5, 0.1, 0.35]));
        let said = spread.sentence();
        assert!(
            said.contains("longest microbatch takes 4 µs (50.0 % attention)")
                && said.ends_with("2 µs (35.0 % attention)."),
            "{said}"
        );
        assert_eq!(Spread::of(&[]), None);
        let alike = Spread::of(&[width(5, 0)]).expect("one");
        assert!(!alike.sentence().contains("attention"));
    }

    #[test]
    fn a_gain_is_of_documents_in_their_order() {
        let times =
            PackingTimes { given_ns: Some(200), sorted_ns: Some(180), dealt_ns: None, found_ns: 150, bound_ns: 120 };
        let said = times.gain();
        assert!(said.contains("25.0 % shorter") && said.contains("at most 25.0 % above the best"), "{said}");
        let best = PackingTimes { given_ns: Some(120), found_ns: 120, ..times };
        assert_eq!(
            best.gain(),
            "The plan's step is as long as with documents in their order, and the best of all packings."
        );
        assert!(PackingTimes { given_ns: None, ..times }.gain().starts_with("Documents in their order have no plan"));
    }
}
