//! A real Chromium, driven through chromedriver by the W3C WebDriver protocol.
//!
//! The client is our own, as all that is needed of the protocol is a few HTTP calls: the ready-made ones bring
//! an async runtime and a hundred packages, and switch serde_json features on for the planner under test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::process::{self, Running};

/// How long the page may take for anything before a test gives up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest that one call of the driver may take.
const CALL: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(25);
/// The key of an element in the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One Chromium with a profile of its own. Dropping it closes it.
pub struct Browser {
    agent: ureq::Agent,
    session: String,
    downloads: PathBuf,
    _driver: Running,
    /// Outlives the driver, which ends without clearing up.
    _scratch: Scratch,
}

/// What Chromium and its driver write, some 14 MB: the driver leaves it behind where it is killed.
struct Scratch(PathBuf);

impl Scratch {
    /// Not in the folder of the tests: Chromium has a socket there, whose path may have 107 bytes.
    fn new() -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("pipeplan-browser-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Browser {
    /// A fresh profile in a window of this size; downloads go to a folder of its own named `name`.
    ///
    /// # Panics
    /// Where chromedriver or Chromium does not start.
    pub fn open(name: &str, width: u32, height: u32) -> Browser {
        // Of any free port the driver takes the number for IPv6 first; where another process has that of IPv4, it ends and says
        // so, and the next one gets another number.
        let scratch = Scratch::new();
        let (driver, port) = (0..5)
            .find_map(|_| {
                let driver = Running::start(Command::new("chromedriver").arg("--port=0").env("TMPDIR", &scratch.0));
                let port: Option<u16> =
                    driver.line(PATIENCE, |line| match line.split_once("successfully on port ") {
                        Some((_, port)) => port.trim_end_matches('.').trim().parse().ok().map(Some),
                        None => line.contains("port not available").then_some(None),
                    });
                port.map(|port| (driver, port))
            })
            .expect("chromedriver finds a free port");
        let downloads = process::output("downloads").join(name);
        let _ = std::fs::remove_dir_all(&downloads);
        std::fs::create_dir_all(&downloads).unwrap_or_else(|error| panic!("{}: {error}", downloads.display()));
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(CALL));
        let agent: ureq::Agent = config.build().into();
        let size = format!("--window-size={width},{height}");
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            &size,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            // The driver's own limit for a script is half a minute, and a comparison for 40 ranks may take longer.
            "timeouts": { "script": CALL.as_millis() as u64 },
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": {
                "args": arguments,
                "prefs": { "download.default_directory": downloads, "download.prompt_for_download": false },
            },
        } } });
        let session = format!("http://127.0.0.1:{port}/session");
        let mut browser = Browser { agent, session, downloads, _driver: driver, _scratch: scratch };
        // Now and then a browser ends as it starts; its driver says so, and the next one stays.
        let opened = (0..2).find_map(|_| browser.try_post("", wanted.clone()).ok());
        let opened = opened.unwrap_or_else(|| browser.post("", wanted));
        browser.session = format!("{}/{}", browser.session, opened["sessionId"].as_str().unwrap_or(""));
        browser
    }

    /// Opens an address and waits until it has loaded.
    pub fn goto(&self, address: &str) {
        self.post("/url", json!({ "url": address }));
    }

    /// The address, fragment included.
    pub fn address(&self) -> String {
        self.get("/url").as_str().unwrap_or("").to_string()
    }

    /// Runs JavaScript; its `arguments` are `arguments`, its `return` is the answer.
    pub fn script(&self, script: &str, arguments: Value) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": arguments }))
    }

    /// Runs JavaScript until it calls the last of its `arguments` with an answer; those before are `arguments`.
    pub fn script_async(&self, script: &str, arguments: Value) -> Value {
        self.post("/execute/async", json!({ "script": script, "args": arguments }))
    }

    /// The first element that a CSS selector names, as soon as it is there.
    ///
    /// # Panics
    /// Where it does not come.
    pub fn find(&self, css: &str) -> Element<'_> {
        self.until(&format!("an element `{css}`"), || {
            let found = self.try_post("/element", json!({ "using": "css selector", "value": css })).ok()?;
            Some(Element { browser: self, id: found[ELEMENT].as_str()?.to_string() })
        })
    }

    /// Waits until `ready` finds something.
    ///
    /// # Panics
    /// Where it does not in time; with a picture of the page kept as `failed.png`.
    pub fn until<T>(&self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = ready() {
                return found;
            }
            if Instant::now() > end {
                let picture = self.picture("failed.png");
                panic!("waited in vain for {what}; see {}\n{}", picture.display(), self.errors().join("\n"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The visible text of the first element that a CSS selector names: of the one that is there, where the page draws it anew
    /// meanwhile.
    pub fn text(&self, css: &str) -> String {
        self.until(&format!("the text of `{css}`"), || {
            let text = self.try_get(&format!("/element/{}/text", self.find(css).id)).ok()?;
            Some(text.as_str().unwrap_or("").to_string())
        })
    }

    /// The file whose name ends like this that the page has offered for download, as soon as it is complete.
    pub fn downloaded(&self, end: &str) -> PathBuf {
        self.until("a download", || {
            let files = std::fs::read_dir(&self.downloads).ok()?.filter_map(Result::ok).map(|entry| entry.path());
            files.filter(|path| path.extension().is_none_or(|kind| kind != "crdownload")).find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                // Chromium writes to a hidden file and renames it.
                !name.starts_with('.') && name.ends_with(end) && path.metadata().is_ok_and(|data| data.len() > 0)
            })
        })
    }

    /// Keeps a picture of the page for people, and says where.
    pub fn picture(&self, name: &str) -> PathBuf {
        let path = process::output(name);
        let picture = self.get("/screenshot");
        let bytes = STANDARD.decode(picture.as_str().unwrap_or("")).unwrap_or_default();
        std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        println!("picture: {}", path.display());
        path
    }

    /// What a person has set for all pages: dark ones.
    pub fn prefer_dark(&self) {
        self.prefer(&[("prefers-color-scheme", "dark")]);
    }

    /// What a person has set for all pages, as names and values of media features; all others are not set.
    pub fn prefer(&self, features: &[(&str, &str)]) {
        let features: Vec<Value> =
            features.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let params = json!({ "features": features });
        self.post("/goog/cdp/execute", json!({ "cmd": "Emulation.setEmulatedMedia", "params": params }));
    }

    /// A screen of this size, however narrow: windows have a least width.
    pub fn screen(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": true });
        self.post("/goog/cdp/execute", json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": size }));
    }

    /// Runs a script before those of each page that opens from now on.
    pub fn run_first(&self, script: &str) {
        let params = json!({ "source": script });
        self.post("/goog/cdp/execute", json!({ "cmd": "Page.addScriptToEvaluateOnNewDocument", "params": params }));
    }

    /// Drops files and folders at a point of the page.
    pub fn drop_files(&self, paths: &[&str]) {
        let data = json!({ "items": [], "files": paths, "dragOperationsMask": 1 });
        for kind in ["dragEnter", "dragOver", "drop"] {
            let params = json!({ "type": kind, "x": 400, "y": 400, "data": data });
            self.post("/goog/cdp/execute", json!({ "cmd": "Input.dispatchDragEvent", "params": params }));
        }
    }

    /// A line of so many bytes a second each way, with this delay in milliseconds.
    pub fn throttle(&self, bytes_per_s: f64, delay_ms: f64) {
        let params = json!({ "offline": false, "latency": delay_ms, "downloadThroughput": bytes_per_s,
            "uploadThroughput": bytes_per_s });
        self.post("/goog/cdp/execute", json!({ "cmd": "Network.enable", "params": {} }));
        self.post("/goog/cdp/execute", json!({ "cmd": "Network.emulateNetworkConditions", "params": params }));
    }

    /// Everything of level error or worse in the console since the last call.
    pub fn errors(&self) -> Vec<String> {
        let entries = self.try_post("/se/log", json!({ "type": "browser" })).unwrap_or_default();
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries.iter().filter(|entry| entry["level"] == "SEVERE").map(|entry| entry["message"].to_string()).collect()
    }

    /// Fails the test on any console error since the last call.
    ///
    /// # Panics
    /// With the errors.
    pub fn no_errors(&self) {
        let errors = self.errors();
        assert!(errors.is_empty(), "the console has errors:\n{}", errors.join("\n"));
    }

    fn get(&self, path: &str) -> Value {
        self.try_get(path).unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    fn try_get(&self, path: &str) -> Result<Value, String> {
        read(self.agent.get(format!("{}{path}", self.session)).call())
    }

    fn post(&self, path: &str, body: Value) -> Value {
        self.try_post(path, body).unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    fn try_post(&self, path: &str, body: Value) -> Result<Value, String> {
        let request = self.agent.post(format!("{}{path}", self.session)).header("content-type", "application/json");
        read(request.send(body.to_string()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.agent.delete(&self.session).call();
    }
}

/// One element of the page.
pub struct Element<'b> {
    browser: &'b Browser,
    id: String,
}

impl Element<'_> {
    /// Clicks it, as a person would.
    pub fn click(&self) {
        self.browser.post(&format!("/element/{}/click", self.id), json!({}));
    }

    /// Taps it with a finger, so many pixels right of its middle and below it.
    pub fn tap(&self, right: i32, below: i32) {
        let to = json!({ "type": "pointerMove", "origin": { ELEMENT: self.id }, "x": right, "y": below });
        let tap = json!([to, { "type": "pointerDown", "button": 0 }, { "type": "pointerUp", "button": 0 }]);
        let finger =
            json!({ "type": "pointer", "id": "finger", "parameters": { "pointerType": "touch" }, "actions": tap });
        self.browser.post("/actions", json!({ "actions": [finger] }));
    }

    /// Types over what stands in it.
    pub fn fill(&self, text: &str) {
        self.browser.post(&format!("/element/{}/clear", self.id), json!({}));
        self.keys(text);
    }

    /// Types into it; for a file input, the path of the file.
    pub fn keys(&self, text: &str) {
        self.browser.post(&format!("/element/{}/value", self.id), json!({ "text": text }));
    }

    /// A property, such as `value`.
    pub fn property(&self, name: &str) -> Value {
        self.browser.get(&format!("/element/{}/property/{name}", self.id))
    }

    /// Runs JavaScript with this element as `arguments[0]` and `value` as `arguments[1]`.
    pub fn script_with(&self, script: &str, value: Value) -> Value {
        self.browser.script(script, json!([{ ELEMENT: self.id }, value]))
    }

    /// Runs JavaScript with this element as `arguments[0]` until it calls `arguments[1]` with an answer.
    pub fn script_async(&self, script: &str) -> Value {
        self.browser.script_async(script, json!([{ ELEMENT: self.id }]))
    }
}

/// The `value` of an answer, or its error.
fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, String> {
    let mut answer = answer.map_err(|error| error.to_string())?;
    let failed = !answer.status().is_success();
    // A picture of a large window is some megabytes.
    let body =
        answer.body_mut().with_config().limit(256 << 20).read_to_string().map_err(|error| error.to_string())?;
    let mut body: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    let value = body["value"].take();
    if failed { Err(format!("{}: {}", value["error"], value["message"])) } else { Ok(value) }
}
