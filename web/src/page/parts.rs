//! The parts of the page that are loaded when they are needed first, by `parts.js`.

use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;

use crate::reader::{Asked, Found};

#[wasm_bindgen(raw_module = "./parts.js")]
extern "C" {
    #[wasm_bindgen(catch, js_name = call)]
    async fn call(part: &str, work: &str, given: Array) -> Result<JsValue, JsValue>;
}

/// What a text is.
///
/// # Errors
/// Why it is not read, as a sentence.
pub async fn read(text: &str, asked: &Asked) -> Result<Found, String> {
    let asked = postcard::to_allocvec(asked).map_err(|error| error.to_string())?;
    let given = Array::of2(&text.into(), &Uint8Array::from(asked.as_slice()));
    let found = call("pipeplan-reader", "read", given).await.map_err(|error| {
        let reason = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
        format!("The part of the page that reads files could not be loaded: {}.", reason.unwrap_or_default())
    })?;
    postcard::from_bytes(&Uint8Array::new(&found).to_vec()).map_err(|error| error.to_string())
}

/// A QR code of `text`, as the side of its square and the path of its dark modules; none where the text is too long.
///
/// # Errors
/// Why there is none, as a sentence.
pub async fn qr_code(text: &str) -> Result<Option<(u32, String)>, String> {
    let code = call("pipeplan-reader", "qr_code", Array::of1(&text.into())).await.map_err(|error| {
        let reason = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
        format!("The part of the page that draws QR codes could not be loaded: {}.", reason.unwrap_or_default())
    })?;
    let parts =
        |code: String| code.split_once(' ').and_then(|(side, path)| Some((side.parse().ok()?, path.to_owned())));
    Ok(code.as_string().and_then(parts))
}

/// A function of the planner for scripts.
///
/// # Errors
/// What it throws.
pub async fn call_planner(work: &str, given: Array) -> Result<JsValue, JsValue> {
    call("pipeplan-planner", work, given).await
}
