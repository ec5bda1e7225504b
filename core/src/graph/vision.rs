//! A vision tower before a decoder: patches of images to tokens of the decoder's width, which take their places in the
//! embedded sequence. It belongs to the stage of the embedding, and is planned, not run.
//!
//! Devices that share matrices share those of the tower's layers, with all rows on each; patches and projector are whole on
//! each. Devices that share a sequence each work on all of its images. Nothing of the tower is computed again in the backward.
//!
//! Sources: those of [`Encoder`](crate::model::vision::Encoder) and [`Projector`].

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::builder::Builder;
use super::gpt::layer_norm;
use super::parts::rms_norm;
use super::post_training::{PROJECTOR, TOWER};
use super::{Angles, Heads, ImageRows, Init, Kernel, Role, TensorId};
use crate::model::Vision;
use crate::model::vision::Projector;

/// Base of the wavelengths of rotary positions in towers.
const ROPE_BASE: u64 = 10_000;

/// The tokens of a microbatch's images: those that are placed in the sequence, and those that are added to them
/// (DeepStack).
pub(super) fn tokens(build: &mut Builder, vision: Vision, microbatch_size: u32) -> Vec<TensorId> {
    let outside = (build.tokens, build.form.sequence_parallel);
    build.form.sequence_parallel = false;
    let tower = Tower { vision, images: u64::from(microbatch_size) * u64::from(vision.images) };
    let made = tower.tokens(build);
    (build.tokens, build.form.sequence_parallel) = outside;
    made
}

/// The embedded sequence with images in their places. What further mergers made is added there too; the decoder's first
/// layers do so in turn, which costs the same.
pub(super) fn placed(build: &mut Builder, embedded: TensorId, images: &[TensorId]) -> TensorId {
    let (hidden, ways) = (build.hidden(), build.ways());
    images.iter().fold(embedded, |stream, made| {
        let mut made = *made;
        // Where devices share tokens, each has the gradient of its own.
        if ways > 1 && build.form.sequence_parallel {
            let shape = build.graph[made].shape.clone();
            made = build.apply(Kernel::Replicate { ways }, &[made], "image tokens of all devices", hidden);
            build.graph.tensors[made.index()].shape = shape;
        }
        build.apply(Kernel::ImageRows(ImageRows::Placed), &[stream, made], "embedding with images", hidden)
    })
}

struct Tower {
    vision: Vision,
    /// Images of a microbatch.
    images: u64,
}

impl Tower {
    fn tokens(&self, build: &mut Builder) -> Vec<TensorId> {
        let (vision, encoder) = (self.vision, self.vision.encoder);
        let hidden = u64::from(vision.hidden);
        build.tokens = self.images.saturating_mul(vision.patches());
        let pixels = build.activation("patches", vision.patch_width(), Role::Images);
        let mut x = whole(build, pixels, &format!("{TOWER}patch_embedding"), hidden, encoder.has_patch_bias());
        if encoder.has_class_token() {
            build.tokens = self.images.saturating_mul(vision.rows());
            let class = build.new_weight(format!("{TOWER}class_embedding"), vec![hidden], Init::Normal, false);
            x = build.apply(Kernel::ImageRows(ImageRows::Joined), &[x, class], "patches and class token", hidden);
        }
        if encoder.has_table() {
            let name = format!("{TOWER}position_embedding.weight");
            let table = build.new_weight(name, vec![vision.positions.into(), hidden], Init::Normal, false);
            let kernel = Kernel::Positions { sequence: vision.rows(), ways: 1 };
            x = build.apply(kernel, &[x, table], "patches with positions", hidden);
        }
        if encoder.has_norm_before() {
            x = self.norm(build, x, format!("{TOWER}pre_norm"));
        }
        let mut further = Vec::new();
        for layer in 0..vision.layers {
            x = self.layer(build, x, layer);
            // Layers at equal distances, none of them the last.
            let at = |number: u32| number * vision.layers / (vision.deepstack + 1);
            if let Some(number) = (1..=vision.deepstack).find(|number| at(*number) == layer) {
                let rows = build.tokens;
                further.push(self.merged(build, x, &format!("{PROJECTOR}deepstack.{}", number - 1), true));
                build.tokens = rows;
            }
        }
        if encoder.has_norm_behind() {
            x = self.norm(build, x, format!("{TOWER}post_norm"));
        }
        if vision.head {
            self.hold_head(build);
        }
        let mut made = vec![self.projected(build, x)];
        made.append(&mut further);
        made
    }

