//! The report of `taut why` for people: a paragraph for each connection, or for several with the same
//! verdict.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use taut_sys::plural::counted;

use super::{Explanation, Machine, Other};
use crate::both_ends::{End, Joint, canonical};
use crate::listeners::Dropping;
use crate::namespaces::OWN;
use crate::observation::Observation;
use crate::observer::Observer;
use crate::verdict::{Confidence, Factor, Gain, Verdict, rate};

/// Emphasises a verdict.
pub type Emphasis = fn(&str) -> String;

/// How paragraphs are written.
#[derive(Clone, Copy)]
struct Style {
    emphasis: Emphasis,
    /// There are connections of several network namespaces, so each is named.
    names_namespaces: bool,
}

/// The direction of the data.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Flow {
    Out,
    In,
    None,
}

/// What connections with the same verdict have in common.
#[derive(PartialEq, Eq, Hash)]
struct Common<'a> {
    netns: &'a str,
    process: Option<&'a str>,
    /// The end that they share.
    shared: Shared,
    flow: Flow,
    has_ended: bool,
    verdict: Option<(Factor, Confidence)>,
    joint: Option<(Factor, Confidence, End)>,
    remedy: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Shared {
    /// Address and port of this end: a server's.
    Local(SocketAddr),
    /// Address and port of the peer.
    Remote(SocketAddr),
    /// They share neither: a paragraph of its own. The cookie.
    Neither(u64),
}

/// Connections with the same verdict, the one that carried most first.
struct Paragraph<'a, 'b> {
    common: Common<'b>,
    members: Vec<&'b Explanation<'a>>,
}

/// Reports how many connections each factor limits, sums up those that have ended, explains the first
/// `explained` of the others, and names the sockets that dropped connection attempts.
pub fn text(
    explanations: &[Explanation<'_>],
    observation: &Observation,
    dropping: &[Dropping],
    explained: usize,
    emphasis: Emphasis,
) -> String {
    let watched = observation.observer().elapsed();
    let seconds = watched.as_secs_f64();
    let ended = observation.groups();
    let connections = without_second_ends(explanations);
    let mut text = match connections.len() {
        0 if ended.is_empty() => nothing(observation, seconds),
        0 | 1 => String::new(),
        count => format!(
            "{count} connections in {seconds:.1} s{}: {}\n\n",
            total(&connections, watched),
            summary(&connections)
        ),
    };
    if !ended.is_empty() {
        text.push_str(&format!("ended in {seconds:.1} s: {}\n", ended.count()));
        text.push_str(&ended.text(explained));
        text.push('\n');
    }
    let namespaces = explanations.iter().flat_map(Explanation::namespaces);
    let namespaces: BTreeSet<&str> = namespaces.collect();
    let style = Style {
        emphasis,
        names_namespaces: namespaces.len() > 1,
    };
    let paragraphs = paragraphs(&connections);
    for paragraph in paragraphs.iter().take(explained) {
        text.push_str(&paragraph.text(style));
        text.push('\n');
    }
    let rest = paragraphs.iter().skip(explained);
    let rest: usize = rest.map(|paragraph| paragraph.members.len()).sum();
    if rest > 0 && explained > 0 {
        text.push_str(&format!(
            "{} in other paragraphs: --explain COUNT prints more\n\n",
            counted(rest, "connection")
        ));
    }
    for listener in dropping.iter().take(explained) {
        text.push_str(&listener.text());
    }
    text
}

/// Returns the connections, each once: of two ends on this machine the one that sends.
fn without_second_ends<'a, 'b>(explanations: &'b [Explanation<'a>]) -> Vec<&'b Explanation<'a>> {
    let all = explanations.iter().map(|one| (one.cookie, one));
    let by_cookie: HashMap<_, _> = all.collect();
    let is_second = |one: &&Explanation<'_>| {
        let (other, _) = one.joined()?;
        let Machine::This { cookie, .. } = other.machine else {
            return None;
        };
        let other = by_cookie.get(&cookie)?;
        let first = |one: &Explanation<'_>| (Reverse(one.transfer.sends), one.cookie);
        Some(first(other) < first(one))
    };
    let first = explanations
        .iter()
        .filter(|one| is_second(one) != Some(true));
    first.collect()
}

/// Returns what there is instead, where the filter matches no connection.
fn nothing(observation: &Observation, seconds: f64) -> String {
    if observation.filter().matches_all() {
        return format!(
            "no connection in {seconds:.1} s: run this while one is slow, or let `taut watch --to DIR` record each\n"
        );
    }
    let observer: &Observer = observation.observer();
    let all = crate::filter::Filter::all();
    let open = observer.connections(&all);
    let mut named =
        by_frequency(open.map(|seen| seen.process.map_or("?", |process| &process.name)));
    named.truncate(5);
    match named.is_empty() {
        true => {
            format!("no such connection in {seconds:.1} s: `taut top` shows those that are open\n")
        }
        false => format!(
            "no such connection in {seconds:.1} s; open here: {} (`taut top` shows all)\n",
            named.join(", ")
        ),
    }
}

