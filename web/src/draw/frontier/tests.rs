use super::axes::{BOTTOM, LEFT, RIGHT, TOP, scale_by_ratio};
use super::svg::{Area, LETTER_PX};
use crate::protocol::frontier::insert;

use super::*;
use proptest::prelude::*;

fn point(bytes: u64, judged_ns: u64) -> ChartPoint {
    // As if there were 100 ns of work.
    let bubble_ratio = 1.0 - 100.0 / judged_ns.max(100) as f64;
    ChartPoint { bytes, judged_ns, bubble_ratio, by: "1F1B".to_owned() }
}

fn chart(points: &[(u64, u64)]) -> Chart {
    let mut chart = Chart::default();
    let points = points.iter().map(|(bytes, judged_ns)| point(*bytes, *judged_ns)).collect();
    chart.add(ChartNews { started: true, least_bytes: Some(8), points, finished: false });
    chart
}

#[test]
fn only_what_more_memory_buys_stays() {
    let chart = chart(&[(30, 150), (10, 200), (20, 200), (20, 170), (40, 150), (25, 140), (10, 180)]);
    let curve: Vec<(u64, u64)> = chart.curve.iter().map(|point| (point.bytes, point.judged_ns)).collect();
    assert_eq!(curve, [(10, 180), (20, 170), (25, 140)]);
    assert_eq!([9.0, 10.0, 24.9, 1e9].map(|bytes| chart.within(bytes)), [Some(0), Some(0), Some(1), Some(2)]);
    assert_eq!(Chart::default().within(1.0), None);
}

/// Two copies of the model make a short pipeline and a long end of the step.
#[test]
fn what_the_best_would_not_choose_is_no_point_and_more_memory_never_looks_worse() {
    let with_end = |bytes, judged_ns, bubble_ns| ChartPoint { judged_ns, ..point(bytes, bubble_ns) };
    let mut curve = vec![point(10, 200)];
    assert!(!insert(&mut curve, with_end(20, 260, 130)));
    assert!(insert(&mut curve, with_end(5, 260, 130)) && insert(&mut curve, with_end(30, 190, 210)));
    assert_eq!(curve.iter().map(|point| point.bytes).collect::<Vec<_>>(), [5, 10, 30]);
    let chart = Chart { curve, ..Chart::default() };
    let plot = Plot::new(&chart, &Marks::default(), Measure::default(), 400.0).unwrap();
    let heights: Vec<f64> = chart.curve.iter().map(|point| plot.y_of(plot.measure.of(point))).collect();
    assert!(heights.windows(2).all(|pair| pair[0] < pair[1]), "the lower, the better: {heights:?}");
}

#[test]
fn a_point_is_said_by_what_it_is_chosen_by() {
    let said = |point: &ChartPoint, jitters| describe(point, &Judged { name: "step", jitters });
    assert_eq!(said(&point(2048, 200), false), "2 KiB: step 200 ns, bubble 50.0 % (1F1B)");
    assert_eq!(said(&point(2048, 200), true), "2 KiB: step 200 ns, 1 step in 20 takes longer, bubble 50.0 % (1F1B)");
    // Drawn at the top, beside one that ends.
    let hangs = point(1024, u64::MAX / 2 + 200);
    assert!(said(&hangs, false).contains("hangs"));
    let chart = Chart { curve: vec![hangs, point(2048, 200)], ..Chart::default() };
    let plot = Plot::new(&chart, &Marks::default(), Measure::Time, 400.0).unwrap();
    assert_eq!(plot.y_of(Measure::Time.of(&chart.curve[0])), TOP);
    assert!(plot.value_ticks().iter().all(|(_, label)| label.ends_with(" ns")));
}

