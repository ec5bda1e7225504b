//! Problem files drawn by chance: the same ones on every machine.

use serde_json::{Value, json};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from `from` up to `to`, both among them.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// One of `choices`, of which there is one at least.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Whether one of `of` equal chances came up.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// The list in another order.
    pub fn shuffled<T>(&mut self, mut list: Vec<T>) -> Vec<T> {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
        list
    }

    /// What an answer is judged by.
    pub fn objective(&mut self) -> &'static str {
        self.pick(&["makespan", "longest_span"])
    }
}

/// Makes the backward of a stage one that may be better whole: it takes less time than its halves, or holds less since B
/// makes again what F did not keep and W uses it up at once, or both.
pub fn gain_whole(random: &mut Random, stage: &mut Value) {
    let number = |stage: &Value, key: &str| stage[key].as_u64().unwrap_or(0);
    let [b, w] = ["backward_input_ns", "backward_weight_ns"].map(|key| number(stage, key));
    let gains = random.below(3);
    if gains != 1 {
        stage["backward_ns"] = json!(b.max(w) + random.within(0, b.min(w)));
    }
    if gains != 0 {
        let again = random.within(1, 8);
        stage["backward_input_bytes"] = json!(again);
        stage["backward_weight_bytes"] = json!(-((number(stage, "forward_bytes") + again) as i64));
        stage["backward_workspace_bytes"] = json!(random.below(again));
    }
}

/// A stage of a problem file: durations of F, B and W, and the bytes that are held after F, after B and after W.
pub fn stage(times: [u64; 3], held: [i64; 3]) -> Value {
    json!({
        "forward_ns": times[0], "backward_input_ns": times[1], "backward_weight_ns": times[2],
        "forward_bytes": held[0], "backward_input_bytes": held[1] - held[0], "backward_weight_bytes": held[2] - held[1],
    })
}
