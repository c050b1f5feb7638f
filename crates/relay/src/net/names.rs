//! Looks names up: one asynchronous resolver for all destinations and relays, with a
//! [cache](taut_mesh::name_cache).
//!
//! Names are found in `/etc/hosts` and asked of the servers in `/etc/resolv.conf`, which are read again when
//! they change. Other sources of nsswitch.conf(5) are not used.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use taut_mesh::members::MemberName;
use taut_mesh::name_cache::{Addresses, Answer, Failure, MAX_LOOK_UPS, NameCache, Refused, Want};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use super::addr::{Destination, UpstreamAddr};

/// The time limit of a look-up.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time limit of one question to a server; resolv.conf(5) has 5 s.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);
/// How long the addresses of the second family are waited for if there are some of the first one.
const GRACE: Duration = Duration::from_millis(300);
/// How long the addresses in /etc/hosts hold; a change of the file is noticed by itself.
const FROM_HOSTS: Duration = Duration::from_secs(30);
/// The maximum number of addresses of a name; further ones are not used.
const MAX_ADDRS: usize = 32;
/// Why a look-up has no result if its thread has ended.
const ENDED: &str = "the thread that looks names up has ended";
/// The files that say how names are looked up.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// The addresses of a destination.
pub(crate) type Addrs = Arc<[UpstreamAddr]>;

/// The reason why a destination has no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The look-up failed.
    #[error("cannot look up `{destination}`: {source}")]
    Lookup {
        /// The destination.
        destination: Destination,
        /// The error of the resolver.
        source: io::Error,
    },
    /// The look-up found no address.
    #[error("`{0}` resolves to no address")]
    Nothing(Destination),
}

/// Gets the result of a look-up. Called by another thread; must not block.
type Waiter = Box<dyn FnOnce(Result<Addresses, Failure>) + Send>;

/// For whom a name is looked up: the relay itself, or a member of the mesh.
pub(crate) type Party = Option<MemberName>;

struct Names {
    cache: Mutex<NameCache<Party, Waiter>>,
    starts: Sender<Arc<str>>,
    /// Look-ups that were refused to each party: there were too many in all, or of the party.
    refused: Mutex<BTreeMap<Party, [u64; 2]>>,
}

/// Where names are found.
struct Sources {
    hosts: Hosts,
    resolver: TokioResolver,
}

/// The sources, and the state of [`FILES`] when they were read.
struct System {
    sources: Arc<Result<Sources, NetError>>,
    files: [Option<(u64, i64, i64)>; 2],
}

/// The resolver of this process, as the system's is one for all.
static NAMES: OnceLock<Names> = OnceLock::new();
/// Held while the resolver is started.
static START: Mutex<()> = Mutex::new(());

/// Asks for the addresses of a destination on behalf of a party. `told` gets them: at once if they are known,
/// otherwise on another thread, which it must not block.
pub(crate) fn ask(
    destination: &Destination,
    party: &Party,
    told: impl FnOnce(Result<Addrs, ResolveError>) + Send + 'static,
) {
    ask_for(destination, party, Want::Known, told);
}

/// Returns the addresses of a destination. Blocks until they are known, at most for [`PATIENCE`].
pub(crate) fn look_up(destination: &Destination) -> Result<Addrs, ResolveError> {
    let (tell, told) = sync_channel(1);
    ask(destination, &None, move |result| {
        let _ = tell.try_send(result);
    });
    told.recv()
        .unwrap_or_else(|_| Err(failed(destination, ENDED)))
}

/// Returns the addresses of a destination by a look-up of now.
pub(crate) async fn look_up_again(destination: &Destination) -> Result<Addrs, ResolveError> {
    let (tell, told) = tokio::sync::oneshot::channel();
    ask_for(destination, &None, Want::New, move |result| {
        let _ = tell.send(result);
    });
    told.await
        .unwrap_or_else(|_| Err(failed(destination, ENDED)))
}

/// Returns the numbers of look-ups that were refused: there were too many in all, or of the party.
pub(crate) fn refused() -> [u64; 2] {
    let all = refused_by_party();
    all.iter()
        .fold([0, 0], |[all, party], (_, [a, p])| [all + a, party + p])
}

/// Returns these numbers for each party to which a look-up was refused.
pub(crate) fn refused_by_party() -> Vec<(Party, [u64; 2])> {
    let all = NAMES.get().map(|names| lock(&names.refused).clone());
    all.into_iter().flatten().collect()
}

