//! `pipeplan serve`

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::failure::Failure;
use super::http::{self, Body, Codings, Reply, Request};
use super::{input, output};

const EXAMPLES: &str = "\
Examples:
  pipeplan serve
  pipeplan serve --plan plan.json --trace trace.json
  pipeplan serve examples/tiny-llama.toml --port 0          a free port";

/// Serve the planner's page and its book on this machine, with a plan and a trace one click away.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = super::long_help(EXAMPLES))]
pub struct Args {
    /// A spec, a bare problem or a link that the page opens with; - for standard input
    spec: Option<String>,
    /// The port; 0 for a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// The address to listen on: this machine alone where not given, and then under no other name either
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The built page; `web` beside this program or `web/dist` where not given
    #[arg(long, value_name = "FOLDER")]
    web: Option<PathBuf>,
    /// The built book, served under /docs; `docs` beside this program or `docs/book` where not given
    #[arg(long, value_name = "FOLDER")]
    docs: Option<PathBuf>,
    /// A plan for the page, at plan.json; read again at each request
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// A trace for the page, at trace.json; read again at each request
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the address as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let site = Site::find(args.web.as_deref())?;
    let book = find_book(args.docs)?;
    let fragment = match &args.spec {
        Some(spec) => pipeplan_core::spec::link::write(&input::spec(spec)?),
        None => String::new(),
    };
    // A file that the page would refuse is refused here, where a person can still change the command.
    if let Some(path) = &args.plan {
        input::plan(&path.to_string_lossy())?;
    }
    if let Some(path) = &args.trace {
        input::trace_of(&input::read(&path.to_string_lossy())?)?;
    }
    let wanted = SocketAddr::new(args.host, args.port);
    let listener = TcpListener::bind(wanted).map_err(|error| {
        Failure::work(format!("{wanted} cannot be listened on: {error}")).with_help(match error.kind() {
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => "--port 0 takes a free port",
            _ => "--host takes an address of this machine; without it this machine alone is served",
        })
    })?;
    let at = listener.local_addr().unwrap_or(wanted);
    let files = Arc::new(Files { site, book, plan: args.plan, trace: args.trace, packed: RwLock::default() });
    let query: Vec<&str> =
        [files.plan.as_ref().map(|_| "plan=plan.json"), files.trace.as_ref().map(|_| "trace=trace.json")]
            .into_iter()
            .flatten()
            .collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let address = format!("http://{at}/{query}{fragment}");
    if args.json {
        output::print_json(&json!({ "address": address, "port": at.port() }))?;
    } else {
        output::print(&format!("{address}\n"))?;
    }
    let ahead = Arc::clone(&files);
    std::thread::spawn(move || ahead.pack());
    let only_here = at.ip().is_loopback();
    let error = http::serve(&listener, move |request| match only_here && !is_this_machine(request.host) {
        true => elsewhere(at),
        false => answer(request, &files),
    });
    Err(Failure::work(format!("the server failed: {error}")))
}

