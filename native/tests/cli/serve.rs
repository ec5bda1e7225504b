//! `serve`: the page from this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::command::{command, printed, run};
use serde_json::Value;

use super::{PROBLEM, folder, path, write};

/// A server that ends with the test.
struct Served {
    child: Child,
    port: u16,
    address: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        Served::by(&mut command(&[]), arguments)
    }

    /// By a command that starts this one.
    fn by(starter: &mut Command, arguments: &[&str]) -> Served {
        let starter = starter.args(["serve", "--port", "0", "--json"]).args(arguments).stdout(Stdio::piped());
        let mut child = starter.spawn().unwrap_or_else(|error| panic!("{error}"));
        let mut said = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !said.trim_end().ends_with('}') && lines.read_line(&mut said).is_ok_and(|read| read > 0) {}
        let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        let port = value["port"].as_u64().unwrap() as u16;
        Served { child, port, address: value["address"].as_str().unwrap().to_owned() }
    }

    /// The whole answer to one request.
    fn ask(&self, request_line: &str) -> String {
        String::from_utf8_lossy(&self.ask_with(request_line, "")).into_owned()
    }

    /// As [`Self::ask`], with another header.
    fn ask_with(&self, request_line: &str, header: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{request_line} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_page_is_served_with_its_plan_and_nothing_else_of_the_machine() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    write(&format!("{web}/app.wasm"), "\0asm");
    write(&path(&folder, "secret.txt"), "secret");
    let plan = path(&folder, "plan.json");
    printed(&["plan", "-", "-o", &plan], PROBLEM);

    let served = Served::start(&["--web", &web, "--plan", &plan]);
    assert_eq!(served.address, format!("http://127.0.0.1:{}/?plan=plan.json", served.port));
    for (request, says) in [
        ("GET /", &["200", "text/html", "<p>planner</p>"][..]),
        ("GET /?plan=plan.json", &["200", "<p>planner</p>"]),
        ("GET /app.wasm", &["200", "Content-Type: application/wasm", "\0asm"]),
        ("GET /plan.json", &["200", "application/json", "pipeplan-plan"]),
        ("GET /trace.json", &["404"]),
        ("GET /none.js", &["404"]),
        ("GET /../secret.txt", &["404"]),
        ("GET //etc/passwd", &["404"]),
        ("POST /", &["405"]),
    ] {
        let answer = served.ask(request);
        for part in says {
            assert!(answer.contains(part), "{request}: {answer} should hold {part:?}");
        }
        assert!(!answer.contains("secret"), "{request}: {answer}");
    }
    let taken = served.port.to_string();
    let (code, _, stderr) = run(&["serve", "--web", &web, "--port", &taken], "");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("--port 0 takes a free port"), "{stderr}");
    // Of a network for documents: no machine has it.
    let (code, _, stderr) = run(&["serve", "--web", &web, "--port", "0", "--host", "192.0.2.1"], "");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("--host takes an address of this machine") && !stderr.contains("--port 0"), "{stderr}");
}

/// The headers that keep a page of others from using this one, and this one from anything of others.
#[test]
fn a_page_runs_its_own_scripts_alone_and_is_in_no_page_of_others() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<script type=\"module\">alert(1)</script><script src=\"a.js\"></script>");
    write(&format!("{web}/a.js"), "1");
    write(&path(&folder, "secret.txt"), "secret");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(path(&folder, "secret.txt"), format!("{web}/out.txt")).unwrap();
        std::os::unix::fs::symlink(format!("{web}/a.js"), format!("{web}/in.js")).unwrap();
    }
    let served = Served::start(&["--web", &web]);
    // The digest that browsers compute: `printf 'alert(1)' | openssl dgst -sha256 -binary | base64`.
    let digest = "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='";
    let alone = served.ask("GET /");
    for line in [
        format!("script-src 'self' 'wasm-unsafe-eval' {digest};"),
        "frame-ancestors 'none'\r\n".to_string(),
        "\r\nX-Frame-Options: DENY\r\n".to_string(),
        "\r\nX-Content-Type-Options: nosniff\r\n".to_string(),
    ] {
        assert!(alone.contains(&line), "{alone} should hold {line:?}");
    }
    for embedded in ["GET /?embed", "GET /?plan=plan.json&embed=1"] {
        let answer = served.ask(embedded);
        assert!(answer.contains("frame-ancestors *\r\n") && !answer.contains("X-Frame-Options"), "{answer}");
    }
    assert!(!served.ask("GET /a.js").contains("Content-Security-Policy"));
    #[cfg(unix)]
    {
        assert!(served.ask("GET /in.js").contains("200 OK"));
        let answer = served.ask("GET /out.txt");
        assert!(answer.contains("404") && !answer.contains("secret"), "{answer}");
    }
}

