//! Calls to the browser. Each does nothing if the browser refuses.

use std::cell::Cell;

use js_sys::{Array, Function, Promise, Reflect, Uint8Array};
use leptos::prelude::{GetUntracked, RwSignal, Set};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    Blob, BlobPropertyBag, CanvasRenderingContext2d, Element, Event, File, FocusOptions, History, HtmlAnchorElement,
    HtmlCanvasElement, HtmlElement, HtmlImageElement, KeyboardEvent, ReadableStream, ReadableStreamDefaultReader,
    ReadableWritablePair, ResizeObserver, Response, ScrollBehavior, ScrollIntoViewOptions, Url, Window, Worker,
};

/// The window. A page always has one.
pub fn window() -> Option<Window> {
    web_sys::window()
}

/// What the page's script has begun before this WebAssembly came.
fn begun(name: &str) -> Option<JsValue> {
    let begun = Reflect::get(window()?.as_ref(), &"planner".into()).ok()?;
    begun.is_object().then(|| Reflect::get(&begun, &name.into()).ok()).flatten()
}

/// The version of the page, which its parts have in their addresses.
pub fn version() -> String {
    begun("version").and_then(|version| version.as_string()).unwrap_or_default()
}

/// The planner's worker that began to load with the page, once; none where it did not start.
pub fn planner_worker() -> Option<Worker> {
    let worker: Worker = begun("worker")?.dyn_into().ok()?;
    let begun = Reflect::get(window()?.as_ref(), &"planner".into()).ok()?;
    let _ = Reflect::set(&begun, &"worker".into(), &JsValue::NULL);
    let failed = Reflect::get(&worker, &"failed".into()).is_ok_and(|failed| failed.is_string());
    (!failed).then_some(worker)
}

/// Names the page, for tabs and the history.
pub fn set_title(title: &str) {
    if let Some(document) = window().and_then(|window| window.document()) {
        document.set_title(title);
    }
}

/// Width of a sheet of paper between its margins, in CSS pixels: A4's and US Letter's, upright, are a little more.
const PAPER_PX: f64 = 680.0;

/// Calls `then` before the page is printed, with true, and afterwards, with false.
pub fn on_print(then: impl Fn(bool) + 'static) {
    let then = Closure::<dyn FnMut(Event)>::new(move |event: Event| then(event.type_() == "beforeprint"));
    if let Some(window) = window() {
        for event in ["beforeprint", "afterprint"] {
            let _ = window.add_event_listener_with_callback(event, then.as_ref().unchecked_ref());
        }
    }
    then.forget();
}

/// Before the page is printed, says in `--paper` by how much what is as wide as the screen's `.stage` has to shrink.
pub fn fit_paper() {
    on_print(|_| {
        let Some(document) = window().and_then(|window| window.document()) else { return };
        let stage = document.query_selector(".stage").ok().flatten();
        if let (Some(root), Some(stage)) = (document.document_element(), stage) {
            let scale = (PAPER_PX / f64::from(stage.client_width().max(1))).min(1.0);
            let _ = root.set_attribute("style", &format!("--paper:{scale:.4}"));
        }
    });
}

/// Takes an element out of the page.
pub fn remove(id: &str) {
    let document = window().and_then(|window| window.document());
    if let Some(element) = document.and_then(|document| document.get_element_by_id(id)) {
        element.remove();
    }
}

/// The part of the address after `#`, without it.
pub fn fragment() -> String {
    let hash = window().and_then(|window| window.location().hash().ok()).unwrap_or_default();
    hash.trim_start_matches('#').to_owned()
}

/// Replaces the part of the address after `#`: in the history's `same_entry`, or in a new one, from which a person can
/// go back.
pub fn set_fragment(fragment: &str, same_entry: bool) {
    let Some(history) = window().and_then(|window| window.history().ok()) else { return };
    let address = format!("#{fragment}");
    let at = entry(&history);
    let _ = match same_entry {
        true => history.replace_state_with_url(&at.into(), "", Some(&address)),
        false => {
            NEWEST_ENTRY.set(at + 1.0);
            history.push_state_with_url(&(at + 1.0).into(), "", Some(&address))
        }
    };
}