/// Whether `host` of a request, with a port or without, is this machine by a name that nobody else can give it. A page from
/// elsewhere may ask for its own name after that was made to lead here: a browser would hand it what is answered.
fn is_this_machine(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What is told to who asks for another machine.
fn elsewhere(at: SocketAddr) -> Reply {
    let text = format!(
        "this page is for this machine alone: ask for http://{at}/ or localhost, or serve other names with --host\n"
    );
    plainly("421 Misdirected Request", &text)
}

/// The built page.
enum Site {
    Folder(PathBuf),
    #[cfg(feature = "embed-web")]
    Embedded,
}

#[cfg(feature = "embed-web")]
static EMBEDDED: include_dir::Dir<'_> = include_dir::include_dir!("$CARGO_MANIFEST_DIR/../web/dist");

impl Site {
    fn find(given: Option<&Path>) -> Result<Site, Failure> {
        let is_page = |folder: &Path| folder.join("index.html").is_file();
        if let Some(folder) = given {
            return match is_page(folder) {
                true => Ok(Site::Folder(folder.to_owned())),
                false => Err(Failure::input(format!("{} holds no index.html", folder.display()))
                    .with_help("build the page first with `./dev page`, in a checkout")),
            };
        }
        #[cfg(feature = "embed-web")]
        return Ok(Site::Embedded);
        #[cfg(not(feature = "embed-web"))]
        {
            let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("web")));
            let found = beside.into_iter().chain([PathBuf::from("web/dist")]).find(|folder| is_page(folder));
            found.map(Site::Folder).ok_or_else(|| {
                Failure::input("the built page is neither beside this program (`web`) nor in `web/dist`")
                    .with_help("build it with `./dev page` in a checkout, or name its folder with --web")
            })
        }
    }

    /// The files of the page.
    fn paths(&self) -> Vec<PathBuf> {
        match self {
            Site::Folder(folder) => {
                let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
                entries.map(|entry| PathBuf::from(entry.file_name())).collect()
            }
            #[cfg(feature = "embed-web")]
            Site::Embedded => EMBEDDED.files().map(|file| file.path().to_owned()).collect(),
        }
    }

    fn open(&self, path: &Path) -> Option<Content> {
        match self {
            Site::Folder(folder) => Content::within(folder, path),
            #[cfg(feature = "embed-web")]
            Site::Embedded => EMBEDDED.get_file(path).map(|file| Content::of(file.contents().to_vec())),
        }
    }
}

/// The folder of the built book. It may be missing: the page works without it.
fn find_book(given: Option<PathBuf>) -> Result<Option<PathBuf>, Failure> {
    let is_book = |folder: &PathBuf| folder.join("index.html").is_file();
    if let Some(folder) = given {
        return match is_book(&folder) {
            true => Ok(Some(folder)),
            false => Err(Failure::input(format!("{} holds no index.html", folder.display()))
                .with_help("build the book first with `./dev docs`, in a checkout")),
        };
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("docs")));
    Ok(beside.into_iter().chain([PathBuf::from("docs/book")]).find(is_book))
}

/// A file, or what stands for one.
struct Content {
    body: Body,
    mark: Mark,
}

/// What tells one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Its length, and when it was written.
    Written(u64, Option<SystemTime>),
    /// The first bytes of its digest, where it is part of the command.
    Digest(u64),
}

impl Mark {
    /// As a tag of HTTP for content in this coding.
    fn tag(self, coding: Option<&str>) -> Option<String> {
        let mark = match self {
            Mark::Written(length, written) => {
                let since = written?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
                format!("{length:x}-{:x}", since.as_nanos())
            }
            Mark::Digest(digest) => format!("{digest:x}"),
        };
        Some(format!("\"{mark}-{}\"", coding.unwrap_or("plain")))
    }
}

impl Content {
    fn of(bytes: Vec<u8>) -> Content {
        let digest = Sha256::digest(&bytes);
        let first = digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
        Content { mark: Mark::Digest(first), body: Body::Shared(bytes.into()) }
    }

    /// The file at `path`, wherever that leads.
    fn at(path: &Path) -> Option<Content> {
        let file = File::open(path).ok()?;
        let known = file.metadata().ok().filter(Metadata::is_file)?;
        let mark = Mark::Written(known.len(), known.modified().ok());
        Some(Content { body: Body::File(file, known.len()), mark })
    }

    /// The file at `path` of `folder`; none where a link leads out of it.
    fn within(folder: &Path, path: &Path) -> Option<Content> {
        let (top, found) = (folder.canonicalize().ok()?, folder.join(path).canonicalize().ok()?);
        found.starts_with(top).then(|| Content::at(&found)).flatten()
    }

    /// All of it, up to `most` bytes.
    fn bytes(self, most: u64) -> Option<Arc<[u8]>> {
        match self.body {
            Body::Shared(bytes) => Some(bytes),
            Body::File(file, length) => {
                let mut bytes = Vec::new();
                file.take(length.min(most)).read_to_end(&mut bytes).ok()?;
                Some(bytes.into())
            }
        }
    }
}

/// What /docs shows where no book is built.
const NO_BOOK: &str = "\
<!doctype html>
<html lang=\"en\"><meta charset=\"utf-8\"><title>No book</title>
<h1>The book is not built</h1>
<p>Build it in a checkout of pipeplan, then start <code>pipeplan serve</code> again:</p>
<pre>./dev docs</pre>
<p>The same pages are in <code>docs/src</code>, as Markdown.</p>
</html>
";

