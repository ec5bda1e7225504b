//! Numbers of a card as bytes, and as the f32 values of the host.

use pipeplan_core::model::Dtype;

use super::card::Format;
use super::emulated;

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

/// `values` as a card holds them.
pub fn packed(values: &[f32], format: Format) -> Vec<u8> {
    /// Into places of their size: an iterator of bytes takes several times as long, which is seconds for a whole model.
    fn each<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
        let mut packed = vec![0; values.len() * N];
        packed.chunks_exact_mut(N).zip(values).for_each(|(place, value)| place.copy_from_slice(&bytes(*value)));
        packed
    }
    match format {
        Format::F32 => each(values, f32::to_ne_bytes),
        Format::Bf16 => each(values, |value| emulated::bf16_bits(value).to_ne_bytes()),
    }
}

/// Back again, widened.
pub fn unpacked(bytes: &[u8], format: Format) -> Vec<f32> {
    match format {
        Format::F32 => floats(bytes),
        Format::Bf16 => {
            let wide = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) << 16);
            bytes.chunks_exact(2).map(wide).collect()
        }
    }
}

pub(crate) fn format_of(dtype: Dtype) -> Format {
    if dtype == Dtype::Bf16 { Format::Bf16 } else { Format::F32 }
}