    fn norm(&self, build: &mut Builder, x: TensorId, name: String) -> TensorId {
        match self.vision.encoder.is_gated() {
            true => rms_norm(build, x, format!("{name}.weight"), "patches normed"),
            false => layer_norm(build, x, name, "patches normed"),
        }
    }

    /// One layer of the tower.
    fn layer(&self, build: &mut Builder, x: TensorId, layer: u32) -> TensorId {
        let (vision, encoder) = (self.vision, self.vision.encoder);
        let (hidden, biases) = (u64::from(vision.hidden), encoder.has_biases());
        let weight = |part: &str| format!("{TOWER}layers.{layer}.{part}");
        let normed = self.norm(build, x, weight("norm1"));
        let entered = build.enter_split(normed, "patches of all devices");
        let heads = Heads::usual(
            if vision.sees_all(layer) { vision.rows() } else { vision.window.into() },
            [build.share(vision.heads); 2],
            hidden / u64::from(vision.heads),
        );
        let width = heads.query * heads.width;
        let projected = ["q", "k", "v"].map(|part| {
            let name = weight(&format!("attn.{part}"));
            let split = build.split_heads(vision.heads, heads.width);
            let matrix = build.weight_of(format!("{name}.weight"), vec![width, hidden], Init::Normal, false, split);
            let product = build.times(entered, matrix, width, part);
            let product = match biases {
                true => {
                    let bias = build.weight_of(format!("{name}.bias"), vec![width], Init::Zeros, false, split);
                    build.apply(Kernel::AddBias, &[product, bias], part, width)
                }
                false => product,
            };
            if !encoder.is_rotary() || part == "v" {
                return product;
            }
            let (sequence, heads, width) = (vision.rows(), heads.query, heads.width);
            let kernel = Kernel::Rope { sequence, heads, width, angles: Angles::usual(ROPE_BASE), inverse: false };
            build.apply(kernel, &[product], part, heads * width)
        });
        let log_sum_exp = build.statistic("attention log-sum-exp", Some(heads.query));
        let attended = build.apply(Kernel::FullAttention(heads), &projected, "attended", width);
        if let Some(operator) = build.graph.operators.last_mut() {
            operator.outputs.push(log_sum_exp);
        }
        let out = self.back(build, attended, &weight("attn.out"), vision.hidden);
        let x = build.apply(Kernel::Add, &[x, out], "after attention", hidden);
        let normed = self.norm(build, x, weight("norm2"));
        let entered = build.enter_split(normed, "patches of all devices");
        let ffn = build.share(vision.ffn);
        let mut inner = |part: &str| {
            let (name, split) = (weight(&format!("mlp.{part}")), build.split(0, vision.ffn));
            let matrix = build.weight_of(format!("{name}.weight"), vec![ffn, hidden], Init::Normal, false, split);
            let product = build.times(entered, matrix, ffn, part);
            if !biases {
                return product;
            }
            let bias = build.weight_of(format!("{name}.bias"), vec![ffn], Init::Zeros, false, split);
            build.apply(Kernel::AddBias, &[product, bias], part, ffn)
        };
        let product = match encoder.is_gated() {
            true => {
                let both = [inner("gate"), inner("up")];
                build.apply(Kernel::SwiGlu, &both, "gated", ffn)
            }
            false => {
                let up = inner("up");
                build.apply(Kernel::Gelu, &[up], "activated", ffn)
            }
        };
        let down = self.back(build, product, &weight("mlp.down"), vision.ffn);
        build.apply(Kernel::Add, &[x, down], "output", hidden)
    }