thread_local! {
    /// The number of the newest entry that the page has added to the history.
    static NEWEST_ENTRY: Cell<f64> = const { Cell::new(0.0) };
}

/// Which of the page's entries of the history is shown: 0 is the one with which it opened.
fn entry(history: &History) -> f64 {
    history.state().ok().and_then(|state| state.as_f64()).unwrap_or(0.0)
}

/// Goes to the entry of the history before, or after with `forward`, where it is one of the page's own.
pub fn undo(forward: bool) {
    let Some(history) = window().and_then(|window| window.history().ok()) else { return };
    let at = entry(&history);
    let _ = match forward {
        true if at < NEWEST_ENTRY.get() => history.forward(),
        false if at > 0.0 => history.back(),
        _ => Ok(()),
    };
}

/// Calls `then` for each key that is pressed anywhere on the page but in a field of text, which has an undo of its own.
pub fn on_key(then: impl Fn(&KeyboardEvent) + 'static) {
    let then = Closure::<dyn FnMut(KeyboardEvent)>::new(move |event: KeyboardEvent| {
        let target = event.target().and_then(|target| target.dyn_into::<Element>().ok());
        let typed = "textarea, input:not([type=range], [type=checkbox], [type=file])";
        if !target.is_some_and(|target| target.matches(typed).unwrap_or(false)) {
            then(&event);
        }
    });
    if let Some(window) = window() {
        let _ = window.add_event_listener_with_callback("keydown", then.as_ref().unchecked_ref());
    }
    then.forget();
}

/// Gives the body of the page a class, for its style.
pub fn mark_body(class: &str) {
    let body = window().and_then(|window| window.document()?.body());
    if let Some(body) = body {
        let _ = body.set_attribute("class", class);
    }
}

