use super::*;
use crate::draw::layout::{Place, RULER_PX};
use crate::draw::track::tests::track;
use pipeplan_core::problem::op::OpKind;

fn subject<'s>(planned: &'s [Track], curve: &'s dyn Fn(usize) -> Option<&'s Curve>) -> Subject<'s> {
    Subject {
        planned,
        below: None,
        curve,
        static_bytes: &[0],
        limits: &[Some(80)],
        top_bytes: 100,
        chunk_of_stage: &[0],
        up_from: None,
        lit: None,
        lit_below: None,
        carried: &|_| None,
    }
}

/// By shade, and by a line that needs no eye for shades.
#[test]
fn the_directions_of_a_two_way_schedule_are_told_apart() {
    let tracks = [track(&[(0, 10), (10, 20)])];
    let layout = Layout::new(1000.0, 1, 0, 0.0);
    for palette in [Palette::LIGHT, Palette::DARK] {
        let plain = subject(&tracks, &|_| None);
        let two_way = Subject { up_from: Some(1), ..plain };
        let view = View { start_ns: 0.0, ns_per_px: 20.0 / layout.width_px };
        let image = paint(&two_way, &layout, view, 1.0, &palette, &mut Before::default());
        let (top, bottom) = layout.planned.rows.span_of(0);
        let pixel = |share: f64, y: f64| {
            let (x, y) = ((layout.width_px * share) as usize, (layout.planned.top_px + y) as usize);
            let at = 4 * (y * image.width + x);
            Rgb(image.bytes[at], image.bytes[at + 1], image.bytes[at + 2])
        };
        let [down, up] = [0.25, 0.75].map(|share| pixel(share, (top + bottom) / 2.0));
        let [down_line, up_line] = [0.25, 0.75].map(|share| pixel(share, bottom - 3.0));
        assert!(down == palette.block(OpKind::F, 0) && up == palette.block(OpKind::F, 1));
        assert!(down_line == down && up_line.contrast(up) >= 4.5, "{up_line:?} on {up:?}");
    }
}

#[test]
fn panels_do_not_overlap_and_points_find_them() {
    for (ranks, below) in [(1, 0), (8, 8), (64, 0), (1024, 1024)] {
        let layout = Layout::new(1000.0, ranks, below, 0.0);
        let mut y = RULER_PX;
        for panel in layout.panels() {
            assert!(panel.top_px >= y);
            y = panel.top_px + panel.rows.height_px;
        }
        assert!(y <= layout.height_px);
        assert_eq!(layout.place_at(layout.planned.top_px + 1.0), Some(Place::Planned(0)));
        assert_eq!(layout.place_at(layout.memory.top_px + 1.0), Some(Place::Memory(0)));
        assert_eq!((layout.place_at(2.0), layout.place_at(-1.0)), (Some(Place::Ruler), None));
    }
}

#[test]
fn scrolled_to_the_end_every_panel_shows_its_last_rank() {
    for ranks in [1, 20, 32, 300, 1024] {
        let range = Layout::new(1000.0, ranks, ranks, 0.0).scroll_range_px;
        let layout = Layout::new(1000.0, ranks, ranks, range);
        for panel in layout.panels() {
            assert_eq!(panel.rows.visible().end, ranks);
            let (_, bottom) = panel.rows.span_of(ranks - 1);
            assert!(bottom <= panel.rows.height_px + 1e-6, "{ranks}");
        }
    }
}

#[test]
fn a_whole_picture_has_all_ranks_and_a_scrolled_one_any() {
    for ranks in [1, 32, 130] {
        let layout = Layout::whole(1000.0, ranks, ranks, false);
        for panel in layout.panels() {
            assert_eq!(panel.rows.in_sight(), None, "{ranks} ranks");
        }
    }
    assert_eq!(Layout::whole(1000.0, 4, 0, false), Layout::new(1000.0, 4, 0, 0.0));
    assert!(Layout::whole(1000.0, 1024, 0, false).memory.rows.in_sight().is_some());
    let layout = Layout::new(1000.0, 200, 0, 0.0);
    let bottom = layout.memory.top_px + layout.memory.rows.height_px - 1.0;
    assert_eq!(layout.scroll_at(995.0, bottom), Some(layout.scroll_range_px));
    assert_eq!(layout.scroll_at(500.0, bottom), None);
    assert_eq!(layout.scroll_at(995.0, layout.planned.top_px), Some(0.0));
    let few = Layout::new(1000.0, 60, 0, 0.0);
    assert_eq!(few.scroll_at(995.0, few.planned.top_px), None, "all ranks are in sight");
    for rank in 0..200 {
        let before = Layout::new(1000.0, 200, 0, 100.0);
        let scroll = before.scroll_showing(&before.memory, rank);
        let (first, last) = Layout::new(1000.0, 200, 0, scroll).memory.rows.in_sight().unwrap();
        assert!((first..=last).contains(&rank), "{rank}: {first} to {last}");
    }
}