/// What /docs shows where a book is built: its pages name each other by paths relative to /docs/.
const TO_THE_BOOK: &str = "\
<!doctype html>
<html lang=\"en\"><meta charset=\"utf-8\"><title>pipeplan</title>
<meta http-equiv=\"refresh\" content=\"0; url=docs/\">
<p><a href=\"docs/\">The book</a></p>
</html>
";

struct Files {
    site: Site,
    /// The folder of the built book.
    book: Option<PathBuf>,
    plan: Option<PathBuf>,
    trace: Option<PathBuf>,
    /// The page's files, compressed ahead: who sits at this machine would wait for that longer than for the files as they
    /// are, and who sits behind a slow line is served a quarter of the bytes.
    packed: RwLock<BTreeMap<PathBuf, Packed>>,
}

struct Packed {
    /// That of the file, which may be another one by now.
    mark: Mark,
    gzip: Arc<[u8]>,
    brotli: Arc<[u8]>,
}

impl Files {
    /// The file at a request's path, with its name.
    fn find(&self, url: &str) -> Option<(PathBuf, Content)> {
        let path = url.split(['?', '#']).next().unwrap_or_default().trim_start_matches('/');
        let path = PathBuf::from(if path.is_empty() { "index.html" } else { path });
        // Nothing above the page's folder, whatever the path says.
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        if let Ok(page) = path.strip_prefix("docs") {
            return self.find_in_book(page, url);
        }
        let content = match (path.to_str(), &self.plan, &self.trace) {
            (Some("plan.json"), Some(file), _) | (Some("trace.json"), _, Some(file)) => Content::at(file),
            _ => self.site.open(&path),
        };
        Some((path, content?))
    }

    /// The file at `page` of the book. A folder is its `index.html`.
    fn find_in_book(&self, page: &Path, url: &str) -> Option<(PathBuf, Content)> {
        let index = |folder: &Path| folder.join("index.html");
        let is_top = page.as_os_str().is_empty();
        let Some(book) = &self.book else {
            return is_top.then(|| (index(page), Content::of(NO_BOOK.as_bytes().to_vec())));
        };
        if is_top && !url.split(['?', '#']).next().is_some_and(|path| path.ends_with('/')) {
            return Some((index(page), Content::of(TO_THE_BOOK.as_bytes().to_vec())));
        }
        let page = if book.join(page).is_dir() { index(page) } else { page.to_owned() };
        let content = Content::within(book, &page)?;
        // By its whole path: a file of the page may have the same name.
        Some((Path::new("docs").join(page), content))
    }

    /// Compresses what is worth it, as far as there is room for it.
    fn pack(&self) {
        let mut room = MOST_PACKED_BYTES;
        // What the page itself names is asked for first.
        let index = self.site.open(Path::new("index.html")).and_then(|index| index.bytes(MOST_HTML_BYTES));
        let index = String::from_utf8_lossy(index.as_deref().unwrap_or_default()).into_owned();
        let mut paths = self.site.paths();
        paths.sort_by_cached_key(|path| (!index.contains(&*path.to_string_lossy()), path.clone()));
        for path in paths {
            let Some(content) = self.site.open(&path).filter(|_| content_type(&path) != "image/png") else {
                continue;
            };
            let (mark, length) = (content.mark, content.body.len());
            if !(LEAST_PACKED_BYTES..=room).contains(&length) {
                continue;
            }
            let packed = content.bytes(length).and_then(|plain| Some((gzip(&plain)?, brotli(&plain)?)));
            let Some((gzip, brotli)) = packed else { continue };
            room = room.saturating_sub((gzip.len() + brotli.len()) as u64);
            let packed = Packed { mark, gzip: gzip.into(), brotli: brotli.into() };
            self.packed.write().unwrap_or_else(PoisonError::into_inner).insert(path, packed);
        }
    }

