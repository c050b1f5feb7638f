//! Pages in a browser: headless Chromium loads one, and the test reads the document that results.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

/// What a name could be if it were chosen to become HTML.
pub(crate) const HOSTILE: &str = "<img src=x onerror=alert(1)></td><script>alert(2)</script>";

/// How a browser writes the beginning of [`HOSTILE`] if it is text.
const AS_TEXT: &str = "&lt;img src=x onerror=alert(1)&gt;&lt;/td&gt;&lt;script&gt;";

/// Returns the document that the browser makes of the page.
pub(crate) fn document(page: SocketAddr) -> String {
    document_at(page, 1280)
}

/// Returns the document that the browser makes of the page in a window of this width in pixels.
pub(crate) fn document_at(page: SocketAddr, width: u32) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args([
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .arg("--virtual-time-budget=1000")
        .arg(format!("--window-size={width},800"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("http://{page}/"))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the answer to a GET, with its head.
pub(crate) fn get(page: SocketAddr, path: &str, host: &str) -> String {
    ask(page, "GET", path, host)
}

/// Returns the answer to a request, with its head.
pub(crate) fn ask(page: SocketAddr, method: &str, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(page).unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns the body of what is at `path`.
pub(crate) fn body(page: SocketAddr, path: &str) -> String {
    let said = get(page, path, "localhost");
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {said}");
    body.to_owned()
}

/// Serves the files of `page` with other data at `path`, until the process ends.
pub(crate) fn with_data(page: SocketAddr, path: &'static str, data: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            if BufReader::new(&stream).read_line(&mut line).is_err() {
                continue;
            }
            let asked = line.split(' ').nth(1).unwrap_or_default();
            let answer = match asked == path {
                true => format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{data}",
                    data.len()
                ),
                false => get(page, asked, "localhost"),
            };
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    addr
}

pub(crate) fn assert_nothing_is_html(shown: &str) {
    assert!(shown.contains(AS_TEXT), "{shown}");
    assert!(
        !shown.contains("<img") && !shown.contains("<script>alert"),
        "{shown}"
    );
}