/// Returns the rates of all connections together.
fn total(connections: &[&Explanation<'_>], watched: Duration) -> String {
    let together = |flow: Flow, word: &str| {
        let of_flow = connections.iter().filter(|one| one.flow() == flow);
        let bytes: u64 = of_flow.map(|one| one.bytes()).sum();
        (bytes > 0).then(|| format!(", {} {word}", rate(bytes as f64 / watched.as_secs_f64())))
    };
    let parts = [together(Flow::In, "received"), together(Flow::Out, "sent")];
    parts.into_iter().flatten().collect()
}

/// Reports how many connections each factor limits, in descending order of frequency.
fn summary(connections: &[&Explanation<'_>]) -> String {
    by_frequency(connections.iter().map(|one| one.factor().name())).join(", ")
}

/// Returns each name with how often it comes, the most frequent first.
fn by_frequency<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let words = counts.iter().map(|(name, count)| format!("{name} {count}"));
    words.collect()
}

/// Groups connections with the same verdict, in the order of their first ones.
fn paragraphs<'a, 'b>(connections: &[&'b Explanation<'a>]) -> Vec<Paragraph<'a, 'b>> {
    let mut ends: HashMap<_, usize> = HashMap::new();
    for one in connections {
        for end in one.ends() {
            *ends.entry((one.place(), end)).or_default() += 1;
        }
    }
    let count = |one: &Explanation<'_>, end| ends.get(&(one.place(), end)).copied();
    let mut members: Vec<Vec<&Explanation<'_>>> = Vec::new();
    let mut index = HashMap::new();
    for one in connections {
        // A server's connections share its own end, a client's the peer's.
        let shared = one.ends().into_iter().max_by_key(|end| count(one, *end));
        let shared = shared.filter(|end| count(one, *end) > Some(1) && one.tuned.is_empty());
        let common = one.common(shared.unwrap_or(Shared::Neither(one.cookie)));
        let at = *index.entry(common).or_insert(members.len());
        match members.get_mut(at) {
            Some(of_paragraph) => of_paragraph.push(one),
            None => members.push(vec![one]),
        }
    }
    let mut common: Vec<_> = index.into_iter().collect();
    common.sort_unstable_by_key(|(_, at)| *at);
    let paragraphs = common.into_iter().zip(members);
    paragraphs
        .map(|((common, _), members)| Paragraph { common, members })
        .collect()
}

// === impl Style ===

impl Style {
    /// Returns the end of a phrase about something in a network namespace that is not the caller's own.
    /// `before`: what joins it to the phrase.
    fn namespace(self, before: &str, name: &str) -> String {
        match self.names_namespaces && name != OWN {
            true => format!("{before} namespace {name}"),
            false => String::new(),
        }
    }
}

// === impl Flow ===

impl Flow {
    fn arrow(self) -> &'static str {
        match self {
            Self::Out => "->",
            Self::In => "<-",
            Self::None => "<->",
        }
    }

    fn preposition(self) -> &'static str {
        match self {
            Self::Out => "to",
            Self::In => "from",
            Self::None => "with",
        }
    }
}

// === impl Paragraph ===

impl Paragraph<'_, '_> {
    fn text(&self, style: Style) -> String {
        let [first, rest @ ..] = &self.members[..] else {
            return String::new();
        };
        if rest.is_empty() {
            let verdict = first.verdict_text("", "", style);
            return format!("{}\n{verdict}", first.head(style));
        }
        let example = match self.rate() {
            Some(_) => "the one that carries most",
            None => "for example",
        };
        let example = format!("  {example}, {}:\n", first.head(style));
        let verdict = first.verdict_text("each ", &example, style);
        format!("{}\n{verdict}", self.head(style))
    }

    /// Returns the rate of all of them together, in bytes a second. Those that have ended were not open
    /// at the same time.
    fn rate(&self) -> Option<f64> {
        let rates = self.members.iter().filter_map(|one| one.rate());
        let rate: f64 = rates.sum();
        (!self.common.has_ended && rate > 0.0).then_some(rate)
    }

