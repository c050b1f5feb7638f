//! Parses a filter.
//!
//! ```text
//! or      = and { ("or" | "||") and }
//! and     = not { ["and" | "&&"] not }
//! not     = { "not" | "!" } primary
//! primary = "(" or ")" | test
//! ```
//!
//! A quoted word is never an operator or a keyword.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use glob::Pattern;
use ipnet::IpNet;
use taut_sys::sock_diag::State;

use super::{Expr, Side, Test, single};

/// The maximum length of a filter, in bytes.
const LENGTH: usize = 4096;
/// The maximum nesting of parentheses and `not`.
const DEPTH: usize = 32;

/// Why a filter is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}", at(.word))]
pub struct FilterError {
    what: String,
    /// The wrong word; `None` for the end of the filter.
    word: Option<String>,
}

fn at(word: &Option<String>) -> String {
    match word {
        Some(word) => format!(", at {:?}", crate::sanitize::text(word.as_bytes())),
        None => ", at its end".into(),
    }
}

/// Parses an expression. An empty one matches every connection.
///
/// # Errors
/// [`FilterError`]: the expression is not valid, or too large.
pub(super) fn parse(text: &str) -> Result<Expr, FilterError> {
    if text.len() > LENGTH {
        return Err(FilterError {
            what: format!("a filter has at most {LENGTH} bytes"),
            word: None,
        });
    }
    let words = words(text)?;
    if words.is_empty() {
        return Ok(Expr::All);
    }
    let mut reader = Reader {
        words: &words,
        depth: 0,
    };
    let expr = reader.or()?;
    match reader.words {
        [] => Ok(expr),
        _ => Err(reader.expected("`and`, `or` or the end")),
    }
}

/// A word of the filter. A quoted word is never an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    quoted: bool,
}

/// Splits at blanks and around parentheses and operators. Quoted text is one word.
fn words(text: &str) -> Result<Vec<Word<'_>>, FilterError> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if let '"' | '\'' = first {
            let inside = &rest[1..];
            let Some(end) = inside.find(first) else {
                return Err(FilterError {
                    what: "a quote is not closed".into(),
                    word: Some(rest.to_owned()),
                });
            };
            words.push(Word {
                text: &inside[..end],
                quoted: true,
            });
            rest = inside[end + 1..].trim_start();
            continue;
        }
        let length = match first {
            '(' | ')' | '!' => 1,
            '&' if rest.starts_with("&&") => 2,
            '|' if rest.starts_with("||") => 2,
            _ => {
                let ends = |c: char| c.is_whitespace() || matches!(c, '(' | ')' | '"' | '\'');
                rest.find(ends).unwrap_or(rest.len())
            }
        };
        let (word, after) = rest.split_at(length);
        words.push(Word {
            text: word,
            quoted: false,
        });
        rest = after.trim_start();
    }
    Ok(words)
}

