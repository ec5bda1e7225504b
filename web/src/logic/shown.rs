//! What is seen beside the form, as a link holds it: `#v2.…&t=120-480&sort=-mfu&tracks&kept=v2.…`.
//!
//! The spec comes first and is a link of its own: the command reads it, and stops at the first `&`.

use super::sorting::{Column, Ranking};
use crate::draw::view::{Extent, View};

/// What is seen beside the form.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Shown {
    /// The visible time in nanoseconds; none for all of it.
    pub time_ns: Option<(u64, u64)>,
    /// The order of the comparison.
    pub ranking: Ranking,
    /// Whether transfers, gradient sync and optimizer have tracks.
    pub tracks: bool,
    /// Whether the critical path stands out.
    pub path: bool,
    /// The link of the kept plan's spec, without its `#`.
    pub kept: Option<String>,
}

impl Shown {
    /// The link of the spec in a fragment, and what is seen beside it. A part that nobody knows is left out.
    pub fn read(fragment: &str) -> (&str, Shown) {
        let mut parts = fragment.split('&');
        let link = parts.next().unwrap_or_default();
        let mut shown = Shown::default();
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("t", value) => shown.time_ns = times(value),
                ("sort", value) => shown.ranking = ranking(value),
                ("tracks", _) => shown.tracks = true,
                ("path", _) => shown.path = true,
                ("kept", value) => shown.kept = Some(value.to_owned()).filter(|link| !link.is_empty()),
                _ => {}
            }
        }
        (link, shown)
    }

    /// The fragment of a spec's link with what is seen beside it.
    pub fn write(&self, link: &str) -> String {
        let mut fragment = link.to_owned();
        if let Some((from, to)) = self.time_ns {
            fragment.push_str(&format!("&t={from}-{to}"));
        }
        if let Some((column, descending)) = self.ranking.by {
            fragment.push_str(&format!("&sort={}{}", if descending { "-" } else { "" }, column.name()));
        }
        for (is_shown, name) in [(self.tracks, "&tracks"), (self.path, "&path")] {
            if is_shown {
                fragment.push_str(name);
            }
        }
        if let Some(kept) = &self.kept {
            fragment.push_str(&format!("&kept={kept}"));
        }
        fragment
    }

    /// The visible time of a view, in whole nanoseconds; none where all is visible.
    pub fn time_of(view: View, extent: Extent) -> Option<(u64, u64)> {
        let is_part = view.ns_per_px < extent.fit().ns_per_px * 0.999;
        let (from, to) = (view.start_ns.round() as u64, view.time_at(extent.width_px).round() as u64);
        (is_part && from < to).then_some((from, to))
    }

    /// The view of the visible time.
    pub fn view(&self, extent: Extent) -> View {
        self.time_ns.map_or(extent.fit(), |(from, to)| View::around(from as f64, to as f64, extent))
    }
}

fn times(value: &str) -> Option<(u64, u64)> {
    let (from, to) = value.split_once('-')?;
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from < to).then_some((from, to))
}

fn ranking(value: &str) -> Ranking {
    let name = value.strip_prefix('-').unwrap_or(value);
    let by = Column::ALL.into_iter().find(|column| column.name() == name);
    Ranking { by: by.map(|column| (column, value.starts_with('-'))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_comes_back_and_the_spec_stays_a_link() {
        let whole = Shown {
            time_ns: Some((120, 480)),
            ranking: Ranking { by: Some((Column::Mfu, true)) },
            tracks: true,
            path: true,
            kept: Some("v1.rKEPT".to_owned()),
        };
        let link = "v2.dSPEC";
        for shown in [whole, Shown::default(), Shown { tracks: true, ..Shown::default() }] {
            let fragment = shown.write(link);
            assert_eq!(Shown::read(&fragment), (link, shown), "{fragment}");
        }
        assert_eq!(Shown::default().write(link), link);
    }

    #[test]
    fn what_nobody_knows_is_left_out() {
        for damaged in ["&t=9-3", "&t=", "&t=a-b", "&t=-1-5", "&sort=size", "&kept=", "&other=1", "&&"] {
            assert_eq!(Shown::read(&format!("v1.rX{damaged}")), ("v1.rX", Shown::default()), "{damaged}");
        }
    }

    #[test]
    fn every_column_has_a_name_of_its_own() {
        for column in Column::ALL {
            let ranking = Ranking { by: Some((column, false)) };
            let shown = Shown { ranking, ..Shown::default() };
            assert_eq!(Shown::read(&shown.write("v1.rX")).1, shown, "{}", column.name());
        }
    }

    #[test]
    fn a_view_comes_back_to_the_nanosecond() {
        let extent = Extent { whole_ns: 1e9, width_px: 1333.0 };
        let view = View::around(123_456.0, 7_654_321.0, extent);
        let time_ns = Shown::time_of(view, extent);
        assert_eq!(time_ns, Some((123_456, 7_654_321)));
        let again = Shown { time_ns, ..Shown::default() }.view(extent);
        assert_eq!(Shown::time_of(again, extent), time_ns);
        assert_eq!(Shown::time_of(extent.fit(), extent), None);
        assert_eq!(Shown::default().view(extent), extent.fit());
    }
}