/// One that takes many times as long leaves room to tell the others apart, and its axis has round values.
#[test]
fn times_are_drawn_by_their_ratios() {
    let chart = chart(&[(10, 800), (20, 400), (30, 200), (40, 100)]);
    let plot = Plot::new(&chart, &Marks::default(), Measure::Time, 400.0).unwrap();
    let heights: Vec<f64> = chart.curve.iter().map(|point| plot.y_of(plot.measure.of(point))).collect();
    let steps: Vec<f64> = heights.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.iter().all(|step| (step - steps[0]).abs() < 1e-9 && *step > 20.0), "{steps:?}");
    let labels: Vec<String> = plot.value_ticks().into_iter().map(|(_, label)| label).collect();
    assert_eq!(labels, ["100 ns", "200 ns", "500 ns"]);
    let far = scale_by_ratio((0.02, 3e7));
    assert_eq!(far.first().map(|(_, label)| label.as_str()), Some("0.1"));
    assert!(far.len() < 12, "{far:?}");
}

#[test]
fn the_chart_before_stays_until_there_is_another() {
    let mut chart = chart(&[(10, 200)]);
    chart.add(ChartNews { started: true, ..ChartNews::default() });
    assert!(chart.stale && chart.curve.len() == 1);
    chart.add(ChartNews { points: vec![point(5, 300), point(6, 250)], ..ChartNews::default() });
    assert!(!chart.stale && chart.curve.len() == 2 && chart.least_bytes.is_none());
    chart.add(ChartNews { least_bytes: Some(4), finished: true, ..ChartNews::default() });
    assert!(chart.finished && chart.curve.len() == 2 && chart.least_bytes == Some(4));
}

#[test]
fn the_curve_is_level_and_then_falls() {
    let chart = chart(&[(10, 200), (20, 125)]);
    for measure in [Measure::Bubble, Measure::Time] {
        let plot = Plot::new(&chart, &Marks::default(), measure, 400.0).unwrap();
        let [x0, x1] = [10.0, 20.0].map(|bytes| plot.x_of(bytes));
        let path = plot.path(&chart.curve);
        assert!(path.starts_with(&format!("M{x0:.1} ")) && path.contains(&format!("H{x1:.1}V")), "{path}");
        assert!(path.ends_with(&format!("H{:.1}", 400.0 - RIGHT)), "{path}");
        assert!((plot.bytes_at(plot.x_of(17.0)) - 17.0).abs() < 1e-9);
    }
}

#[test]
fn a_far_limit_is_named_at_the_edge_and_a_near_one_is_drawn() {
    let chart = chart(&[(1000, 200), (2000, 150)]);
    let drawn = |limit_bytes| {
        let marks = Marks { limit_bytes: Some(limit_bytes), ..Marks::default() };
        Plot::new(&chart, &marks, Measure::Bubble, 500.0).unwrap().svg(&chart, &marks)
    };
    assert!(drawn(2500).contains("<path class=\"limit\""));
    assert!(!drawn(90_000).contains("<path class=\"limit\"") && drawn(90_000).contains("limit 87.89 KiB →"));
}

/// A schedule that stands where the limit's name would: the name goes lower.
#[test]
fn the_name_of_the_limit_covers_no_schedule_and_no_curve() {
    // The curve is low where the limit is.
    let chart = chart(&[(1000, 400), (1100, 160), (2400, 150)]);
    let drawn = |published: Vec<ChartPoint>| {
        let marks = Marks { limit_bytes: Some(1900), published, ..Marks::default() };
        let drawing = Plot::new(&chart, &marks, Measure::Time, 500.0).unwrap().svg(&chart, &marks);
        let (_, label) = drawing.split_once("<text class=\"limit\"").unwrap();
        label.split('"').nth(3).unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(drawn(Vec::new()), TOP + 10.0);
    // The slowest is at the top of the chart.
    assert!(drawn(vec![point(1850, 400)]) > TOP + 10.0);
}

/// Left end, baseline and text of each name in a drawing.
fn names(svg: &str) -> Vec<(f64, f64, &str)> {
    let name = |part: &'_ str| -> Option<(f64, f64, usize)> {
        let number = |key: &str| part.split_once(key)?.1.split_once('"')?.0.parse().ok();
        Some((number("x=\"")?, number("y=\"")?, part.find('>')?))
    };
    svg.split("<text class=\"published\" ")
        .skip(1)
        .map(|part| {
            let (x, y, end) = name(part).expect("two numbers");
            (x, y, part[end + 1..].split('<').next().unwrap_or_default())
        })
        .collect()
}