fn ask_for(
    destination: &Destination,
    party: &Party,
    want: Want,
    told: impl FnOnce(Result<Addrs, ResolveError>) + Send + 'static,
) {
    if let Ok(ip) = destination.host.parse::<IpAddr>() {
        let addr = UpstreamAddr(SocketAddr::new(ip, destination.port));
        return told(Ok(Arc::from([addr])));
    }
    let waiter: Waiter = {
        let destination = destination.clone();
        Box::new(move |result| told(with_port(&destination, result)))
    };
    match Names::of_process() {
        Ok(names) => names.ask(destination.host.as_str().into(), party, want, waiter),
        Err(error) => waiter(Err(no_answer(&format!(
            "cannot start the thread that looks names up: {error}"
        )))),
    }
}

// === impl Names ===

impl Names {
    /// Returns the resolver of the process, whose thread starts with the first look-up.
    fn of_process() -> io::Result<&'static Self> {
        if let Some(names) = NAMES.get() {
            return Ok(names);
        }
        let _one_at_a_time = START.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(names) = NAMES.get() {
            return Ok(names);
        }
        // Each running look-up is in the channel at most once.
        let (starts, ordered) = channel(MAX_LOOK_UPS);
        let (tell, told) = sync_channel(1);
        let (give, given) = sync_channel(1);
        let thread = std::thread::Builder::new().name("names".into());
        // A runtime must not be dropped by a task of another one, so its thread makes it.
        thread.spawn(move || {
            match taut_exposition::runtime::build(Builder::new_current_thread().enable_all()) {
                Err(error) => drop(tell.send(Err(error))),
                Ok(runtime) => {
                    drop(tell.send(Ok(())));
                    if let Ok(names) = given.recv() {
                        runtime.block_on(work_on(ordered, names));
                    }
                }
            }
        })?;
        told.recv()
            .unwrap_or_else(|_| Err(io::Error::other(ENDED)))?;
        let names = NAMES.get_or_init(|| Self {
            cache: Mutex::new(NameCache::default()),
            starts,
            refused: Default::default(),
        });
        let _ = give.send(names);
        Ok(names)
    }

    fn ask(&'static self, name: Arc<str>, party: &Party, want: Want, waiter: Waiter) {
        let (answer, waiter) = self.lock().ask(&name, party, want, Instant::now(), waiter);
        let (result, starts) = match answer {
            Answer::Known { result, starts } => (Some(result), starts),
            Answer::Waits { starts } => (None, starts),
            Answer::Refused(why) => {
                lock(&self.refused).entry(party.clone()).or_default()[why as usize] += 1;
                let whose = match why {
                    Refused::All => "in all",
                    Refused::Party => "for the same relay",
                };
                let text = format!("too many names are being looked up {whose}");
                (Some(Err(no_answer(&text))), false)
            }
        };
        if let (Some(waiter), Some(result)) = (waiter, result) {
            waiter(result);
        }
        // There is room for all look-ups, so it fails only if the thread has ended.
        if starts && self.starts.try_send(name.clone()).is_err() {
            self.finish(&name, Err(no_answer(ENDED)));
        }
    }

    fn finish(&self, name: &str, result: Result<(Addresses, Duration), Failure>) {
        let waiting = self.lock().finish(name, result, Instant::now());
        // The lock is free again: a waiter may ask for another name.
        for (waiter, result) in waiting {
            waiter(result);
        }
    }

    fn lock(&self) -> MutexGuard<'_, NameCache<Party, Waiter>> {
        lock(&self.cache)
    }
}

/// A poisoned lock is usable: no operation leaves what it guards half changed.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks up each name that is ordered.
async fn work_on(mut ordered: Receiver<Arc<str>>, names: &'static Names) {
    let mut system = System::read();
    while let Some(name) = ordered.recv().await {
        if system.files != state_of_files() {
            system = System::read();
        }
        let sources = system.sources.clone();
        tokio::spawn(async move {
            let mut end = End {
                names,
                name,
                result: None,
            };
            end.result = Some(match &*sources {
                Ok(sources) => resolve(sources, &end.name).await,
                Err(error) => Err(no_answer(&error.to_string())),
            });
        });
    }
}

/// Ends a look-up when it is dropped, also by a panic: others wait for it.
struct End {
    names: &'static Names,
    name: Arc<str>,
    result: Option<Result<(Addresses, Duration), Failure>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let result = self.result.take();
        self.names
            .finish(&self.name, result.unwrap_or_else(|| Err(no_answer(ENDED))));
    }
}