#[test]
fn the_book_is_served_under_docs_and_nothing_above_it() {
    let folder = folder();
    let [web, docs] = ["web", "docs"].map(|name| path(&folder, name));
    std::fs::create_dir_all(format!("{docs}/reference")).unwrap();
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    write(&path(&folder, "secret.txt"), "secret");
    let (code, _, stderr) = run(&["serve", "--web", &web, "--docs", &docs], "");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("holds no index.html") && stderr.contains("./dev docs"), "{stderr}");
    write(&format!("{docs}/index.html"), "<p>book</p>");
    write(&format!("{docs}/reference/index.html"), "<p>reference</p>");
    write(&format!("{docs}/book.css"), "p {}");

    let served = Served::start(&["--web", &web, "--docs", &docs]);
    for (request, says) in [
        ("GET /", &["200", "<p>planner</p>"][..]),
        ("GET /docs", &["200", "text/html", "url=docs/"]),
        ("GET /docs/", &["200", "text/html", "<p>book</p>"]),
        ("GET /docs/?highlight=bubble", &["200", "<p>book</p>"]),
        ("GET /docs/index.html", &["200", "<p>book</p>"]),
        ("GET /docs/reference/", &["200", "<p>reference</p>"]),
        ("GET /docs/book.css", &["200", "text/css", "p {}"]),
        ("GET /docs/none.html", &["404"]),
        ("GET /docs/../secret.txt", &["404"]),
        ("GET /docs/../../secret.txt", &["404"]),
        ("GET /docs//secret.txt", &["404"]),
        ("GET /docs/reference/../../secret.txt", &["404"]),
    ] {
        let answer = served.ask(request);
        for part in says {
            assert!(answer.contains(part), "{request}: {answer} should hold {part:?}");
        }
        assert!(!answer.contains("secret"), "{request}: {answer}");
    }
}

#[test]
fn a_book_that_is_not_built_says_how_to_build_it() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    // Where no checkout is.
    let mut elsewhere = command(&[]);
    let served = Served::by(elsewhere.current_dir(folder.path()), &["--web", &web]);
    for request in ["GET /docs", "GET /docs/"] {
        let answer = served.ask(request);
        assert!(answer.contains("200 OK") && answer.contains("<pre>./dev docs</pre>"), "{answer}");
    }
    assert!(served.ask("GET /docs/limits.html").contains("404"));
}

/// A page from elsewhere whose name was made to lead to this machine is handed nothing of it.
#[test]
fn this_machine_is_served_under_its_own_names() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let plan = path(&folder, "plan.json");
    printed(&["plan", "-", "-o", &plan], PROBLEM);
    let here = ["localhost", "localhost:80", "LocalHost", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080"];
    let elsewhere =
        ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "192.0.2.1"];
    let says_nothing = ["", "localhost:evil"];
    for (listening, answered) in [(&[][..], &[][..]), (&["--host", "0.0.0.0"], &elsewhere)] {
        let served = Served::start(&[&["--web", &web, "--plan", &plan], listening].concat());
        let asked = |host: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
            write!(stream, "GET /plan.json HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        for host in here.iter().chain(answered) {
            assert!(asked(host).contains("pipeplan-plan"), "{listening:?}: {host}: {}", asked(host));
        }
        for host in elsewhere.iter().chain(&says_nothing).filter(|_| listening.is_empty()) {
            let answer = asked(host);
            assert!(answer.starts_with("HTTP/1.1 421 ") && !answer.contains("pipeplan-plan"), "{host}: {answer}");
            assert!(answer.contains("ask for http://127.0.0.1:"), "{host}: {answer}");
        }
    }
}