#[test]
fn a_picture_has_blocks_curves_and_the_limit_in_their_colours() {
    let tracks = [track(&[(0, 50)])];
    let curves = [Curve::new(vec![(0, 50), (50, 0)])];
    let layout = Layout::new(152.0, 1, 0, 0.0);
    let view = View { start_ns: 0.0, ns_per_px: 1.0 };
    let palette = Palette::LIGHT;
    let curve = |rank: usize| curves.get(rank);
    let image = paint(&subject(&tracks, &curve), &layout, view, 1.0, &palette, &mut Before::default());
    let at = |x: usize, y: f64| {
        let start = 4 * (y as usize * image.width + x);
        Rgb(image.bytes[start], image.bytes[start + 1], image.bytes[start + 2])
    };
    let (track_y, memory) = (layout.planned.top_px + 5.0, layout.memory);
    assert_eq!(at(10, track_y), palette.block(OpKind::F, 0));
    assert_eq!(at(80, track_y), palette.idle);
    let (top, bottom) = memory.rows.span_of(0);
    assert_eq!(at(10, memory.top_px + bottom - 2.0), palette.memory);
    let limit_y = memory.top_px + bottom - (0.8 * (bottom - top)).round();
    assert_eq!(at(10, limit_y), palette.limit);
}

/// Over the memory of the plan, in its strips, as long as it runs.
#[test]
fn what_a_kept_plan_holds_is_a_line_over_the_memory() {
    let tracks = [track(&[(0, 50)])];
    let (planned, kept) = (Curve::new(vec![(0, 50), (50, 0)]), Curve::new(vec![(0, 25), (20, 75), (50, 0)]));
    let (curve, curve_below) = (|_: usize| Some(&planned), |_: usize| Some(&kept));
    let below =
        Below { tracks: &tracks, scale: 1.0, chunk_of_stage: &[0], up_from: None, curve: &curve_below, marks: &[] };
    let subject = Subject { below: Some(below), ..subject(&tracks, &curve) };
    let layout = Layout::new(152.0, 1, 1, 0.0);
    let view = View { start_ns: 0.0, ns_per_px: 1.0 };
    let palette = Palette::LIGHT;
    let image = paint(&subject, &layout, view, 1.0, &palette, &mut Before::default());
    let (top, bottom) = layout.memory.rows.span_of(0);
    let drawn = |x: usize| -> Vec<f64> {
        let is_line = |y: &usize| {
            let at = 4 * (y * image.width + x);
            Rgb(image.bytes[at], image.bytes[at + 1], image.bytes[at + 2]) == palette.text
        };
        let strip = (layout.memory.top_px + top) as usize..(layout.memory.top_px + bottom) as usize;
        strip.filter(is_line).map(|y| (layout.memory.top_px + bottom - y as f64) / (bottom - top)).collect()
    };
    let near = |shares: &[f64], share: f64| shares.len() == 1 && (shares[0] - share).abs() < 0.05;
    assert!(near(&drawn(10), 0.25) && near(&drawn(40), 0.75), "{:?} {:?}", drawn(10), drawn(40));
    let step = drawn(20);
    assert!(step.len() > 5 && step[0] > 0.7 && step[step.len() - 1] < 0.3, "a step is joined: {step:?}");
    assert!(drawn(60).is_empty(), "it has ended");
}

#[test]
fn labels_say_as_much_as_fits_most_blocks_of_a_row() {
    let tracks = [track(&[(0, 100), (100, 120), (120, 124)])];
    let subject = subject(&tracks, &|_| None);
    let texts = |ns_per_px: f64| -> Vec<String> {
        let view = View { start_ns: 0.0, ns_per_px };
        labels(&subject, (0, &tracks[0]), view, 400.0, 6.0, &Palette::LIGHT)
            .into_iter()
            .map(|label| label.text)
            .collect()
    };
    // The third is too narrow for anything; the second for a stage, so the first does not name its own.
    assert_eq!(texts(1.0), ["F0", "F1"]);
    assert_eq!(texts(2.0), ["0", "1"]);
    assert_eq!(texts(0.25), ["0F0"]);
    assert_eq!(texts(50.0), Vec::<String>::new());
}