struct Reader<'a> {
    words: &'a [Word<'a>],
    depth: usize,
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
        }
    }

    fn or(&mut self) -> Result<Expr, FilterError> {
        let mut any = vec![self.and()?];
        while matches!(self.peek(), Some("or" | "||")) {
            self.skip();
            any.push(self.and()?);
        }
        Ok(of(any, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr, FilterError> {
        let mut all = vec![self.not()?];
        loop {
            match self.peek() {
                None | Some("or" | "||" | ")") => return Ok(of(all, Expr::And)),
                Some("and" | "&&") => self.skip(),
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
            return self.test().map(Expr::Is);
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
            });
        }
        self.depth += 1;
        let expr = inner(self);
        self.depth -= 1;
        expr
    }

    fn test(&mut self) -> Result<Test, FilterError> {
        const A_TEST: &str = "an address, a port, a process or a pid";
        let start = self.words;
        let keyword = self.peek();
        let word = self.next(A_TEST)?;
        Ok(match keyword.unwrap_or_default() {
            // A quoted word.
            "" => Test::Process(Self::valid(
                word,
                Pattern::new(word).ok(),
                "a process name",
            )?),
            "src" | "local" => self.end(Side::Local)?,
            "dst" | "peer" | "remote" => self.end(Side::Remote)?,
            "host" | "net" => self.net(Side::Either)?,
            "sport" | "lport" => self.port(Side::Local)?,
            "dport" | "rport" => self.port(Side::Remote)?,
            "port" => self.port(Side::Either)?,
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
            "state" => {
                let name = self.next("a state")?;
                Test::State(Self::valid(
                    name,
                    state(name),
                    "a state such as established",
                )?)
            }
            // A word without a keyword is an address, a pid or a process name.
            _ => {
                if let Some(net) = network(word) {
                    Test::Net(Side::Either, net)
                } else if let Ok(pid) = word.parse() {
                    Test::Pid(pid)
                } else if matches!(word, "and" | "&&" | "or" | "||" | ")") {
                    self.words = start;
                    return Err(self.expected(A_TEST));
                } else {
                    let pattern = Pattern::new(word).ok();
                    Test::Process(Self::valid(word, pattern, "a process name")?)
                }
            }
        })
    }

    /// Parses what follows `src` or `dst`: an address or network, or `port` and a port.
    fn end(&mut self, side: Side) -> Result<Test, FilterError> {
        match self.peek() {
            Some("port") => {
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

    fn net(&mut self, side: Side) -> Result<Test, FilterError> {
        const A_NET: &str = "an address or a network such as 10.0.0.0/8";
        let word = self.next(A_NET)?;
        Ok(Test::Net(side, Self::valid(word, network(word), A_NET)?))
    }

    fn port(&mut self, side: Side) -> Result<Test, FilterError> {
        const A_PORT: &str = "a port such as 443, or a range such as 8000-8100";
        let mut word = self.next(A_PORT)?;
        if matches!(word, "=" | "==") {
            word = self.next(A_PORT)?;
        }
        let ports = ports(word.trim_start_matches([':', '=']));
        Ok(Test::Port(side, Self::valid(word, ports, A_PORT)?))
    }

    fn pattern(&mut self, what: &str) -> Result<Pattern, FilterError> {
        let word = self.next(what)?;
        Self::valid(word, Pattern::new(word).ok(), what)
    }

    fn valid<T>(word: &str, value: Option<T>, what: &str) -> Result<T, FilterError> {
        value.ok_or_else(|| FilterError {
            what: format!("expected {what}"),
            word: Some(word.to_owned()),
        })
    }
}

/// Combines several expressions; returns a single one unchanged.
fn of(mut exprs: Vec<Expr>, several: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    match exprs.len() {
        1 => exprs.remove(0),
        _ => several(exprs),
    }
}

fn network(word: &str) -> Option<IpNet> {
    let word = word.trim_start_matches('[').trim_end_matches(']');
    let address = word.parse::<IpAddr>().ok().map(single);
    address.or_else(|| word.parse().ok())
}

fn ports(word: &str) -> Option<RangeInclusive<u16>> {
    match word.split_once('-') {
        None => word.parse().ok().map(|port| port..=port),
        Some((from, to)) => {
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to).then_some(from..=to)
        }
    }
}

/// Parses the name of a state in the spelling of RFC 9293 or ss, in upper or lower case.
fn state(name: &str) -> Option<State> {
    const ALL: [State; 8] = [
        State::Established,
        State::SynSent,
        State::SynRecv,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::LastAck,
        State::Closing,
    ];
    let letters = |name: &str| -> String {
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|c| c.to_ascii_lowercase()).collect()
    };
    let name = match &*letters(name) {
        "estab" => "established".to_owned(),
        "synrecv" => "synreceived".to_owned(),
        other => other.to_owned(),
    };
    ALL.into_iter().find(|state| letters(state.name()) == name)
}