    /// The file at `path`, whose content is `plain`, in a coding that is taken; none where that is not compressed yet.
    fn packed(&self, path: &Path, plain: &Content, takes: Codings) -> Option<(&'static str, Body)> {
        let packed = self.packed.read().unwrap_or_else(PoisonError::into_inner);
        let known = packed.get(path).filter(|known| known.mark == plain.mark)?;
        match takes {
            Codings { brotli: true, .. } => Some(("br", Body::Shared(Arc::clone(&known.brotli)))),
            Codings { gzip: true, .. } => Some(("gzip", Body::Shared(Arc::clone(&known.gzip)))),
            Codings { .. } => None,
        }
    }
}

/// Shorter files are sent as they are.
const LEAST_PACKED_BYTES: u64 = 1024;
/// No longer file is compressed, and all that is compressed takes no more memory.
const MOST_PACKED_BYTES: u64 = 64 << 20;
/// Longest page whose scripts are looked at.
const MOST_HTML_BYTES: u64 = 16 << 20;

/// `plain` in the format of gzip.
fn gzip(plain: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).ok()?;
    encoder.finish().ok()
}

/// `plain` in the format of Brotli. The quality next below 10 takes a tenth of its time, for some 8 % more bytes.
fn brotli(plain: &[u8]) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    let parameters = brotli::enc::BrotliEncoderParams { quality: 9, lgwin: 22, ..Default::default() };
    brotli::BrotliCompress(&mut &*plain, &mut packed, &parameters).ok()?;
    Some(packed)
}

fn plainly(status: &'static str, body: &str) -> Reply {
    let body = Body::Shared(body.as_bytes().into());
    Reply { status, content_type: "text/plain; charset=utf-8", body, coding: None, tag: None, headers: String::new() }
}

fn answer(request: &Request, files: &Files) -> Reply {
    if !matches!(request.method, "GET" | "HEAD") {
        return plainly("405 Method Not Allowed", "only GET and HEAD are answered\n");
    }
    let missing = || plainly("404 Not Found", "there is no such file\n");
    let Some((path, content)) = files.find(request.path) else { return missing() };
    let content_type = content_type(&path);
    let mark = content.mark;
    let (coding, packed) = files.packed(&path, &content, request.takes).unzip();
    let (body, headers) = if content_type.starts_with("text/html") {
        let Some(html) = content.bytes(MOST_HTML_BYTES) else { return missing() };
        let policy = policy(&html, is_embedded(request.path));
        (packed.unwrap_or(Body::Shared(html)), policy)
    } else {
        (packed.unwrap_or(content.body), String::new())
    };
    Reply { status: "200 OK", content_type, body, coding, tag: mark.tag(coding), headers }
}

/// Whether the page is asked for as part of another one.
fn is_embedded(url: &str) -> bool {
    let query = url.split('#').next().and_then(|url| url.split_once('?')).map_or("", |(_, query)| query);
    query.split('&').any(|part| part == "embed" || part.starts_with("embed="))
}

/// The lines of a head that let `html` run its own scripts and nothing from elsewhere, and that keep it out of the pages of
/// others unless it is to be `embedded`.
fn policy(html: &[u8], embedded: bool) -> String {
    let html = String::from_utf8_lossy(html);
    let mut scripts = String::new();
    let mut rest = &*html;
    while let Some((_, from)) = rest.split_once("<script") {
        let Some((attributes, inside)) = from.split_once('>') else { break };
        let Some((script, after)) = inside.split_once("</script>") else { break };
        if !attributes.contains("src=") {
            let digest = BASE64_STANDARD.encode(Sha256::digest(script.as_bytes()));
            scripts.push_str(&format!(" 'sha256-{digest}'"));
        }
        rest = after;
    }
    let (ancestors, frames) = if embedded { ("*", "") } else { ("'none'", "X-Frame-Options: DENY\r\n") };
    format!(
        "Content-Security-Policy: default-src 'self'; script-src 'self' 'wasm-unsafe-eval'{scripts}; \
         style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; \
         worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'none'; \
         frame-ancestors {ancestors}\r\n{frames}"
    )
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("wasm") => "application/wasm",
        Some("css") => "text/css; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("webmanifest") => "application/manifest+json",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("woff2") => "font/woff2",
        Some("txt" | "toml" | "md") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