/// The page's address without query and fragment.
fn page_address() -> String {
    let href = window().and_then(|window| window.location().href().ok()).unwrap_or_default();
    href.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// The address of a file next to the page.
pub fn beside_page(relative: &str) -> String {
    Url::new_with_base(relative, &page_address()).map_or_else(|_| relative.to_owned(), |url| url.href())
}

/// The page's address with this fragment.
pub fn address_with(fragment: &str) -> String {
    format!("{}#{fragment}", page_address())
}

/// A value of the address's query.
pub fn query(name: &str) -> Option<String> {
    let search = window()?.location().search().ok()?;
    web_sys::UrlSearchParams::new_with_str(&search).ok()?.get(name)
}

/// Runs `then` after a while.
pub fn after(milliseconds: i32, then: impl FnOnce() + 'static) {
    if let Some(window) = window() {
        let then = Closure::once_into_js(then);
        let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(then.unchecked_ref(), milliseconds);
    }
}

/// Milliseconds of a clock that never goes back.
pub fn now_ms() -> f64 {
    window().and_then(|window| window.performance()).map_or(0.0, |performance| performance.now())
}

/// Runs `then` before the next frame is shown.
pub fn next_frame(then: impl FnOnce() + 'static) {
    if let Some(window) = window() {
        let then = Closure::once_into_js(then);
        let _ = window.request_animation_frame(then.unchecked_ref());
    }
}

/// Whether the person prefers dark pages.
pub fn prefers_dark() -> bool {
    media("(prefers-color-scheme: dark)").is_some_and(|query| query.matches())
}

/// Calls `then` whenever the answer to a media query changes.
pub fn on_media_change(query: &str, then: impl FnMut() + 'static) {
    if let Some(list) = media(query) {
        let then = Closure::<dyn FnMut()>::new(then);
        list.set_onchange(Some(then.as_ref().unchecked_ref()));
        then.forget();
        // The list has to outlive this call for its events to arrive.
        std::mem::forget(list);
    }
}

fn media(query: &str) -> Option<web_sys::MediaQueryList> {
    window()?.match_media(query).ok().flatten()
}

/// Scrolls to the element of `css` if less than half of it is in sight.
pub fn show_mostly(css: &str) {
    let Some(window) = window() else { return };
    let found = window.document().and_then(|document| document.query_selector(css).ok().flatten());
    let (Some(element), Some(height)) = (found, window.inner_height().ok().and_then(|height| height.as_f64())) else {
        return;
    };
    let place = element.get_bounding_client_rect();
    let seen = place.bottom().min(height) - place.top().max(0.0);
    if seen < place.height().min(height) / 2.0 {
        let options = ScrollIntoViewOptions::new();
        let still = media("(prefers-reduced-motion: reduce)").is_some_and(|query| query.matches());
        options.set_behavior(if still { ScrollBehavior::Instant } else { ScrollBehavior::Smooth });
        element.scroll_into_view_with_scroll_into_view_options(&options);
    }
}

/// Moves the focus to the element of `css`, without scrolling. Used before a focused button disappears, so that keys
/// and screen readers do not start at the top of the page.
pub fn focus(css: &str) {
    let found = window().and_then(|window| window.document()?.query_selector(css).ok().flatten());
    focus_on(found.as_ref());
}

/// Moves the focus to the first element of `css`, opens every fold that hides it, and scrolls there.
pub fn show(css: &str) {
    let found = window().and_then(|window| window.document()?.query_selector(css).ok().flatten());
    let Some(found) = found else { return };
    let around = |element: &Element| element.closest("details").ok().flatten();
    let mut fold = around(&found);
    while let Some(details) = fold {
        let _ = details.set_attribute("open", "");
        fold = details.parent_element().as_ref().and_then(around);
    }
    if let Some(element) = found.dyn_ref::<HtmlElement>() {
        let _ = element.focus();
    }
}

/// The same with an element.
pub fn focus_on(element: Option<&Element>) {
    if let Some(element) = element.and_then(|element| element.dyn_ref::<HtmlElement>()) {
        let options = FocusOptions::new();
        options.set_prevent_scroll(true);
        let _ = element.focus_with_options(&options);
    }
}

/// Shows the element of `css` on the whole screen, or ends that.
pub fn toggle_full_screen(css: &str) {
    let Some(document) = window().and_then(|window| window.document()) else { return };
    match (document.fullscreen_element(), document.query_selector(css).ok().flatten()) {
        (Some(_), _) => document.exit_fullscreen(),
        (None, Some(element)) => {
            let _ = element.request_fullscreen();
        }
        (None, None) => {}
    }
}

/// The height of the screen while an element has all of it.
pub fn full_screen_height() -> Option<f64> {
    let window = window()?;
    window.document()?.fullscreen_element()?;
    window.inner_height().ok()?.as_f64()
}

/// Whether the element of `css` has the focus.
pub fn has_focus(css: &str) -> bool {
    let active = window().and_then(|window| window.document()?.active_element());
    active.is_some_and(|active| active.matches(css).unwrap_or(false))
}

/// Device pixels a CSS pixel.
pub fn pixel_ratio() -> f64 {
    window().map_or(1.0, |window| window.device_pixel_ratio()).clamp(0.5, 4.0)
}

/// Offers a text as a download.
pub fn download(name: &str, content_type: &str, text: &str) {
    let save = || -> Result<(), JsValue> {
        let parts = js_sys::Array::of1(&JsValue::from_str(text));
        let options = BlobPropertyBag::new();
        options.set_type(content_type);
        download_blob(name, &Blob::new_with_str_sequence_and_options(&parts, &options)?)
    };
    let _ = save();
}

/// An address that can be read until [`forget_address`].
pub fn readable_address() -> Option<String> {
    Url::create_object_url_with_blob(&Blob::new().ok()?).ok()
}

/// Ends that.
pub fn forget_address(address: &str) {
    let _ = Url::revoke_object_url(address);
}

/// Offers a canvas as a PNG file.
pub fn download_png(name: String, canvas: &HtmlCanvasElement) {
    let save = Closure::once_into_js(move |blob: Option<Blob>| {
        if let Some(blob) = blob {
            let _ = download_blob(&name, &blob);
        }
    });
    let _ = canvas.to_blob(save.unchecked_ref());
}

/// Offers an SVG drawing as a PNG file, at `scale` times its size.
pub fn download_drawing_as_png(name: String, drawing: &str, scale: f64) {
    let show = || -> Result<(), JsValue> {
        let parts = Array::of1(&JsValue::from_str(drawing));
        let options = BlobPropertyBag::new();
        options.set_type("image/svg+xml");
        let address = Url::create_object_url_with_blob(&Blob::new_with_str_sequence_and_options(&parts, &options)?)?;
        let image = HtmlImageElement::new()?;
        let (drawn, source) = (image.clone(), address.clone());
        let paint = Closure::once_into_js(move || {
            let (width, height) =
                (f64::from(drawn.natural_width()) * scale, f64::from(drawn.natural_height()) * scale);
            let canvas = window().and_then(|window| window.document()?.create_element("canvas").ok());
            let canvas = canvas.and_then(|canvas| canvas.dyn_into::<HtmlCanvasElement>().ok());
            if let Some(canvas) = canvas {
                canvas.set_width(width as u32);
                canvas.set_height(height as u32);
                let context = canvas.get_context("2d").ok().flatten();
                if let Some(context) = context.and_then(|context| context.dyn_into::<CanvasRenderingContext2d>().ok())
                {
                    let _ = context.draw_image_with_html_image_element_and_dw_and_dh(&drawn, 0.0, 0.0, width, height);
                    download_png(name, &canvas);
                }
            }
            forget_address(&source);
        });
        image.set_onload(Some(paint.unchecked_ref()));
        image.set_src(&address);
        Ok(())
    };
    let _ = show();
}

/// The rows of the tables under `css` as CSV: what their cells show, without what is hidden.
pub fn table_csv(css: &str) -> String {
    let Some(document) = window().and_then(|window| window.document()) else { return String::new() };
    let all = |root: &dyn Fn(&str) -> Option<web_sys::NodeList>, css: &str| -> Vec<HtmlElement> {
        let found = root(css);
        let nodes = found.iter().flat_map(|found| (0..found.length()).filter_map(|at| found.get(at)));
        nodes.filter_map(|node| node.dyn_into().ok()).collect()
    };
    let quoted = |text: String| match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    };
    let mut csv = String::new();
    for row in all(&|css| document.query_selector_all(css).ok(), &format!("{css} tr")) {
        let cells = all(&|css| row.query_selector_all(css).ok(), "th:not([aria-hidden]), td:not([aria-hidden])");
        let said = |cell: &HtmlElement| quoted(cell.inner_text().split_whitespace().collect::<Vec<_>>().join(" "));
        csv.push_str(&cells.iter().map(said).collect::<Vec<_>>().join(","));
        csv.push('\n');
    }
    csv
}