    /// Returns the line on all of them together.
    fn head(&self, style: Style) -> String {
        let Common {
            netns,
            process,
            shared,
            flow,
            has_ended,
            ..
        } = self.common;
        let count = self.members.len();
        let process = process.map_or(String::new(), |name| format!(" of {name}"));
        let preposition = flow.preposition();
        let place = match shared {
            Shared::Local(own) => {
                let ip = |one: &&Explanation<'_>| canonical(one.connection().remote).ip();
                let mut peers: Vec<IpAddr> = self.members.iter().map(ip).collect();
                peers.sort_unstable();
                peers.dedup();
                match &peers[..] {
                    [peer] => format!(" at {own} {preposition} {peer}"),
                    peers => format!(" at {own} {preposition} {} peers", peers.len()),
                }
            }
            Shared::Remote(peer) => format!(" {preposition} {peer}"),
            Shared::Neither(_) => String::new(),
        };
        let netns = style.namespace(" in", netns);
        let together = self.rate();
        let together =
            together.map_or(String::new(), |bytes| format!(", {} together", rate(bytes)));
        let ended = if has_ended { ", have ended" } else { "" };
        format!("{count} connections{process}{netns}{place}{together}{ended}")
    }
}

// === impl Explanation ===

impl<'a> Explanation<'a> {
    fn connection(&self) -> &taut_sys::sock_diag::Connection {
        &self.tracked.last().connection
    }