#[cfg(unix)]
#[test]
fn more_connections_than_there_are_files_do_not_end_the_server() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 24; exec \"$0\" \"$@\""]).arg(command(&[]).get_program());
    let served = Served::by(&mut limited, &["--web", &web]);
    let connect = || TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    let silent: Vec<TcpStream> = (0..100).map(|_| connect()).collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(silent);
    assert!(served.ask("GET /").contains("<p>planner</p>"));
}

#[test]
fn the_page_is_served_compressed_to_who_takes_that() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let script = "let row = ['0F0', '1F0'];\n".repeat(1000);
    write(&format!("{web}/app.js"), &script);
    let served = Served::start(&["--web", &web]);
    let compressed = |accepted: &str, coding: &str| {
        let answer = served.ask_with("GET /app.js", &format!("Accept-Encoding: {accepted}\r\n"));
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n").expect("headers");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        head.contains(&format!("Content-Encoding: {coding}\r\n")).then(|| answer[end + 4..].to_vec())
    };
    // That is done while a page may already be asked for.
    let packed = (0..200).find_map(|_| {
        compressed("gzip", "gzip").or_else(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            None
        })
    });
    let packed = packed.expect("compressed by now");
    assert!(packed.len() * 20 < script.len(), "{} bytes", packed.len());
    let file = path(&folder, "app.js.gz");
    std::fs::write(&file, &packed).unwrap();
    let plain = Command::new("gzip").args(["-dc", &file]).output().unwrap();
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    assert!(plain.stdout == script.as_bytes());
    // Brotli is shorter still, where it is taken.
    let brotli = compressed("gzip, deflate, br", "br").expect("compressed, too");
    assert!(brotli.len() < packed.len(), "{} and {} bytes", brotli.len(), packed.len());
    let mut plain = Vec::new();
    brotli::BrotliDecompress(&mut &brotli[..], &mut plain).unwrap();
    assert!(plain == script.as_bytes());
    assert!(compressed("gzip, br;q=0", "gzip").is_some());
    assert!(served.ask("GET /app.js").ends_with(&script), "to all others as it is");
    // What is built anew is not answered with what was.
    write(&format!("{web}/app.js"), &script.replace("row", "bar"));
    assert_eq!(compressed("gzip, br", "br"), None);
    assert!(served.ask("GET /app.js").contains("let bar"));
}

#[test]
fn what_a_browser_has_is_not_sent_again() {
    let folder = folder();
    let web = path(&folder, "web");
    std::fs::create_dir(&web).unwrap();
    write(&format!("{web}/index.html"), "<p>planner</p>");
    let served = Served::start(&["--web", &web]);
    let tag = || {
        let answer = served.ask("GET /");
        let line = answer.lines().find_map(|line| line.strip_prefix("ETag: "));
        line.unwrap_or_else(|| panic!("a tag in {answer}")).trim().to_owned()
    };
    let ask = |tag: &str| {
        String::from_utf8_lossy(&served.ask_with("GET /", &format!("If-None-Match: {tag}\r\n"))).into_owned()
    };
    let before = tag();
    let again = ask(&before);
    assert!(again.starts_with("HTTP/1.1 304 ") && !again.contains("planner"), "{again}");
    // What the page may do is said each time.
    assert!(again.contains("Content-Security-Policy: "), "{again}");
    assert!(ask("\"other\"").contains("<p>planner</p>"));
    write(&format!("{web}/index.html"), "<p>the planner</p>");
    assert_ne!(tag(), before);
    assert!(ask(&before).contains("<p>the planner</p>"));
}
