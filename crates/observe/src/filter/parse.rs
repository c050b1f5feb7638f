//! Parses a filter.
//!
//! ```text
//! or      = and { ("or" | "||") and }
//! and     = not { ["and" | "&&"] not }
//! not     = { "not" | "!" } primary
//! primary = "(" or ")" | test
//! ```
//!
//! `|` and `&` are also `||` and `&&`. A quoted word is never an operator or a keyword. A bare word is an address, an address with a
//! port, a pid, or the name of a running process or an installed program. Any other word is an
//! error that suggests the most similar known word, because a filter that matches nothing looks
//! like an idle machine.

mod error;
mod tokens;
mod values;

use std::ops::RangeInclusive;

use glob::Pattern;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use taut_sys::sock_diag::State;

pub use self::error::FilterError;
use self::error::wrong;
use self::tokens::{Word, words};
use self::values::{network, ports, states};
use super::{Expr, Names, Side, Test, single};

/// The maximum length of a filter, in bytes.
const LENGTH: usize = 4096;
/// The maximum nesting of parentheses and `not`.
const DEPTH: usize = 32;

/// The minimum similarity of a known word that is suggested for a mistyped one (Jaro-Winkler, at
/// most 1).
const SIMILARITY: f64 = 0.85;

/// The ports above the highest one, or below the lowest.
const NO_PORT: RangeInclusive<u16> = RangeInclusive::new(1, 0);

const A_NET: &str = "an address, a network such as 10.0.0.0/8, or the name of a host";
const A_PORT: &str = "a port such as 443, a range such as 8000-8100, or a service such as https";
const AN_ENDPOINT: &str = "an address and a port, such as 10.0.0.9:443, [2001:db8::1]:443 or :443";

/// The words that begin a test.
const KEYWORDS: [&str; 28] = [
    "src",
    "local",
    "dst",
    "peer",
    "remote",
    "host",
    "net",
    "sport",
    "lport",
    "dport",
    "rport",
    "port",
    "portrange",
    "tcp",
    "ip",
    "ip6",
    "exclude",
    "pid",
    "process",
    "comm",
    "name",
    "container",
    "netns",
    "cc",
    "state",
    "uid",
    "user",
    "cgroup",
];

/// Parses an expression. An empty one matches every connection.
///
/// # Errors
/// [`FilterError`]: the expression is not valid, or too large.
pub(super) fn parse(text: &str, names: &dyn Names) -> Result<Expr, FilterError> {
    if text.len() > LENGTH {
        return Err(FilterError {
            what: format!("a filter has at most {LENGTH} bytes"),
            word: None,
            advice: None,
        });
    }
    let words = words(text)?;
    if words.is_empty() {
        return Ok(Expr::All);
    }
    let mut reader = Reader {
        words: &words,
        depth: 0,
        names,
        is_after_port: false,
    };
    let expr = reader.whole()?;
    match reader.words {
        [] => Ok(expr),
        _ => Err(reader.expected("`and`, `or` or the end")),
    }
}

struct Reader<'a> {
    words: &'a [Word<'a>],
    depth: usize,
    names: &'a dyn Names,
    /// The last test was one of a port.
    is_after_port: bool,
}

