//! The two-tier application: nginx and PHP in one guest, MariaDB in another, and browsers at the
//! client.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::network::address;
use super::plan::{Arm, Browsing, Connections, Web};
use super::rig::{IN_STEP, Rig};
use crate::experiment::guests::guest::programs::SCRATCH;
use crate::experiment::guests::guest::talk::Start;
use crate::peer::program::Program;

/// The guest with the web server.
const SERVER: usize = 0;
/// The guest with the database, on the other host.
const DATABASE: usize = 2;

/// The load generator.
pub(super) const WRK: Program = Program {
    name: "wrk",
    version: "-v",
    package: "wrk",
};
/// The database server, without its service.
pub(super) const MARIADB: Program = Program {
    name: "mariadbd",
    version: "--version",
    package: "mariadb-server-core",
};
/// PHP as a server of FastCGI, without a service.
pub(super) const PHP: Program = Program {
    name: "php-cgi",
    version: "-v",
    package: "php-cgi and php-mysql",
};

/// The number of PHP processes, and so of pages that PHP can make at the same time.
const PHP_PROCESSES: usize = 16;
const CATEGORIES: usize = 20;
/// The number of items in a category; its page lists all of them.
const ITEMS: usize = 25;

/// How long the servers may take to start.
const START: Duration = Duration::from_secs(60);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// The factor by which a run may exceed its planned duration while no page has arrived.
const LONGER: u32 = 8;
/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(30);

const PAGE: &str = include_str!("page.php");
const BROWSE: &str = include_str!("browse.lua");

/// A run's results from `browse.lua`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
pub(super) struct BrowsingResult {
    /// The number of received pages.
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) duration_us: f64,
    /// The number of failed or invalid pages.
    pub(super) errors: u64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
}

/// The running application.
pub(super) struct Auction {
    /// The length of the shortest page, in bytes.
    shortest: u64,
}

// === impl BrowsingResult ===

impl BrowsingResult {
    pub(super) fn requests_s(&self) -> f64 {
        self.requests as f64 / (self.duration_us / 1e6)
    }

    /// Parses the JSON object on the last such line of wrk's output.
    fn parse(said: &str) -> Option<Self> {
        let line = said.lines().rev().find(|line| line.starts_with('{'))?;
        let seen: Self = serde_json::from_str(line).ok()?;
        (seen.duration_us > 0.0).then_some(seen)
    }
}

// === impl Auction ===

impl Auction {
    /// Starts the servers and requests every page once.
    pub(super) fn start(rig: &mut Rig) -> io::Result<Self> {
        let started = Self::attempt(rig);
        started.map_err(|e| rig.explained(&e))
    }

    fn attempt(rig: &mut Rig) -> io::Result<Self> {
        let dir = rig.dir().to_owned();
        for (name, text) in [
            ("auction.sql", table()),
            ("nginx.conf", nginx(&dir.join("page.php").display())),
            (
                "page.php",
                PAGE.replace("DATABASE", &address(DATABASE).to_string()),
            ),
            (
                "browse.lua",
                BROWSE.replace("CATEGORIES", &CATEGORIES.to_string()),
            ),
        ] {
            fs::write(dir.join(name), text)?;
        }
        let init = format!("--init-file={}", dir.join("auction.sql").display());
        rig.guest(DATABASE).start(start(
            "mariadb",
            MARIADB.name,
            &[
                // Must come before all other options.
                "--no-defaults",
                "--user=root",
                &format!("--datadir={SCRATCH}"),
                &format!("--tmpdir={SCRATCH}"),
                &format!("--socket={SCRATCH}/mariadb.sock"),
                &format!("--pid-file={SCRATCH}/mariadb.pid"),
                "--bind-address=0.0.0.0",
                "--skip-grant-tables",
                "--skip-name-resolve",
                // The tables fit in memory, no client writes, and InnoDB's checksums use registers
                // that User Mode Linux does not save.
                "--skip-innodb",
                "--default-storage-engine=MyISAM",
                "--performance-schema=off",
                "--max-connections=100",
                &init,
            ],
        ))?;
        let conf = dir.join("nginx.conf").display().to_string();
        rig.guest(SERVER).start(start(
            "nginx",
            "nginx",
            &["-e", "stderr", "-p", SCRATCH, "-c", &conf],
        ))?;
        let auction = Self { shortest: 0 };
        auction.connect_anew(rig)?;
        let mut shortest = u64::MAX;
        for category in 0..CATEGORIES {
            shortest = shortest.min(wait_for_page(rig, category)?);
        }
        Ok(Self { shortest })
    }

