//! The readers of files that a person opens, which `parts.js` loads with the first such file.

#[cfg(target_arch = "wasm32")]
mod exports {
    //! The function that the page calls.

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
}

fn main() {
    #[cfg(not(target_arch = "wasm32"))]
    println!(
        "The readers of the page run in a browser: build the page, then `pipeplan serve`; or `pipeplan import`."
    );
}