/// How a port is compared, as in ss.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compare {
    Is,
    IsNot,
    Above,
    Below,
    AtLeast,
    AtMost,
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// Returns the next word without consuming it. A quoted word is returned as an empty string,
    /// because it is never an operator or a keyword.
    fn peek(&self) -> Option<&'a str> {
        self.words
            .first()
            .map(|word| if word.quoted { "" } else { word.text })
    }

    fn skip(&mut self) {
        self.words = self.words.get(1..).unwrap_or_default();
    }

    /// Consumes and returns the next word. `what` describes the expected word.
    fn next(&mut self, what: &str) -> Result<&'a str, FilterError> {
        let word = self.words.first().ok_or_else(|| self.expected(what))?;
        self.skip();
        Ok(word.text)
    }

    fn expected(&self, what: &str) -> FilterError {
        FilterError {
            what: format!("expected {what}"),
            word: self.words.first().map(|word| word.text.to_owned()),
            advice: None,
        }
    }

    /// Reads a whole filter. As in ss, states at its beginning bound all of it.
    fn whole(&mut self) -> Result<Expr, FilterError> {
        let start = self.words;
        let mut bounds = Vec::new();
        while matches!(self.peek(), Some("state" | "exclude")) {
            bounds.push(self.test()?);
            if matches!(self.peek(), Some("and" | "&&" | "&")) {
                self.skip();
            }
        }
        if bounds.is_empty() || matches!(self.peek(), None | Some("or" | "||" | "|")) {
            self.words = start;
            return self.or();
        }
        bounds.push(self.or()?);
        Ok(of(bounds, Expr::And))
    }

    fn or(&mut self) -> Result<Expr, FilterError> {
        let mut any = vec![self.and()?];
        while matches!(self.peek(), Some("or" | "||" | "|")) {
            self.skip();
            any.push(self.and()?);
        }
        Ok(of(any, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, FilterError> {
        let mut all = vec![self.not()?];
        loop {
            match self.peek() {
                None | Some("or" | "||" | "|" | ")") => return Ok(of(all, Expr::And)),
                Some("and" | "&&" | "&") => self.skip(),
                // As in ss, `and` may be left out.
                Some(_) => {}
            }
            all.push(self.not()?);
        }
    }

    fn not(&mut self) -> Result<Expr, FilterError> {
        if !matches!(self.peek(), Some("not" | "!")) {
            return self.primary();
        }
        self.skip();
        self.deeper(|reader| Ok(Expr::Not(Box::new(reader.not()?))))
    }

    fn primary(&mut self) -> Result<Expr, FilterError> {
        if self.peek() != Some("(") {
            return self.test();
        }
        self.skip();
        let inner = self.deeper(Self::or)?;
        match self.peek() {
            Some(")") => self.skip(),
            _ => return Err(self.expected("`)`")),
        }
        Ok(inner)
    }

    fn deeper(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<Expr, FilterError>,
    ) -> Result<Expr, FilterError> {
        if self.depth == DEPTH {
            return Err(FilterError {
                what: format!("parentheses and negations can be nested at most {DEPTH} deep"),
                word: self.words.first().map(|word| word.text.to_owned()),
                advice: None,
            });
        }
        self.depth += 1;
        let expr = inner(self);
        self.depth -= 1;
        expr
    }

    fn test(&mut self) -> Result<Expr, FilterError> {
        const A_TEST: &str = "an address, a port, a process or a pid";
        let start = self.words;
        let is_after_port = std::mem::take(&mut self.is_after_port);
        let keyword = self.peek();
        let word = self.next(A_TEST)?;
        match keyword.unwrap_or_default() {
            "src" | "local" => return self.end(Side::Local),
            "dst" | "peer" | "remote" => return self.end(Side::Remote),
            "host" | "net" => return self.net(Side::Either),
            "sport" | "lport" => return self.port(Side::Local),
            "dport" | "rport" => return self.port(Side::Remote),
            "port" | "portrange" => return self.port(Side::Either),
            "tcp" => return self.qualified(Expr::All),
            "ip" => return self.qualified(within(IpNet::V4(Ipv4Net::default()))),
            "ip6" => return self.qualified(within(IpNet::V6(Ipv6Net::default()))),
            "state" => {
                let mut any = self.state()?;
                // As in ss, several states in a row are alternatives.
                while self.peek() == Some("state") {
                    self.skip();
                    any.extend(self.state()?);
                }
                return Ok(Expr::Is(Test::State(any)));
            }
            "exclude" => {
                let states = self.states("a state such as time-wait")?;
                return Ok(Expr::Not(Box::new(Expr::Is(Test::State(states)))));
            }
            _ => {}
        }
        let is_keyword = keyword.is_some_and(|keyword| KEYWORDS.contains(&keyword));
        let is_not = is_keyword && self.is_not("this")?;
        let test = match keyword.unwrap_or_default() {
            // A quoted word.
            "" => Test::Process(Self::valid(
                word,
                Pattern::new(word).ok(),
                "a process name",
            )?),
            "uid" => {
                let number = self.next("a user ID")?;
                Test::Uid(Self::valid(number, number.parse().ok(), "a user ID")?)
            }
            "user" => {
                let name = self.next("the name of a user")?;
                let uid = self.names.user(name).or_else(|| name.parse().ok());
                Test::Uid(Self::valid(name, uid, "the name of a user in /etc/passwd")?)
            }
            "cgroup" => self.cgroup()?,
            "pid" => {
                let number = self.next("a pid")?;
                Test::Pid(Self::valid(number, number.parse().ok(), "a pid")?)
            }
            "process" | "comm" | "name" => Test::Process(self.pattern("a process name")?),
            "container" => {
                Test::Container(self.pattern("the beginning of a container ID followed by *")?)
            }
            "netns" => Test::Netns(self.pattern("the name of a namespace")?),
            "cc" => Test::Cc(self.pattern("the name of a congestion control")?),
            _ if is_operator(word) => {
                self.words = start;
                return Err(self.expected(A_TEST));
            }
            _ => self.bare(word, is_after_port)?,
        };
        Ok(negated(Expr::Is(test), is_not))
    }

    /// Parses what follows a qualifier of tcpdump's such as `tcp`, which may also be a test by itself.
    fn qualified(&mut self, qualifier: Expr) -> Result<Expr, FilterError> {
        match self.peek() {
            Some("src" | "dst" | "host" | "net" | "port" | "portrange") => {
                Ok(Expr::And(vec![qualifier, self.test()?]))
            }
            _ => Ok(qualifier),
        }
    }

    /// Consumes an operator, if there is one.
    fn compare(&mut self) -> Option<Compare> {
        let compare = match self.peek()? {
            "=" | "==" | "eq" => Compare::Is,
            "!=" | "ne" | "neq" => Compare::IsNot,
            ">" | "gt" => Compare::Above,
            "<" | "lt" => Compare::Below,
            ">=" | "ge" | "geq" => Compare::AtLeast,
            "<=" | "le" | "leq" => Compare::AtMost,
            _ => return None,
        };
        self.skip();
        Some(compare)
    }

    /// Consumes `=` or `!=`, if one is there, and returns whether it was `!=`. `what` has no order.
    fn is_not(&mut self, what: &str) -> Result<bool, FilterError> {
        let start = self.words;
        match self.compare() {
            None | Some(Compare::Is) => Ok(false),
            Some(Compare::IsNot) => Ok(true),
            Some(_) => {
                self.words = start;
                Err(self.expected(&format!("= or != ({what} has no order)")))
            }
        }
    }

    /// Parses a word without a keyword.
    fn bare(&self, word: &str, is_after_port: bool) -> Result<Test, FilterError> {
        if let Some(net) = network(word) {
            return Ok(Test::Net(Side::Either, vec![net]));
        }
        if word.contains(':') {
            return self.endpoint(Side::Either, word);
        }
        if let Ok(pid) = word.parse() {
            if is_after_port {
                let what = "after a port, a number alone may be a port or a pid".to_owned();
                let advice = format!("write `port {word}` or `pid {word}`");
                return Err(wrong(what, word, Some(advice)));
            }
            return Ok(Test::Pid(pid));
        }
        let is_pattern = word.contains(['*', '?', '[']);
        if !is_pattern {
            let processes = self.names.processes();
            if !processes.contains(word) && !self.names.is_installed(word) {
                return Err(self.unknown(word, &processes));
            }
        }
        let pattern = Pattern::new(word).ok();
        Ok(Test::Process(Self::valid(word, pattern, "a process name")?))
    }

    /// Returns the error for a bare word that is not the name of a process.
    fn unknown(&self, word: &str, processes: &std::collections::BTreeSet<String>) -> FilterError {
        let known = KEYWORDS
            .into_iter()
            .chain(processes.iter().map(|name| &**name));
        let advice = if self.names.service(word).is_some() {
            format!("write `port {word}`")
        } else if let Some(near) = nearest(word, known) {
            format!("did you mean `{near}`? `process {word}` waits for a process of this name")
        } else if word.contains('.') {
            format!("write `host {word}` for the addresses of a host")
        } else {
            format!("`process {word}` waits for a process of this name")
        };
        let what = "not an address, a pid, or a process or program of this machine".to_owned();
        wrong(what, word, Some(advice))
    }

    /// Parses what follows `src` or `dst`: `port` and a port, or an address, a network or a host,
    /// with a port or without. As in tcpdump, the other end may be named first: `src or dst port 80`.
    fn end(&mut self, side: Side) -> Result<Expr, FilterError> {
        let other = match side {
            Side::Local => "dst",
            _ => "src",
        };
        let is_other = self.words.get(1).is_some_and(|word| word.text == other);
        match self.peek() {
            Some("or" | "||" | "|") if is_other => {
                self.skip();
                self.skip();
                self.value(Side::Either)
            }
            Some("and" | "&&" | "&") if is_other => {
                self.skip();
                self.skip();
                let start = self.words;
                let local = self.value(Side::Local)?;
                self.words = start;
                Ok(Expr::And(vec![local, self.value(Side::Remote)?]))
            }
            _ => self.value(side),
        }
    }

    fn value(&mut self, side: Side) -> Result<Expr, FilterError> {
        match self.peek() {
            Some("port" | "portrange") => {
                self.skip();
                self.port(side)
            }
            Some("host" | "net") => {
                self.skip();
                self.net(side)
            }
            _ => self.net(side),
        }
    }

    fn net(&mut self, side: Side) -> Result<Expr, FilterError> {
        let is_not = self.is_not("an address")?;
        self.no_negation()?;
        let word = self.next(A_NET)?;
        let test = match network(word).is_none() && word.contains(':') {
            true => self.endpoint(side, word)?,
            false => Test::Net(side, self.networks(word, word)?),
        };
        Ok(negated(Expr::Is(test), is_not))
    }

    /// Fails at a negation of the value instead of the test.
    fn no_negation(&self) -> Result<(), FilterError> {
        match self.peek() {
            Some(not @ ("not" | "!")) => {
                let what = "a negation comes before the keyword, as in `not port 22`".to_owned();
                Err(wrong(what, not, None))
            }
            _ => Ok(()),
        }
    }

    /// Parses an address and a port: `10.0.0.9:443`, `[2001:db8::1]:443`, `example.com:https`; or
    /// `:443` and `*:443` for any address.
    fn endpoint(&self, side: Side, word: &str) -> Result<Test, FilterError> {
        let (address, port) = word.rsplit_once(':').unwrap_or((word, ""));
        let is_v6 = address.contains(':') && !address.starts_with('[');
        if is_v6 || port.is_empty() {
            let what = format!("expected {AN_ENDPOINT}");
            return Err(wrong(what, word, None));
        }
        let ports = self.ports(port, word)?;
        if matches!(address, "" | "*") {
            return Ok(Test::Port(side, ports));
        }
        Ok(Test::Endpoint(side, self.networks(address, word)?, ports))
    }

    /// Parses a network, or looks up the addresses of a host. `word` is the whole word, for the
    /// error.
    fn networks(&self, text: &str, word: &str) -> Result<Vec<IpNet>, FilterError> {
        if let Some(net) = network(text) {
            return Ok(vec![net]);
        }
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
        let looks_like_address = text.chars().all(|c| c.is_ascii_digit() || c == '.');
        if text.is_empty() || !text.chars().all(is_name) || looks_like_address {
            return Err(wrong(format!("expected {A_NET}"), word, None));
        }
        let found = self.names.host(text);
        let found =
            found.map_err(|why| wrong(format!("no host of this name: {why}"), word, None))?;
        Ok(found
            .into_iter()
            .map(|ip| single(ip.to_canonical()))
            .collect())
    }

    fn port(&mut self, side: Side) -> Result<Expr, FilterError> {
        let compare = self.compare().unwrap_or(Compare::Is);
        self.no_negation()?;
        let word = self.next(A_PORT)?;
        let ports = self.ports(word.trim_start_matches(':'), word)?;
        let has_order = matches!(compare, Compare::Is | Compare::IsNot);
        if !has_order && ports.start() != ports.end() {
            return Err(wrong("expected one port".to_owned(), word, None));
        }
        let port = *ports.start();
        let ports = match compare {
            Compare::Is | Compare::IsNot => ports,
            Compare::Above => port.checked_add(1).map_or(NO_PORT, |next| next..=u16::MAX),
            Compare::Below => port.checked_sub(1).map_or(NO_PORT, |last| 0..=last),
            Compare::AtLeast => port..=u16::MAX,
            Compare::AtMost => 0..=port,
        };
        self.is_after_port = true;
        let test = Expr::Is(Test::Port(side, ports));
        Ok(negated(test, compare == Compare::IsNot))
    }

    /// Parses a port or a range, or looks up a service. `word` is the whole word, for the error.
    fn ports(&self, text: &str, word: &str) -> Result<RangeInclusive<u16>, FilterError> {
        let service = || self.names.service(text).map(|port| port..=port);
        ports(text).or_else(service).ok_or_else(|| {
            let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic());
            let advice = is_name.then(|| format!("/etc/services has no TCP service `{text}`"));
            wrong(format!("expected {A_PORT}"), word, advice)
        })
    }

    /// Parses the path of a cgroup, or its ID.
    fn cgroup(&mut self) -> Result<Test, FilterError> {
        const A_CGROUP: &str = "the path of a cgroup below /sys/fs/cgroup, or its ID";
        let word = self.next(A_CGROUP)?;
        let ids = match word.parse() {
            Ok(id) => [id].into(),
            Err(_) => self.names.cgroups(word),
        };
        let ids = (!ids.is_empty()).then_some(ids);
        Ok(Test::Cgroup(Self::valid(word, ids, A_CGROUP)?))
    }

    /// Parses a state that a connection can have, or a group of states.
    fn state(&mut self) -> Result<Vec<State>, FilterError> {
        const A_STATE: &str =
            "a state such as established, or connected, synchronized, bucket, big or all";
        let word = self.words.first().map_or("", |word| word.text);
        let states = self.states(A_STATE)?;
        match states[..] {
            [] => Err(wrong(
                "no socket in this state is shown".to_owned(),
                word,
                None,
            )),
            _ => Ok(states),
        }
    }

    fn states(&mut self, what: &str) -> Result<Vec<State>, FilterError> {
        let name = self.next(what)?;
        Self::valid(name, states(name), what)
    }

    fn pattern(&mut self, what: &str) -> Result<Pattern, FilterError> {
        let word = self.next(what)?;
        Self::valid(word, Pattern::new(word).ok(), what)
    }

    fn valid<T>(word: &str, value: Option<T>, what: &str) -> Result<T, FilterError> {
        value.ok_or_else(|| wrong(format!("expected {what}"), word, None))
    }
}

/// Returns the known word that is most similar to `word`; `None` if none is similar.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|one| (strsim::jaro_winkler(word, one), one));
    let near = near.filter(|(similarity, _)| *similarity >= SIMILARITY);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, one)| one)
}

/// Whether a word is an operator, and so no test.
fn is_operator(word: &str) -> bool {
    matches!(
        word,
        "and" | "&&" | "&" | "or" | "||" | "|" | ")" | "=" | "==" | "!=" | "<" | "<=" | ">" | ">="
    )
}

/// Returns the test for a peer in this network.
fn within(net: IpNet) -> Expr {
    Expr::Is(Test::Net(Side::Remote, vec![net]))
}

fn negated(expr: Expr, is_not: bool) -> Expr {
    match is_not {
        true => Expr::Not(Box::new(expr)),
        false => expr,
    }
}

/// Combines several expressions; returns a single one unchanged.
fn of(mut exprs: Vec<Expr>, several: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match exprs.len() {
        1 => exprs.remove(0),
        _ => several(exprs),
    }
}