    /// The last matrix of a part, of whose `inner` columns each device has some, summed over them.
    fn back(&self, build: &mut Builder, x: TensorId, name: &str, inner: u32) -> TensorId {
        let hidden = u64::from(self.vision.hidden);
        let (columns, split) = (build.width_of(x), build.split(1, inner));
        let matrix = build.weight_of(format!("{name}.weight"), vec![hidden, columns], Init::Normal, false, split);
        let product = build.times(x, matrix, hidden, "projected");
        let product = build.leave_split(product, "projected of all devices");
        if !self.vision.encoder.has_biases() {
            return product;
        }
        let bias = build.new_weight(format!("{name}.bias"), vec![hidden], Init::Zeros, false);
        build.apply(Kernel::AddBias, &[product, bias], "projected", hidden)
    }

    /// The weights of a pooling head that no decoder reads.
    fn hold_head(&self, build: &mut Builder) {
        let [hidden, ffn] = [self.vision.hidden, self.vision.ffn].map(u64::from);
        for (part, shape) in [
            ("probe", vec![hidden]),
            ("attention.in_proj.weight", vec![3 * hidden, hidden]),
            ("attention.in_proj.bias", vec![3 * hidden]),
            ("attention.out_proj.weight", vec![hidden, hidden]),
            ("attention.out_proj.bias", vec![hidden]),
            ("norm.weight", vec![hidden]),
            ("norm.bias", vec![hidden]),
            ("mlp.up.weight", vec![ffn, hidden]),
            ("mlp.up.bias", vec![ffn]),
            ("mlp.down.weight", vec![hidden, ffn]),
            ("mlp.down.bias", vec![hidden]),
        ] {
            build.new_weight(format!("{TOWER}head.{part}"), shape, Init::Normal, false);
        }
    }

    /// Rows of `columns` numbers, of which a token has one.
    fn side_by_side(&self, build: &mut Builder, x: TensorId, columns: u64) -> TensorId {
        build.tokens = self.images.saturating_mul(self.vision.tokens.into());
        build.apply(Kernel::ImageRows(ImageRows::Merged), &[x], "patches of each token", columns)
    }

    /// A merger of Qwen's: its norm stands before the patches are put side by side, or behind.
    fn merged(&self, build: &mut Builder, x: TensorId, name: &str, norm_behind: bool) -> TensorId {
        let columns = u64::from(self.vision.merge) * u64::from(self.vision.hidden);
        let output = u64::from(self.vision.output(build.model.hidden));
        let x = match norm_behind {
            true => {
                let x = self.side_by_side(build, x, columns);
                self.norm(build, x, format!("{name}.norm"))
            }
            false => {
                let x = self.norm(build, x, format!("{name}.norm"));
                self.side_by_side(build, x, columns)
            }
        };
        let inner = whole(build, x, &format!("{name}.fc1"), columns, true);
        let inner = build.apply(Kernel::Gelu, &[inner], "activated", columns);
        whole(build, inner, &format!("{name}.fc2"), output, true)
    }

    /// What the projector makes of the tower's last rows.
    fn projected(&self, build: &mut Builder, x: TensorId) -> TensorId {
        let vision = self.vision;
        let (hidden, decoder) = (u64::from(vision.hidden), build.hidden());
        let columns = u64::from(vision.merge) * hidden;
        let name = |part: &str| format!("{PROJECTOR}{part}");
        match vision.projector {
            Projector::Merger => self.merged(build, x, &format!("{PROJECTOR}merger"), false),
            Projector::Pooled => {
                let x = self.side_by_side(build, x, hidden);
                let x = rms_norm(build, x, name("norm.weight"), "image tokens normed");
                whole(build, x, &name("fc1"), decoder, false)
            }
            Projector::Mlp => {
                let rows_change = vision.merge > 1 || vision.encoder.has_class_token();
                let x = if rows_change { self.side_by_side(build, x, hidden) } else { x };
                let x = whole(build, x, &name("fc1"), decoder, true);
                let x = build.apply(Kernel::Gelu, &[x], "activated", decoder);
                whole(build, x, &name("fc2"), decoder, true)
            }
            Projector::PatchMerger => {
                let x = rms_norm(build, x, name("norm.weight"), "patches normed");
                let x = self.side_by_side(build, x, columns);
                let x = whole(build, x, &name("merging"), hidden, false);
                let x = whole(build, x, &name("fc1"), decoder, false);
                let x = build.apply(Kernel::Gelu, &[x], "activated", decoder);
                whole(build, x, &name("fc2"), decoder, false)
            }
            Projector::Shuffle => {
                let width = u64::from(vision.width);
                let x = self.side_by_side(build, x, vision.ffn.into());
                let x = whole(build, x, &name("adapter.fc1"), width, false);
                let x = build.apply(Kernel::Gelu, &[x], "activated", width);
                let x = whole(build, x, &name("adapter.fc2"), width, false);
                let x = build.apply(Kernel::Gelu, &[x], "activated", width);
                whole(build, x, &name("fc1"), decoder, false)
            }
        }
    }
}

