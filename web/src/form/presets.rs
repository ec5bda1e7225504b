//! The figures of papers, as typed costs: what each figure draws, in units of 1 ms.

use pipeplan_core::spec::Spec;

use crate::protocol::spec_of;

/// A figure of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The schedule's name in the planner.
    pub schedule: &'static str,
    /// What a person chooses.
    pub title: &'static str,
    /// The paper and its figure, or its section where the figure has no number here.
    pub source: &'static str,
    ranks: u32,
    microbatches: u32,
    chunks: u32,
    placement: &'static str,
    /// Time of F, B and W of all chunks of a rank together; W 0 where the backward is not split.
    units: [u32; 3],
}

const fn preset(
    schedule: &'static str,
    title: &'static str,
    source: &'static str,
    shape: [u32; 3],
    placement: &'static str,
    units: [u32; 3],
) -> Preset {
    let [ranks, microbatches, chunks] = shape;
    Preset { schedule, title, source, ranks, microbatches, chunks, placement, units }
}

/// Every preset, by name.
pub const PRESETS: [Preset; 9] = [
    preset("gpipe", "GPipe", "arXiv:2104.04473, figure 3", [4, 8, 1], "linear", [2, 4, 0]),
    preset("1f1b", "1F1B", "arXiv:2104.04473, figure 4, top", [4, 8, 1], "linear", [2, 4, 0]),
    preset(
        "interleaved-1f1b",
        "Interleaved 1F1B",
        "arXiv:2104.04473, figure 4, bottom",
        [4, 8, 2],
        "looped",
        [2, 4, 0],
    ),
    preset("zb-h1", "ZB-H1", "arXiv:2401.10241, figure 3, top", [4, 8, 1], "linear", [2, 2, 2]),
    preset("zb-h2", "ZB-H2", "arXiv:2401.10241, figure 3, bottom", [4, 8, 1], "linear", [2, 2, 2]),
    preset("zb-v", "ZB-V", "arXiv:2401.10241, §6", [4, 8, 2], "v", [2, 2, 2]),
    preset("v-half", "V-Half", "arXiv:2405.15362, §3", [4, 8, 2], "v", [2, 2, 2]),
    preset("dualpipe", "DualPipe", "arXiv:2412.19437, figure 5", [8, 20, 1], "two-way", [2, 2, 2]),
    preset("dualpipe-v", "DualPipeV", "arXiv:2412.19437, §3.2.1, cut in half", [4, 10, 2], "v", [2, 2, 2]),
];

/// Nanoseconds of a unit, which is divided among chunks.
const UNIT_NS: u32 = 1_000_000;
/// Bytes that a forward of a whole rank keeps.
const KEPT: u64 = 1 << 30;

impl Preset {
    /// The spec of the figure: ranks without transfers and without a limit, and activations of 1 GiB a microbatch and rank.
    /// The tests read all of them.
    pub fn spec(&self) -> Option<Spec> {
        let [forward, input, weight] = self.units.map(|unit| unit * UNIT_NS / self.chunks);
        let kept = KEPT / u64::from(self.chunks);
        // Without W the backward frees all that the forward has kept, else B and W each free half.
        let bytes = match weight {
            0 => format!("\"backward_input_bytes\": -{kept}"),
            _ => format!(
                "\"backward_weight_ns\": {weight}, \"backward_input_bytes\": -{half}, \"backward_weight_bytes\": -{half}",
                half = kept / 2
            ),
        };
        let Preset { schedule, ranks, microbatches, chunks, placement, .. } = self;
        let text = format!(
            "{{\"schedule\": \"{schedule}\", \"name\": \"{} ({})\", \"problem\": {{\"ranks\": {ranks}, \"microbatches\": {microbatches}, \
             \"chunks\": {chunks}, \"placement\": \"{placement}\", \"stages\": {{\"forward_ns\": {forward}, \
             \"backward_input_ns\": {input}, \"forward_bytes\": {kept}, {bytes}}}}}}}",
            self.title, self.source
        );
        spec_of(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipeplan_core::plan::planner;
    use pipeplan_core::schedule;

    /// The times that the papers' figures show, in their units: F 1 and BW 2, or F = B = W = 1.
    #[test]
    fn each_preset_is_planned_and_takes_the_time_of_its_figure() {
        for preset in PRESETS {
            let answer = planner::answer(&preset.spec().unwrap(), &schedule::find(preset.schedule).unwrap());
            let answer = answer.unwrap_or_else(|error| panic!("{}: {error:?}", preset.title));
            let halves = answer.cost_ns() / u64::from(UNIT_NS / 2) / 2;
            let (p, m) = (u64::from(preset.ranks), u64::from(preset.microbatches));
            // In units of 1 ms; a forward is 2 of them.
            let wanted = match preset.schedule {
                // (m + p − 1)(F + BW): 2104.04473, §2.2.1.
                "gpipe" | "1f1b" => (m + p - 1) * 6,
                // The bubble is divided by the chunks: 2104.04473, §2.2.2.
                "interleaved-1f1b" => m * 6 + (p - 1) * 3,
                // The bubble is (p − 1)(F + B − W): 2401.10241, table 2. With F = B = W that of ZB-H2 is 0 but for the way
                // there and back, which other ranks fill.
                "zb-h1" => m * 6 + (p - 1) * 2,
                _ => continue,
            };
            assert_eq!(halves, wanted, "{}", preset.title);
        }
    }

    #[test]
    fn all_names_are_there() {
        let titles = PRESETS.map(|preset| preset.title);
        assert_eq!(
            titles,
            ["GPipe", "1F1B", "Interleaved 1F1B", "ZB-H1", "ZB-H2", "ZB-V", "V-Half", "DualPipe", "DualPipeV"]
        );
    }
}