/// Returns the addresses of a name: those of `/etc/hosts`, or if it has none, those of the servers.
async fn resolve(sources: &Sources, name: &str) -> Result<(Addresses, Duration), Failure> {
    let asked: Name = name
        .parse()
        .map_err(|_| no_answer("it is not a valid DNS name"))?;
    let kinds = [RecordType::A, RecordType::AAAA];
    let (mut addresses, ttl) = match in_hosts(&sources.hosts, &asked, kinds) {
        found if !found.is_empty() => (found, FROM_HOSTS),
        _ => {
            let [v4, v6] = kinds.map(|kind| query_servers(&sources.resolver, &asked, kind));
            // A server, or something on the way to it, may answer one of the two only.
            let (first, second) = match select(pin!(v4), pin!(v6)).await {
                Either::Left((first, other)) => (first.clone(), second_family(&first, other).await),
                Either::Right((first, other)) => {
                    (first.clone(), second_family(&first, other).await)
                }
            };
            merge(first, second)?
        }
    };
    addresses.dedup();
    sort(&mut addresses, has_route);
    addresses.truncate(MAX_ADDRS);
    Ok((addresses.into(), ttl))
}

fn in_hosts(hosts: &Hosts, name: &Name, kinds: [RecordType; 2]) -> Vec<IpAddr> {
    let found = kinds.map(|kind| hosts.lookup_static_host(&Query::query(name.clone(), kind)));
    found.iter().flatten().flat_map(addresses_in).collect()
}

fn addresses_in(found: &Lookup) -> impl Iterator<Item = IpAddr> {
    found
        .answers()
        .iter()
        .filter_map(|record| record.data.ip_addr())
}

/// The addresses of one family and how long they hold, or why there are none.
type FamilyResult = Result<(Vec<IpAddr>, Duration), Failure>;

async fn query_servers(resolver: &TokioResolver, name: &Name, kind: RecordType) -> FamilyResult {
    match timeout(PATIENCE, resolver.lookup(name.clone(), kind)).await {
        Ok(Ok(found)) => {
            let ttl = found
                .valid_until()
                .saturating_duration_since(Instant::now());
            Ok((addresses_in(&found).collect(), ttl))
        }
        Ok(Err(error)) => Err(failure(&error, name)),
        Err(_) => Err(failure(&NetError::Timeout, name)),
    }
}

/// Waits for the second family: not for long if the first one has addresses.
async fn second_family(
    first: &FamilyResult,
    other: impl Future<Output = FamilyResult>,
) -> FamilyResult {
    let has_addresses = { first.as_ref() }.is_ok_and(|(found, _)| !found.is_empty());
    let patience = if has_addresses { GRACE } else { PATIENCE };
    let late = || Err(no_answer("no server of /etc/resolv.conf answers"));
    timeout(patience, other).await.unwrap_or_else(|_| late())
}

/// Merges the two families. There is no address for certain only if both say so.
fn merge(first: FamilyResult, second: FamilyResult) -> FamilyResult {
    match (first, second) {
        (Ok((mut one, ttl)), Ok((other, other_ttl))) => {
            one.extend(other);
            Ok((one, ttl.min(other_ttl)))
        }
        (Ok(found), Err(_)) | (Err(_), Ok(found)) => Ok(found),
        (Err(one), Err(other)) => Err(match one.is_answer {
            true => Failure {
                ttl: one.ttl.min(other.ttl),
                ..other
            },
            false => one,
        }),
    }
}

/// Returns why a look-up of `asked` has failed.
fn failure(error: &NetError, asked: &Name) -> Failure {
    let none = match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => Some(none),
        _ => None,
    };
    let text = match error {
        NetError::Timeout => "no server of /etc/resolv.conf answers".to_owned(),
        error if error.is_nx_domain() => "there is no such name".to_owned(),
        error if error.is_no_records_found() => "the name has no address".to_owned(),
        error => error.to_string(),
    };
    Failure {
        text: text.into(),
        // With a list of domains to search, the last answer is for another name.
        is_answer: none.is_some_and(|none| none.query.name().eq_ignore_root(asked)),
        ttl: none.and_then(|none| Some(Duration::from_secs(none.negative_ttl?.into()))),
    }
}