/// A linear layer that each device holds all of. It has no adapters.
fn whole(build: &mut Builder, x: TensorId, name: &str, out: u64, bias: bool) -> TensorId {
    let inner = build.width_of(x);
    let matrix = build.new_weight(format!("{name}.weight"), vec![out, inner], Init::Normal, false);
    let product = build.times(x, matrix, out, "product");
    if !bias {
        return product;
    }
    let bias = build.new_weight(format!("{name}.bias"), vec![out], Init::Zeros, false);
    build.apply(Kernel::AddBias, &[product, bias], "product", out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::stage_graph;
    use crate::graph::form::{Form, StageShape};
    use crate::graph::{Graph, Job};
    use crate::hardware::cost;
    use crate::model::vision::Encoder;
    use crate::model::{Dtype, ModelConfig, Modules, catalog};

    /// A tower of every encoder, with its usual projector.
    fn towers() -> Vec<Vision> {
        let of = |encoder: Encoder| {
            let small = Vision {
                encoder,
                projector: encoder.usual_projector(),
                layers: 4,
                hidden: 64,
                heads: 4,
                ffn: 256,
                patch: 14,
                merge: 4,
                tokens: 16,
                images: 3,
                positions: if encoder.has_table() { 65 } else { 0 },
                window: 0,
                full_layers: 0,
                deepstack: 0,
                width: 0,
                output: 0,
                head: false,
            };
            match encoder {
                Encoder::Clip => Vision { merge: 1, ..small },
                Encoder::Siglip => Vision { head: true, ..small },
                Encoder::Qwen25 => Vision { window: 16, full_layers: 1, ..small },
                Encoder::Qwen3 => Vision { deepstack: 2, ..small },
                Encoder::Pixtral => small,
                Encoder::Llama4 => Vision { width: 48, output: 48, ..small },
            }
        };
        Encoder::ALL.map(of).to_vec()
    }

    fn graph(vision: Vision, form: Form) -> (ModelConfig, Graph) {
        let mut model = catalog::find("tiny-llama").map(|entry| entry.config).unwrap();
        model.variant.vision = Some(vision);
        let shape = StageShape {
            layers: 0..0,
            has_embedding: true,
            has_head: false,
            modules: Modules::default(),
            microbatch_size: 2,
            sequence: 64,
            dtype: Dtype::Bf16,
            form,
        };
        (model, stage_graph(&model, &shape, 1))
    }

    #[test]
    fn weights_of_the_graph_are_the_parameters_of_the_tower() {
        for vision in towers() {
            let (model, graph) = graph(vision, Form::default());
            let of = |start: &str| -> u64 {
                let weights = graph.weights().filter(|(_, weight)| weight.name.starts_with(start));
                weights.map(|(_, weight)| weight.elements()).sum()
            };
            let counted = [of(TOWER), of(PROJECTOR)];
            let expected = [vision.tower_parameters(), vision.projector_parameters(model.hidden)];
            assert_eq!(counted, expected, "{vision:?}");
            // Every weight that images go through learns.
            let learns = |name: &str| {
                let gradient = graph.tensors.iter().position(|tensor| tensor.name == format!("{name}.gradient"));
                let gradient = TensorId(gradient.unwrap() as u32);
                graph.operators.iter().any(|operator| operator.outputs.contains(&gradient))
            };
            let held = format!("{TOWER}head.");
            for (_, weight) in graph.weights().filter(|(_, weight)| !weight.name.starts_with(&held)) {
                assert!(learns(&weight.name), "{}", weight.name);
            }
        }
    }

    /// Two operations a patch for each number of a matrix in F, twice that in the backward, less what patches have no
    /// gradient for; attention without a mask has `4 · n · hidden` a patch of `n`, and 2.5 times that in its gradient.
    #[test]
    fn operations_of_a_tower_are_those_of_the_closed_form() {
        let vision = towers()[4];
        let (model, graph) = graph(vision, Form::default());
        let [f, b, w] = cost::job_flops(&graph);
        let (images, patches) = (6u128, u128::from(vision.patches()));
        let [layers, hidden, ffn, merge] = [vision.layers, vision.hidden, vision.ffn, vision.merge].map(u128::from);
        let (decoder, pixels) = (u128::from(model.hidden), u128::from(vision.patch_width()));
        let rows = images * patches;
        let patch = 2 * rows * pixels * hidden;
        let matrices = 2 * rows * layers * (4 * hidden * hidden + 3 * hidden * ffn);
        let projector = 2 * (rows / merge) * (merge * hidden * hidden + hidden * decoder + decoder * decoder);
        let attention = 4 * rows * patches * hidden * layers;
        assert_eq!(f, patch + matrices + projector + attention);
        assert_eq!(w, patch + matrices + projector);
        assert_eq!(b, matrices + projector + attention * 5 / 2);
    }

    /// Within windows fewer patches see each other; a layer of four sees all.
    #[test]
    fn windows_save_the_patches_that_they_hide() {
        let vision = towers()[2];
        let flops = |vision| cost::job_flops(&graph(vision, Form::default()).1)[Job::F as usize];
        let saved = flops(Vision { window: 0, ..vision }) - flops(vision);
        let (rows, hidden) = (6 * 64u128, 64u128);
        assert_eq!(saved, 3 * 4 * rows * hidden * (64 - 16));
    }

    /// A frozen tower is a forward alone that keeps nothing; its projector learns all the same.
    #[test]
    fn a_frozen_tower_has_no_backward() {
        for vision in towers() {
            let mut form = Form::default();
            form.frozen.add("vision").unwrap();
            let (_, frozen) = graph(vision, form);
            let of_tower = |graph: &Graph| {
                let is_of = |name: &str| name.starts_with("gradient of") && name.contains("attended");
                graph.tensors.iter().filter(|tensor| is_of(&tensor.name)).count()
            };
            assert_eq!(of_tower(&frozen), 0, "{vision:?}");
            assert!(of_tower(&graph(vision, Form::default()).1) > 0);
            let trains = |start: &str| {
                frozen
                    .weights()
                    .filter(|(_, weight)| weight.name.starts_with(start))
                    .all(|(_, weight)| !weight.is_frozen())
            };
            assert!(trains(PROJECTOR) && trains("model."), "{vision:?}");
            form.frozen.add("projector").unwrap();
            // The embedding alone learns.
            let (_, graph) = graph(vision, form);
            assert_eq!(graph.weights().filter(|(_, weight)| !weight.is_frozen()).count(), 1, "{vision:?}");
            assert!(!graph.operators.iter().any(|operator| matches!(operator.kernel, Kernel::FullAttentionGrad(_))));
        }
    }

    /// Devices that share matrices share those of the tower's layers.
    #[test]
    fn tensor_parallel_cuts_the_layers_of_a_tower() {
        for vision in towers() {
            let of = |tensor: u32, sequence_parallel: bool| {
                let (_, graph) = graph(vision, Form { tensor, sequence_parallel, ..Form::default() });
                let weights = graph.weights().filter(|(_, weight)| weight.name.contains("layers."));
                let matrices = weights.filter(|(_, weight)| weight.shape.len() == 2);
                matrices.map(|(_, weight)| weight.elements()).sum::<u64>()
            };
            assert_eq!(of(1, false), 4 * of(4, false), "{vision:?}");
            assert_eq!(of(4, true), of(4, false), "{vision:?}");
        }
    }
}