    /// Restarts PHP, which closes the connections that it kept.
    pub(super) fn connect_anew(&self, rig: &mut Rig) -> io::Result<()> {
        let mut php = start(
            "php",
            PHP.name,
            &[
                "-n",
                "-d",
                "extension=mysqlnd",
                "-d",
                "extension=mysqli",
                "-b",
                "127.0.0.1:9000",
            ],
        );
        php.env = [
            ("PHP_FCGI_CHILDREN", PHP_PROCESSES.to_string()),
            // 0: a process serves any number of requests.
            ("PHP_FCGI_MAX_REQUESTS", "0".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec();
        rig.guest(SERVER).start(php)?;
        wait_for_page(rig, 0).map(drop)
    }

    /// Browses for a while and shares the cores meanwhile. Browses longer if no page arrives in
    /// that time: without a page there is no rate to compare.
    pub(super) fn browse(
        &self,
        rig: &mut Rig,
        arm: Arm,
        browsing: Browsing,
        web: &Web,
    ) -> io::Result<BrowsingResult> {
        let mut lasts = web.lasts;
        loop {
            let seen = self.browse_for(rig, arm, browsing, lasts)?;
            if seen.requests > 0 || lasts >= web.lasts * LONGER {
                return Ok(seen);
            }
            lasts *= 2;
        }
    }

    fn browse_for(
        &self,
        rig: &mut Rig,
        arm: Arm,
        browsing: Browsing,
        lasts: Duration,
    ) -> io::Result<BrowsingResult> {
        let kept = match browsing.connections {
            Connections::New => "",
            Connections::Kept => "kept=1&",
        };
        let mut command = WRK.command();
        command
            .args(["--threads", "1", "--timeout", "60s"])
            .args(["--connections", &browsing.browsers.to_string()])
            .args(["--duration", &format!("{}s", lasts.as_secs())])
            .arg("--script")
            .arg(rig.dir().join("browse.lua"))
            .arg(format!("http://{}/?{kept}category=", address(SERVER)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let said = (|| {
            let mut wrk = rig.client().spawn(command)?;
            rig.place(&wrk)?;
            rig.begin(arm);
            while wrk.wait_for(IN_STEP)?.is_none() {
                rig.begin(arm);
            }
            let mut said = String::new();
            // The output fits into a pipe.
            if let Some(out) = wrk.pipes().stdout.as_mut() {
                out.read_to_string(&mut said)?;
            }
            Ok(said)
        })();
        rig.open();
        let said = said.map_err(|e| rig.explained(&e))?;
        let seen = BrowsingResult::parse(&said);
        let seen = seen.ok_or_else(|| io::Error::other(format!("the output of wrk: {said}")))?;
        match seen.bytes >= seen.requests * self.shortest {
            true => Ok(seen),
            false => Err(io::Error::other(format!(
                "pages were shorter than the shortest one of {} bytes: {seen:?}",
                self.shortest
            ))),
        }
    }
}

fn start(name: &str, program: &str, args: &[&str]) -> Start {
    Start {
        name: name.to_owned(),
        program: program.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: Vec::new(),
    }
}

/// Returns the tables as SQL for MariaDB's start.
fn table() -> String {
    let items = CATEGORIES * ITEMS;
    format!(
        "CREATE DATABASE auction;\n\
         CREATE TABLE auction.digits (n INT);\n\
         INSERT INTO auction.digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9);\n\
         CREATE TABLE auction.numbers (n INT PRIMARY KEY);\n\
         INSERT INTO auction.numbers SELECT a.n + 10 * b.n + 100 * c.n FROM auction.digits a, auction.digits b, \
         auction.digits c;\n\
         CREATE TABLE auction.categories (id INT PRIMARY KEY, name VARCHAR(50));\n\
         INSERT INTO auction.categories SELECT n, CONCAT('Category ', n) FROM auction.numbers WHERE n < {CATEGORIES};\n\
         CREATE TABLE auction.items (id INT PRIMARY KEY, category INT, name VARCHAR(100), price INT, bids INT, \
         description TEXT, KEY (category));\n\
         INSERT INTO auction.items SELECT n, n MOD {CATEGORIES}, CONCAT('Item ', n), 100 + n * 7 MOD 1000, n MOD 17, \
         REPEAT(MD5(n), 60) FROM auction.numbers WHERE n < {items};\n"
    )
}

fn nginx(page: &dyn std::fmt::Display) -> String {
    format!(
        "daemon off;\n\
         user root;\n\
         worker_processes 1;\n\
         pid {SCRATCH}/nginx.pid;\n\
         error_log stderr warn;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n\
           access_log off;\n\
           default_type text/html;\n\
           client_body_temp_path {SCRATCH}/nginx-body;\n\
           proxy_temp_path {SCRATCH}/nginx-proxy;\n\
           fastcgi_temp_path {SCRATCH}/nginx-fastcgi;\n\
           uwsgi_temp_path {SCRATCH}/nginx-uwsgi;\n\
           scgi_temp_path {SCRATCH}/nginx-scgi;\n\
           fastcgi_buffers 16 16k;\n\
           server {{\n\
             listen 80;\n\
             location / {{\n\
               fastcgi_pass 127.0.0.1:9000;\n\
               fastcgi_param SCRIPT_FILENAME {page};\n\
               fastcgi_param QUERY_STRING $query_string;\n\
               fastcgi_param REQUEST_METHOD $request_method;\n\
               fastcgi_param SERVER_PROTOCOL $server_protocol;\n\
             }}\n\
           }}\n\
         }}\n"
    )
}

/// Requests a page until it arrives; returns its length.
fn wait_for_page(rig: &Rig, category: usize) -> io::Result<u64> {
    let deadline = Instant::now() + START;
    loop {
        let page = rig
            .client()
            .run(|| page(category))
            .map_err(io::Error::other)?;
        let how = match page {
            Ok(page) => match is_whole(&page, category) {
                true => return Ok(page.len() as u64),
                false => format!("it begins: {}", page.chars().take(300).collect::<String>()),
            },
            Err(e) => e.to_string(),
        };
        if Instant::now() > deadline {
            return Err(io::Error::other(format!(
                "the page of category {category} does not come after {START:?}: {how}"
            )));
        }
        std::thread::sleep(PAUSE);
    }
}

fn page(category: usize) -> io::Result<String> {
    let to = SocketAddr::from((address(SERVER), 80));
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /?category={category} HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Returns whether this response is the page of this category, with all its items.
fn is_whole(answer: &str, category: usize) -> bool {
    answer.split_whitespace().nth(1) == Some("200")
        && answer.contains(&format!("<h1>Category {category}</h1>"))
        && answer.matches("<tr>").count() == ITEMS
        && answer.trim_end().ends_with("</html>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_ends_with_what_the_script_says() {
        let said = "Running 4s test @ http://10.78.0.10/?category=\n  1 threads and 8 connections\n\
                    Requests/sec:     29.94\n\
                    {\"requests\":120,\"bytes\":6000000,\"duration_us\":4000000,\"errors\":1,\"p50_us\":250000,\
                    \"p90_us\":400000}\n";
        let seen = BrowsingResult::parse(said).unwrap();
        assert_eq!(seen.requests_s(), 30.0);
        assert_eq!((seen.errors, seen.p90_us), (1, 400_000.0));
        assert_eq!(
            BrowsingResult::parse("unable to connect to 10.78.0.10:80"),
            None
        );
        assert_eq!(BrowsingResult::parse("{\"requests\":120}"), None);
    }

    #[test]
    fn a_page_counts_only_when_it_is_whole() {
        let rows = "<tr><td>".repeat(ITEMS);
        let page = format!("HTTP/1.1 200 OK\r\n\r\n<h1>Category 7</h1>{rows}</html>\n");
        assert!(is_whole(&page, 7));
        assert!(!is_whole(&page, 8));
        assert!(!is_whole(&page.replace("200", "500"), 7));
        assert!(!is_whole(&page.replacen("<tr>", "", 1), 7));
        assert!(!is_whole(&page.replace("</html>", ""), 7));
    }
}
