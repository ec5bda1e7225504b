//! The field `model.vision`: a vision tower, its sizes those of a `config.json` or by hand.

use alloc::format;
use alloc::vec::Vec;

use crate::base::fields::{Fault, Table};
use crate::model::vision::{Encoder, MAX_VISION_LAYERS, Projector};
use crate::model::{MAX_SIZE, Vision};

/// The tower that the input says: its table, with what it leaves out taken from `known`, the tower of a `config.json`. A
/// tower is only planned where the input has the field.
pub(super) fn read_vision(table: &mut Table<'_>, known: Option<Vision>, faults: &mut Vec<Fault>) -> Option<Vision> {
    if table.get("vision").and_then(|value| value.as_str()) == Some("none") {
        return None;
    }
    let mut table = table.table("vision", faults)?;
    let encoders = Encoder::ALL.map(|encoder| (encoder.name(), encoder));
    let projectors = Projector::ALL.map(|projector| (projector.name(), projector));
    let encoder = table.choice("encoder", &encoders, faults).or(known.map(|known| known.encoder));
    if encoder.is_none() && table.get("encoder").is_none() {
        let names = Encoder::ALL.map(Encoder::name).join(", ");
        let accepted = format!("one of {names}, or model.config with a vision tower that is known");
        faults.push(Fault::new(table.path("encoder"), "nothing", accepted));
    }
    let projector = table.choice("projector", &projectors, faults).or(known.map(|known| known.projector));
    let most = u64::from(MAX_SIZE);
    let mut size = |key: &'static str, most: u64, known: Option<u32>| {
        let typed = match known {
            Some(_) => table.whole(key, 0..=most, faults),
            None => table.needed_whole(key, 1..=most, faults),
        };
        typed.map(|size| size as u32).or(known)
    };
    let images = size("images", most, None);
    // Where images have many sizes, a `config.json` does not say it.
    let tokens = size("tokens", most, known.map(|known| known.tokens).filter(|tokens| *tokens > 0));
    let layers = size("layers", MAX_VISION_LAYERS.into(), known.map(|known| known.layers));
    let [hidden, heads, ffn, patch] = [
        ("hidden", known.map(|known| known.hidden)),
        ("heads", known.map(|known| known.heads)),
        ("ffn", known.map(|known| known.ffn)),
        ("patch", known.map(|known| known.patch)),
    ]
    .map(|(key, known)| size(key, most, known));
    let merge = size("merge", most, Some(known.map_or(1, |known| known.merge)));
    let of_known = |of: fn(Vision) -> u32| Some(known.map_or(0, of));
    let positions = size("positions", most, of_known(|known| known.positions));
    let window = size("window", most, of_known(|known| known.window));
    let full_layers = size("full_layers", most, of_known(|known| known.full_layers));
    let deepstack = size("deepstack", most, of_known(|known| known.deepstack));
    let width = size("width", most, of_known(|known| known.width));
    let output = size("output", most, of_known(|known| known.output));
    let head = table.flag("head", faults).unwrap_or(known.is_some_and(|known| known.head));
    table.finish(faults);
    let encoder = encoder?;
    let mut vision = Vision {
        encoder,
        projector: projector.unwrap_or(encoder.usual_projector()),
        layers: layers?,
        hidden: hidden?,
        heads: heads?,
        ffn: ffn?,
        patch: patch?,
        merge: merge?,
        tokens: tokens?,
        images: images?,
        positions: positions?,
        window: window?,
        full_layers: full_layers?,
        deepstack: deepstack?,
        width: width?,
        output: output?,
        head,
    };
    // A table has a row for each patch, and one for the class token.
    if vision.positions == 0 && encoder.has_table() {
        vision.positions = u32::try_from(vision.rows()).unwrap_or(u32::MAX);
    }
    Some(vision)
}