fn download_blob(name: &str, blob: &Blob) -> Result<(), JsValue> {
    let address = Url::create_object_url_with_blob(blob)?;
    let document = window().and_then(|window| window.document()).ok_or(JsValue::NULL)?;
    let anchor: HtmlAnchorElement = document.create_element("a")?.dyn_into()?;
    anchor.set_href(&address);
    anchor.set_download(name);
    anchor.click();
    // The download may start after this turn.
    after(10_000, move || {
        let _ = Url::revoke_object_url(&address);
    });
    Ok(())
}

/// Puts a text on the clipboard. Returns whether it worked.
pub async fn copy(text: &str) -> bool {
    let Some(window) = window() else { return false };
    JsFuture::from(window.navigator().clipboard().write_text(text)).await.is_ok()
}

/// The text of a file.
pub async fn read_file(file: &File) -> Option<String> {
    if file.name().ends_with(".gz") {
        return unpacked(file).await.ok()?.as_string();
    }
    JsFuture::from(file.text()).await.ok()?.as_string()
}

/// The first `most` bytes of a file, unpacked where it is packed with gzip.
pub async fn head(file: &File, most: usize) -> Option<Vec<u8>> {
    let bytes = |buffer: JsValue| Uint8Array::new(&buffer).to_vec();
    let slice = file.slice_with_i32_and_i32(0, most as i32).ok()?;
    let start = bytes(JsFuture::from(slice.array_buffer()).await.ok()?);
    if !start.starts_with(&[0x1f, 0x8b]) {
        return Some(start);
    }
    let reader: ReadableStreamDefaultReader = unpacked_stream(file).ok()?.get_reader().dyn_into().ok()?;
    let mut head = Vec::new();
    while head.len() < most {
        let piece = JsFuture::from(reader.read()).await.ok()?;
        let value = Reflect::get(&piece, &"value".into()).ok()?;
        if !value.is_object() {
            break;
        }
        head.extend(bytes(value));
    }
    let _ = reader.cancel();
    Some(head)
}

