//! Walk-through: add an operator.

// ANCHOR: formulas
/// ReLU² (Primer, arXiv:2109.08668): `y = max(x, 0)²`, by element.
pub fn squared_relu(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.max(0.0) * x.max(0.0)).collect()
}

/// The gradient for its input: `dx = dy · 2 max(x, 0)`. It needs `x`, so `x` stays from F to B.
pub fn squared_relu_grad(dy: &[f64], x: &[f64]) -> Vec<f64> {
    dy.iter().zip(x).map(|(dy, x)| dy * 2.0 * x.max(0.0)).collect()
}
// ANCHOR_END: formulas

// ANCHOR: slope
/// The gradient is the slope of the loss, here the sum of `dy · y`.
#[test]
fn the_gradient_is_the_slope() {
    let x = [-1.5, -0.25, 0.125, 0.5, 2.0];
    let dy = [0.3, -1.0, 2.0, 0.7, -0.2];
    let loss = |x: &[f64]| squared_relu(x).iter().zip(dy).map(|(y, dy)| y * dy).sum::<f64>();
    let gradient = squared_relu_grad(&dy, &x);
    let step = 1e-6;
    for (element, gradient) in gradient.iter().enumerate() {
        let [mut above, mut below] = [x, x];
        above[element] += step;
        below[element] -= step;
        let slope = (loss(&above) - loss(&below)) / (2.0 * step);
        assert!((slope - gradient).abs() < 1e-6, "element {element}: {slope} and {gradient}");
    }
}
// ANCHOR_END: slope

// ANCHOR: cost
/// An operator by element is bound by memory: the roofline takes its bytes at 68 % of the memory's rate.
#[test]
fn its_time_follows_from_its_bytes() {
    use pipeplan_core::hardware::{cluster, cost};
    use pipeplan_core::model::Dtype;

    let h100 = cluster::find("h100").expect("a device of the catalog").device(Dtype::Bf16);
    let elements = 4096 * 11008;
    let bytes = 2 * elements * 2; // x is read and y is written, two bytes an element
    let time = cost::traffic_time(bytes, &h100);
    let least = bytes as f64 / h100.memory_bytes_per_s as f64 * 1e9;
    assert!((time as f64 / least - 1.47).abs() < 0.01, "{time} ns, and {least} ns at the full rate");
}
// ANCHOR_END: cost