/// Sorts addresses: those that this machine has a route to first, and of these IPv6 first (RFC 6724 section 6,
/// rules 1 and 6). Otherwise keeps the order of the server.
fn sort(addresses: &mut [IpAddr], has_route: impl Fn(IpAddr) -> bool) {
    addresses.sort_by_cached_key(|address| (!has_route(*address), !address.is_ipv6()));
}

/// Returns whether the kernel would send a packet to this address.
fn has_route(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting sends nothing.
    UdpSocket::bind((any, 0)).is_ok_and(|socket| socket.connect((address, 9)).is_ok())
}

fn with_port(
    destination: &Destination,
    result: Result<Addresses, Failure>,
) -> Result<Addrs, ResolveError> {
    let addr = |ip: &IpAddr| UpstreamAddr(SocketAddr::new(*ip, destination.port));
    match result {
        Ok(addresses) if addresses.is_empty() => Err(ResolveError::Nothing(destination.clone())),
        Ok(addresses) => Ok(addresses.iter().map(addr).collect()),
        Err(failure) => Err(failed(destination, &failure.text)),
    }
}

fn no_answer(text: &str) -> Failure {
    Failure {
        text: text.into(),
        is_answer: false,
        ttl: None,
    }
}

fn failed(destination: &Destination, text: &str) -> ResolveError {
    ResolveError::Lookup {
        destination: destination.clone(),
        source: io::Error::other(text),
    }
}

// === impl System ===

impl System {
    fn read() -> Self {
        // Read before the files: a change meanwhile is noticed the next time.
        let files = state_of_files();
        let mut builder = TokioResolver::builder_tokio().unwrap_or_else(|error| {
            tracing::warn!(
                "cannot read /etc/resolv.conf: {error}; asking the name server at 127.0.0.1 instead"
            );
            let server = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            let config = ResolverConfig::from_name_servers(vec![server]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        });
        let options = builder.options_mut();
        // They are read here.
        options.use_hosts_file = ResolveHosts::Never;
        // This node has its own cache.
        options.cache_size = 0;
        // Twice, in less than PATIENCE for each of two servers.
        options.timeout = options.timeout.min(SERVER_PATIENCE);
        options.attempts = 1;
        let hosts = Hosts::from_system().unwrap_or_default();
        let sources = builder.build().map(|resolver| Sources { hosts, resolver });
        Self {
            sources: Arc::new(sources),
            files,
        }
    }
}

/// Returns what changes when one of [`FILES`] is replaced or written.
fn state_of_files() -> [Option<(u64, i64, i64)>; 2] {
    FILES.map(|file| {
        let metadata = Path::new(file).metadata().ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_route_come_first_and_of_these_ipv6() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let all = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"].map(address);
        let sorted = |has_route: &dyn Fn(IpAddr) -> bool| {
            let mut addresses = all;
            sort(&mut addresses, has_route);
            addresses.map(|address| address.to_string())
        };
        let both = ["2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"];
        assert_eq!(sorted(&|_| true), both);
        let without_v6 = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"];
        assert_eq!(sorted(&|address| address.is_ipv4()), without_v6);
    }

    #[test]
    fn there_is_no_address_only_if_no_family_has_one() {
        let ttl = Duration::from_secs(7);
        let found = |text: &str| Ok((vec![text.parse::<IpAddr>().unwrap()], ttl));
        let none = || {
            Err(Failure {
                is_answer: true,
                ..no_answer("the name has no address")
            })
        };
        let silent = || Err(no_answer("no server answers"));
        let both = merge(found("192.0.2.1"), found("2001:db8::1")).unwrap();
        assert_eq!((both.0.len(), both.1), (2, ttl));
        for other in [none(), silent()] {
            assert_eq!(merge(found("192.0.2.1"), other.clone()), found("192.0.2.1"));
            assert_eq!(merge(other, found("192.0.2.1")), found("192.0.2.1"));
        }
        let is_answer = |one, other| merge(one, other).unwrap_err().is_answer;
        assert!(is_answer(none(), none()));
        assert!(!is_answer(none(), silent()) && !is_answer(silent(), none()));
    }

    #[test]
    fn an_address_needs_no_look_up_and_localhost_no_server() {
        let look_up = |text: &str| look_up(&text.parse().unwrap()).unwrap();
        let found = look_up("192.0.2.7:80");
        assert_eq!(*found, [UpstreamAddr("192.0.2.7:80".parse().unwrap())]);
        let found = look_up("localhost:80");
        assert!(
            found.iter().all(|addr| addr.0.ip().is_loopback()),
            "{found:?}"
        );
    }
}