#[test]
fn names_stand_off_points_each_other_and_lines_where_there_is_room() {
    let chart = chart(&[(1000, 400), (2000, 200), (3000, 150)]);
    let named = |bytes, judged_ns, by: &str| ChartPoint { by: by.to_owned(), ..point(bytes, judged_ns) };
    // One that would be crossed by the curve to its right, and two beside each other.
    let published = vec![named(1900, 210, "ZB-V"), named(2400, 300, "V-Half"), named(2430, 305, "Interleaved ZB")];
    let marks = Marks { published, ..Marks::default() };
    let plot = Plot::new(&chart, &marks, Measure::Bubble, 700.0).unwrap();
    let svg = plot.svg(&chart, &marks);
    let areas: Vec<Area> = names(&svg)
        .into_iter()
        .map(|(left, baseline, text)| {
            let right = left + text.chars().count() as f64 * LETTER_PX;
            Area { left, right, top: baseline - 9.0, bottom: baseline + 2.0 }
        })
        .collect();
    assert_eq!(areas.len(), 3, "{svg}");
    let lines = plot.lines(&chart.curve, None);
    for (index, area) in areas.iter().enumerate() {
        assert!(!areas[..index].iter().chain(&lines).any(|other| other.meets(area)), "{area:?}\n{svg}");
        for point in &marks.published {
            let (x, y) = (plot.x_of(point.bytes as f64), plot.y_of(point.bubble_ratio));
            assert!(!(area.left..area.right).contains(&x) || !(area.top..area.bottom).contains(&y), "{svg}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_curve_is_the_best_of_all_points(points in prop::collection::vec((0u64..60, 0u64..60), 1..40)) {
        let chart = chart(&points);
        for bytes in 0..60 {
            let best = points.iter().filter(|(held, _)| *held <= bytes).map(|(_, cost)| *cost).min();
            if let Some(best) = best {
                prop_assert_eq!(chart.curve[chart.within(bytes as f64).unwrap()].judged_ns, best);
            }
        }
        prop_assert!(chart.curve.windows(2).all(|pair| pair[0].bytes < pair[1].bytes && pair[0].judged_ns > pair[1].judged_ns));
    }

    #[test]
    fn everything_is_drawn_within_the_drawing(
        points in prop::collection::vec((0u64..1 << 45, 1u64..1 << 50), 1..12),
        limit in prop::option::of(0u64..1 << 46),
        width in 0.0f64..2000.0,
        time in any::<bool>(),
    ) {
        let chart = chart(&points);
        let published = points.iter().map(|(bytes, judged_ns)| point(*bytes, *judged_ns)).collect();
        let plan = Some(point(points[0].0, points[0].1));
        let marks = Marks { limit_bytes: limit, plan, picked: Some(0), published, judged: Judged::default() };
        let measure = if time { Measure::Time } else { Measure::Bubble };
        let plot = Plot::new(&chart, &marks, measure, width).unwrap();
        for point in &chart.curve {
            let (x, y) = (plot.x_of(point.bytes as f64), plot.y_of(measure.of(point)));
            prop_assert!((LEFT..=plot.width_px - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{x} {y}");
        }
        for (x, _) in plot.byte_ticks() {
            prop_assert!((LEFT - 0.1..=plot.width_px - RIGHT + 0.1).contains(&x), "{x}");
        }
        prop_assert!(!plot.value_ticks().is_empty());
        prop_assert!(!plot.svg(&chart, &marks).contains("NaN"));
    }
}