/// A file with this text.
pub fn file_of(name: &str, text: &str) -> Option<File> {
    File::new_with_str_sequence(&Array::of1(&text.into()), if name.is_empty() { "the trace" } else { name }).ok()
}

/// The text of a file that was packed with gzip, as the browser unpacks it.
async fn unpacked(file: &File) -> Result<JsValue, JsValue> {
    let unpacked = unpacked_stream(file)?;
    JsFuture::from(Response::new_with_opt_readable_stream(Some(&unpacked))?.text()?).await
}

fn unpacked_stream(file: &File) -> Result<ReadableStream, JsValue> {
    let class = Reflect::get(&js_sys::global(), &"DecompressionStream".into())?;
    let stream = Reflect::construct(class.dyn_ref::<Function>().ok_or(JsValue::NULL)?, &Array::of1(&"gzip".into()))?;
    Ok(file.stream().pipe_through(stream.unchecked_ref::<ReadableWritablePair>()))
}

/// Waits a while.
pub async fn pause(milliseconds: i32) {
    let mut over = |resolve: Function, _: Function| {
        if let Some(window) = window() {
            let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, milliseconds);
        }
    };
    let _ = JsFuture::from(Promise::new(&mut over)).await;
}

/// The text of a file of this site.
///
/// # Errors
/// A sentence that says what went wrong.
pub async fn fetch_text(address: &str) -> Result<String, String> {
    let window = window().ok_or("there is no window")?;
    let url = Url::new_with_base(address, &page_address()).map_err(|_| format!("`{address}` is not an address"))?;
    if Some(url.origin()) != window.location().origin().ok() {
        return Err(format!("`{address}` is on another site; the page opens only files of its own site"));
    }
    let failed = |_| format!("`{address}` cannot be loaded");
    let response: Response =
        JsFuture::from(window.fetch_with_str(&url.href())).await.map_err(failed)?.dyn_into().map_err(failed)?;
    if !response.ok() {
        return Err(format!("`{address}` cannot be loaded: the server answers {}", response.status()));
    }
    let text = JsFuture::from(response.text().map_err(failed)?).await.map_err(failed)?;
    text.as_string().ok_or_else(|| format!("`{address}` is not a text file"))
}

/// Keeps `width` at the width of an element.
pub fn follow_width(holder: &web_sys::HtmlElement, width: RwSignal<f64>) {
    let measured = holder.clone();
    let measure = Closure::<dyn FnMut()>::new(move || {
        let now = f64::from(measured.client_width()).max(120.0);
        if now != width.get_untracked() {
            width.set(now);
        }
    });
    if let Ok(observer) = ResizeObserver::new(measure.as_ref().unchecked_ref()) {
        observer.observe(holder);
    }
    measure.forget();
}
