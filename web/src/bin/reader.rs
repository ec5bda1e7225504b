//! The readers of files that a person opens, which `parts.js` loads with the first such file.

#[cfg(target_arch = "wasm32")]
mod exports {
    //! The functions that the page calls.

    use pipeplan_web::reader;
    use wasm_bindgen::prelude::*;

    /// What a text is, as bytes of the page's protocol. `asked` is such bytes, too.
    ///
    /// # Errors
    /// What is wrong with `asked`.
    #[wasm_bindgen]
    pub fn read(text: &str, asked: &[u8]) -> Result<Vec<u8>, JsError> {
        console_error_panic_hook::set_once();
        let asked = postcard::from_bytes(asked).map_err(|error| JsError::new(&error.to_string()))?;
        postcard::to_allocvec(&reader::read(text, &asked)).map_err(|error| JsError::new(&error.to_string()))
    }

    /// A QR code of `text`: the side of its square, a space, the path of its dark modules; nothing where the text is too long.
    #[wasm_bindgen]
    pub fn qr_code(text: &str) -> Option<String> {
        reader::qr_code(text).map(|(side, path)| format!("{side} {path}"))
    }
}

fn main() {
    #[cfg(not(target_arch = "wasm32"))]
    println!(
        "The readers of the page run in a browser: build the page, then `pipeplan serve`; or `pipeplan import`."
    );
}
