//! Checks of operators that are fused with the one after them.

use std::sync::Arc;

use pipeplan_core::graph::Kernel;
use pipeplan_core::model::Dtype;

use super::case::{Case, Tensor, limit};
use crate::backend::cuda::card::{Card, CardError, Memory};
use crate::backend::cuda::launch::{Context, Place};
use crate::selftest::Row;

/// Products that take in what comes right behind them: a bias, a residual.
pub fn fused(card: &Arc<dyn Card>) -> Vec<Row> {
    let mut rows = Vec::new();
    // Sizes that fill no tile, and those of tensor cores.
    let sizes = [(37u64, 51u64, 83u64), (128, 256, 192)];
    for (t, (n, h, f)) in [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|t| sizes.map(|sizes| (t, sizes))) {
        let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
        let (x, w) = (random(&[n, h], 80), random(&[f, h], 81));
        let product = Kernel::MatMul { transpose_a: false, transpose_b: true, accumulate: false };
        let y = Case::new(product, t, vec![x.clone(), w.clone()], &[(&[n, f], t)]).reference().remove(0);
        for (kernel, other) in [(Kernel::AddBias, random(&[f], 82)), (Kernel::Add, random(&[n, f], 83))] {
            let sum = Case::new(kernel, t, vec![y.clone(), other.clone()], &[(&[n, f], t)]);
            let limit = limit(t);
            let name = format!("{} and {}, fused, {} {n}x{h} {f}x{h}", product.name(), kernel.name(), t.name());
            let measured = (|| {
                let mut context = Context::new(Arc::clone(card));
                let all = [&x, &w, &other].map(|tensor| Memory::holding(card, &tensor.bytes()));
                let [x_at, w_at, other_at] = all;
                let (x_at, w_at, other_at) = (x_at?, w_at?, other_at?);
                let result = Memory::new(card, n * f * t.bytes())?;
                let at = |memory: &Memory, of: &Tensor| (memory.at(), of.shape.clone());
                let places = [at(&x_at, &x), at(&w_at, &w), at(&other_at, &other), at(&result, &y)];
                let [x_in, w_in, other_in, out] =
                    places.each_ref().map(|(at, shape)| Place { at: Some(*at), shape, dtype: t });
                card.begin_job();
                context.run(&product, &[x_in, w_in], &[out])?;
                context.run(&kernel, &[out, other_in], &[out])?;
                card.end_job()?;
                result.read()
            })();
            rows.push(match measured {
                Ok(bytes) => Row::error("operators", name, sum.error(&sum.reference(), &[bytes]), limit),
                Err::<_, CardError>(error) => Row::broken("operators", name, &error),
            });
        }
    }
    rows
}

/// Gradients of norms that take in what comes right behind them, against the two apart: the same bits.
pub fn fused_norms(card: &Arc<dyn Card>) -> Vec<Row> {
    let mut rows = Vec::new();
    // In packs of 16 bytes, and not.
    for (t, h) in [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|t| [51u64, 264].map(|h| (t, h))) {
        const ROWS: u64 = 37;
        let random = |shape: &[u64], seed| Tensor::random(shape, t, seed);
        let inverse = Tensor::random(&[ROWS], Dtype::F32, 88);
        let all = [random(&[ROWS, h], 86), random(&[ROWS, h], 87), inverse, random(&[h], 89), random(&[ROWS, h], 90)];
        let kernel = Kernel::RmsNormInputGrad { offset: false };
        let name = format!("{} and add, fused, {} {ROWS}x{h}", kernel.name(), t.name());
        let run = |together: bool| {
            let mut context = Context::new(Arc::clone(card));
            let at = all.iter().map(|tensor| Memory::holding(card, &tensor.bytes()));
            let at = at.collect::<Result<Vec<Memory>, CardError>>()?;
            let result = Memory::new(card, ROWS * h * t.bytes())?;
            let out = Place { at: Some(result.at()), shape: &all[0].shape, dtype: t };
            let place = |(tensor, at): (&Tensor, &Memory)| (at.at(), tensor.shape.clone(), tensor.dtype);
            let places: Vec<_> = all.iter().zip(&at).map(place).collect();
            let inputs: Vec<Place<'_>> =
                places.iter().map(|(at, shape, dtype)| Place { at: Some(*at), shape, dtype: *dtype }).collect();
            if together {
                card.begin_job();
            }
            context.run(&kernel, &inputs[..4], &[out])?;
            context.run(&Kernel::Add, &[out, inputs[4]], &[out])?;
            card.end_job()?;
            result.read()
        };
        rows.push(match run(false).and_then(|apart| Ok((apart, run(true)?))) {
            Ok((apart, together)) => {
                let same = apart == together && apart.iter().any(|byte| *byte != 0);
                let found = if same { "the same bits" } else { "other bits" };
                Row::fact("operators", name, found, "two launches", same)
            }
            Err::<_, CardError>(error) => Row::broken("operators", name, &error),
        });
    }
    rows
}