#[test]
fn a_picture_with_room_has_higher_rows_and_more_of_them_in_sight() {
    for (ranks, below) in [(4, 0), (8, 8), (64, 0)] {
        let (usual, roomy) =
            (Layout::new(1000.0, ranks, below, 0.0), Layout::roomy(1000.0, ranks, below, 0.0, 600.0, false));
        assert!(
            roomy.height_px > usual.height_px + 200.0 && roomy.height_px <= usual.height_px + 600.0 + 200.0,
            "{ranks}"
        );
        assert!(roomy.planned.rows.pitch_px > usual.planned.rows.pitch_px, "{ranks}");
        assert!(roomy.scroll_range_px <= usual.scroll_range_px, "{ranks}");
    }
}

/// From 16 ranks on a rank is in sight where its memory is, at any scroll.
#[test]
fn ranks_and_their_memory_are_in_one_scroll() {
    for ranks in [16, 64, 200, 1024] {
        let range = Layout::new(1000.0, ranks, 0, 0.0).scroll_range_px;
        for share in [0.0, 0.3, 0.77, 1.0] {
            let layout = Layout::roomy(1000.0, ranks, 0, share * range, 0.0, true);
            assert!(layout.heat);
            let rows = layout.planned.rows;
            assert_eq!((layout.memory.rows, layout.carried.map(|panel| panel.rows)), (rows, Some(rows)), "{ranks}");
        }
    }
    let few = Layout::new(1000.0, 15, 0, 0.0);
    assert!(!few.heat && few.scroll_range_px == 0.0);
}

#[test]
fn a_heat_map_shows_more_memory_and_what_is_above_the_limit() {
    let tracks: Vec<Track> = (0..16).map(|_| track(&[(0, 100)])).collect();
    let curve = Curve::new(vec![(0, 10), (25, 40), (50, 80), (75, 90)]);
    let of = |_: usize| Some(&curve);
    let limits = [Some(80); 16];
    let subject = Subject { static_bytes: &[10; 16], limits: &limits, ..subject(&tracks, &of) };
    let layout = Layout::new(1000.0, 16, 0, 0.0);
    let palette = Palette::LIGHT;
    let view = View { start_ns: 0.0, ns_per_px: 100.0 / layout.width_px };
    let image = paint(&subject, &layout, view, 1.0, &palette, &mut Before::default());
    let (top, bottom) = layout.memory.rows.span_of(7);
    let pixel = |share: f64| {
        let (x, y) = ((layout.width_px * share) as usize, (layout.memory.top_px + (top + bottom) / 2.0) as usize);
        let at = 4 * (y * image.width + x);
        Rgb(image.bytes[at], image.bytes[at + 1], image.bytes[at + 2])
    };
    let scale = subject.heat_scale();
    assert_eq!(scale, (10, 80));
    let wanted = [palette.heat(10, scale), palette.heat(40, scale), palette.full, palette.limit];
    assert_eq!([0.1, 0.4, 0.6, 0.9].map(pixel), wanted);
}

#[test]
fn transfers_have_the_colour_of_what_they_carry() {
    let tracks = [track(&[(0, 10)])];
    let backward = |start_ns: u64, end_ns: u64| Span { op: Op::new(0, OpKind::BW, 0), start_ns, end_ns };
    let carried = Carried {
        activations: track(&[(10, 20)]),
        gradients: Track::new(vec![backward(40, 50)]),
        copies: Track::default(),
        after: [(60, 80), (80, 100)],
    };
    let of = |_: usize| Some(&carried);
    let subject = Subject { carried: &of, ..subject(&tracks, &|_| None) };
    let layout = Layout::roomy(1000.0, 1, 0, 0.0, 0.0, true);
    let panel = layout.carried.expect("a panel");
    let palette = Palette::LIGHT;
    let view = View { start_ns: 0.0, ns_per_px: 100.0 / layout.width_px };
    let image = paint(&subject, &layout, view, 1.0, &palette, &mut Before::default());
    let (top, bottom) = panel.rows.span_of(0);
    let pixel = |share: f64, down: f64| {
        let y = (panel.top_px + top + down * (bottom - top)) as usize;
        let at = 4 * (y * image.width + (layout.width_px * share) as usize);
        Rgb(image.bytes[at], image.bytes[at + 1], image.bytes[at + 2])
    };
    assert_eq!([pixel(0.15, 0.2), pixel(0.15, 0.8)], [palette.block(OpKind::F, 0), palette.idle]);
    assert_eq!([pixel(0.45, 0.2), pixel(0.45, 0.8)], [palette.idle, palette.block(OpKind::BW, 0)]);
    assert_eq!([pixel(0.7, 0.5), pixel(0.9, 0.5)], [palette.sync, palette.optimizer]);
    assert_eq!(layout.place_at(panel.top_px + 2.0), Some(Place::Carried(0)));
}