    fn process_name(&self) -> Option<&'a str> {
        self.process.map(|process| &*process.name)
    }

    /// Returns what groups of connections have in common first: their namespace and their process.
    fn place(&self) -> (&'a str, Option<&'a str>) {
        (&self.tracked.netns, self.process_name())
    }

    /// Returns the network namespaces of the ends that are known.
    fn namespaces(&self) -> impl Iterator<Item = &str> {
        let other = self.other.as_ref().and_then(|other| match other.machine {
            Machine::This { netns, .. } => Some(netns),
            Machine::Other(_) => None,
        });
        [Some(&*self.tracked.netns), other].into_iter().flatten()
    }

    fn flow(&self) -> Flow {
        match (self.transfer.carried(), self.transfer.sends) {
            (0, _) => Flow::None,
            (_, true) => Flow::Out,
            (_, false) => Flow::In,
        }
    }

    fn joined(&self) -> Option<(&Other<'a>, Joint)> {
        let other = self.other.as_ref()?;
        Some((other, other.joint?))
    }

    fn factor(&self) -> Factor {
        let own = self.verdict.as_ref().map(|verdict| verdict.factor);
        let joint = self.joined().map(|(_, joint)| joint.factor);
        joint.or(own).unwrap_or(Factor::Unclear)
    }

    /// Returns the ends that it may share with others.
    fn ends(&self) -> [Shared; 2] {
        let connection = self.connection();
        [
            Shared::Remote(canonical(connection.remote)),
            Shared::Local(canonical(connection.local)),
        ]
    }

    fn common(&self, shared: Shared) -> Common<'a> {
        let joined = self.joined();
        let verdict = self.verdict.as_ref();
        let remedy = match joined {
            Some((other, joint)) if joint.shown_by == End::There => {
                other.remote.remedy().map(|remedy| remedy.to_owned().into())
            }
            _ => verdict.and_then(Verdict::remedy_of_kind),
        };
        let (netns, process) = self.place();
        Common {
            netns,
            process,
            shared,
            flow: self.flow(),
            has_ended: self.has_ended,
            verdict: verdict.map(|verdict| (verdict.factor, verdict.confidence)),
            joint: joined.map(|(_, joint)| (joint.factor, joint.confidence, joint.shown_by)),
            remedy,
        }
    }

    /// Returns the line that names it, with the direction of its data.
    fn head(&self, style: Style) -> String {
        let connection = self.connection();
        let netns = style.namespace(",", &self.tracked.netns);
        let process = match self.process {
            Some(process) => format!(" ({}, pid {}{netns})", process.name, process.pid),
            None => netns,
        };
        let (local, remote) = (connection.local, connection.remote);
        let arrow = self.flow().arrow();
        let joined = self.joined().map(|(other, _)| (other, other.machine));
        let ends = match joined {
            Some((other, Machine::This { netns, .. })) => {
                let netns = style.namespace(",", netns);
                let there = match other.remote.process() {
                    Some(process) => format!(" ({process}{netns})"),
                    None => netns,
                };
                format!("{local}{process} {arrow} {remote}{there}, both ends here")
            }
            _ => format!("{local} {arrow} {remote}{process}"),
        };
        let rate = self
            .rate()
            .map_or(String::new(), |bytes| format!(", {}", rate(bytes)));
        let ended = if self.has_ended { ", has ended" } else { "" };
        format!("{ends}{rate}{ended}")
    }

    /// Returns the payload in the direction of its data, in bytes.
    fn bytes(&self) -> u64 {
        match self.flow() {
            Flow::Out => self.transfer.sent,
            Flow::In => self.transfer.received,
            Flow::None => 0,
        }
    }

    /// Returns the rate in the direction of its data, in bytes a second; `None` without any.
    fn rate(&self) -> Option<f64> {
        let rate = self.bytes() as f64 / self.transfer.elapsed.as_secs_f64();
        (rate > 0.0 && rate.is_finite()).then_some(rate)
    }

    /// Returns the verdict, its evidence and the remedy. `subject` begins the sentence, and `example`
    /// goes before the evidence.
    fn verdict_text(&self, subject: &str, example: &str, style: Style) -> String {
        let mut text = String::new();
        let mut verdict = |factor: Factor, confidence: Confidence| {
            let sentence = format!("{subject}{}{}", factor.sentence(), confidence.doubt());
            text.push_str(&format!("  {}\n{example}", (style.emphasis)(&sentence)));
        };
        match (&self.verdict, self.joined()) {
            (None, _) => {
                let state = self.connection().state.name();
                text.push_str(&format!(
                    "  was found only once, or is not open yet ({state})\n"
                ));
            }
            (Some(own), Some((other, joint))) => {
                verdict(joint.factor, joint.confidence);
                text.push_str(&self.both_ends_text(own, other, joint));
            }
            (Some(own), None) => {
                verdict(own.factor, own.confidence);
                let evidence = own.evidence();
                let evidence = evidence.iter().map(|evidence| &*evidence.text);
                text.push_str(&evidence_text(evidence));
                text.push_str(&remedy_text("", own.remedy().as_deref(), own.gain));
                if let Some(other) = &self.other
                    && let Machine::Other(name) = other.machine
                {
                    text.push_str(&format!("  {name} has no verdict on this connection\n"));
                }
            }
        }
        for sentence in self.tuned {
            text.push_str(&format!("  {sentence}\n"));
        }
        text
    }

    /// Returns the factor and the evidence of each end, and the remedy.
    fn both_ends_text(&self, own: &Verdict, other: &Other<'_>, joint: Joint) -> String {
        let connection = self.connection();
        let remote = &other.remote;
        let (here, there) = match other.machine {
            Machine::This { .. } => (
                format!("at {}", connection.local),
                format!("at {}", connection.remote),
            ),
            Machine::Other(name) => {
                let process = remote.process();
                let process = process.map_or(String::new(), |process| format!(" ({process})"));
                let translated = match remote.has_addresses(connection.local, connection.remote) {
                    true => String::new(),
                    false => format!(", as {} -> {}", remote.local, remote.remote),
                };
                ("here".to_owned(), format!("at {name}{process}{translated}"))
            }
        };
        let doubt = own.confidence.doubt();
        let factor = format!("{}{doubt}", own.factor.name());
        let evidence = evidence_text(own.evidence().iter().map(|evidence| &*evidence.text));
        let remote_evidence = evidence_text(remote.evidence());
        let mut text = match (&factor, &evidence) == (&remote.factor(), &remote_evidence) {
            true => format!("  at both ends: {factor}\n{evidence}"),
            false => format!(
                "  {here}: {factor}\n{evidence}  {there}: {}\n{remote_evidence}",
                remote.factor()
            ),
        };
        // "This end" and "the peer" of a remedy are those of the end that shows the factor.
        let (place, is_shown, remedy, gain) = match (joint.shown_by, other.machine) {
            (End::Here, machine) => {
                let place = match machine {
                    Machine::This { .. } => connection.local.to_string(),
                    Machine::Other(_) => String::new(),
                };
                let remedy = own.remedy().map(Cow::into_owned);
                (place, own.factor == joint.factor, remedy, own.gain)
            }
            (End::There, machine) => {
                let place = match machine {
                    Machine::This { .. } => connection.remote.to_string(),
                    Machine::Other(name) => name.to_owned(),
                };
                let remedy = remote.remedy().map(str::to_owned);
                (place, remote.names(joint.factor), remedy, remote.gain())
            }
        };
        if is_shown {
            text.push_str(&remedy_text(&place, remedy.as_deref(), gain));
        }
        text
    }
}

fn evidence_text<'a>(evidence: impl Iterator<Item = &'a str>) -> String {
    evidence.map(|text| format!("    {text}\n")).collect()
}

/// Returns what helps, at a place, and what the connection would carry then.
fn remedy_text(place: &str, remedy: Option<&str>, gain: Option<Gain>) -> String {
    let place = match place {
        "" => String::new(),
        place => format!(", at {place}"),
    };
    let remedy = remedy.map(|remedy| format!("  what helps{place}: {remedy}\n"));
    let gain = gain.map(|gain| format!("  {}\n", gain.sentence()));
    [remedy, gain].into_iter().flatten().collect()
}
