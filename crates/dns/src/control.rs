//! The controlling task's state: relays and their probes, measurements, reloads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use taut_sys::plural::counted;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::answer::{Answers, Relay};
use crate::config::{Config, ConfigError, Probe, RelayConfig};
use crate::cookie::Cookies;
use crate::error::ServeError;
use crate::health::Health;
use crate::measured::Measured;
use crate::metrics::Metrics;
use crate::nearness::Nearness;
use crate::probe::probe;
use crate::reading::Read;
use crate::state::{Current, Shared, State};

/// The maximum number of probes at a time.
const PROBES: usize = 256;
/// The maximum number of relays whose change is logged by name after a round of probes.
const LINES: usize = 20;
/// The time between two warnings that queries are over the rate.
const RATE_WARNING: Duration = Duration::from_secs(600);

/// Reads the configuration again.
pub type Reread = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// A relay, and what its probes say.
struct Watched {
    name: String,
    probe: Option<Probe>,
    health: Health,
    up: Arc<AtomicBool>,
    /// When it went down; `None` while it is up.
    down_since: Option<Instant>,
}

/// The state of the controlling task.
pub(crate) struct Control {
    shared: Shared,
    relays: Vec<Watched>,
    nearness: Arc<Nearness>,
    cookies: Cookies,
    /// `None` while a thread reads.
    measured: Option<Measured>,
    reading: Option<JoinHandle<Read>>,
    /// A reload that starts when the reading in progress has ended.
    reload_waits: Option<Arc<Reread>>,
    probes: JoinSet<(String, Result<(), String>)>,
    permits: Arc<Semaphore>,
    /// What has changed in this round of probes: whether a relay is up, and a sentence.
    changed: Vec<(bool, String)>,
    /// Whether the last read of the file failed.
    is_broken: bool,
    /// Whether the last request to the relay failed.
    is_silent: bool,
    over_rate: u64,
    warned_of_rate: Option<Instant>,
}

// === impl Watched ===

impl Watched {
    fn new(relay: &RelayConfig) -> Self {
        Self {
            name: relay.name.clone(),
            probe: relay.probe.clone(),
            health: Health::default(),
            up: Arc::new(AtomicBool::new(true)),
            down_since: None,
        }
    }
}

// === impl Control ===

impl Control {
    pub(crate) fn new(config: Config, measured: Measured) -> Result<Self, ServeError> {
        let metrics = Metrics::new();
        let relays: Vec<_> = config.relays.iter().map(Watched::new).collect();
        let nearness = Arc::new(measured.nearness()?);
        // Cookies of an earlier process are not accepted; their clients get new ones.
        let cookies = Cookies::new(taut_sys::random::bytes());
        let current = current(config, &relays, &nearness, &cookies, &metrics)?;
        let current = ArcSwap::from_pointee(current);
        let control = Self {
            shared: Arc::new(State { current, metrics }),
            relays,
            nearness,
            cookies,
            measured: Some(measured),
            reading: None,
            reload_waits: None,
            probes: JoinSet::new(),
            permits: Arc::new(Semaphore::new(PROBES)),
            changed: Vec::new(),
            is_broken: false,
            is_silent: false,
            over_rate: 0,
            warned_of_rate: None,
        };
        control.show_measured();
        Ok(control)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the present configuration.
    pub(crate) fn config(&self) -> Config {
        self.shared.current.load().config.clone()
    }

    /// Returns the time between two rounds of probes.
    pub(crate) fn probe_interval(&self) -> Duration {
        self.shared.current.load().config.probe_interval
    }

    /// Waits for the result of a probe or a reading, and adopts it.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            Some(Ok((name, result))) = self.probes.join_next() => self.probed(&name, result),
            read = finished(&mut self.reading) => self.adopt(read),
        }
    }

    /// Starts a round of probes, unless the last one goes on.
    pub(crate) fn begin_probes(&mut self) {
        self.warn_of_rate();
        if !self.probes.is_empty() {
            return;
        }
        let patience = self.shared.current.load().config.probe_timeout;
        for relay in &self.relays {
            let Some(kind) = relay.probe.clone() else {
                continue;
            };
            let (name, permits) = (relay.name.clone(), self.permits.clone());
            self.probes.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let result = probe(&kind, patience).await;
                (name, result.map_err(|error| error.to_string()))
            });
        }
    }

    fn probed(&mut self, name: &str, result: Result<(), String>) {
        let current = self.shared.current.load_full();
        let at = self.relays.iter().position(|relay| relay.name == name);
        if let Some((relay, metrics)) =
            at.and_then(|at| Some((&mut self.relays[at], current.relay_metrics.get(at)?)))
        {
            if result.is_err() {
                metrics.probes_failed.inc();
            }
            if let Some(up) = relay.health.record(result.is_ok()) {
                relay.up.store(up, Ordering::Relaxed);
                metrics.up.set(up.into());
                let said = match (up, relay.down_since.take(), result) {
                    (true, Some(since), _) => {
                        let lasted = Duration::from_secs(since.elapsed().as_secs());
                        format!(
                            "relay {name} is up again after {}",
                            humantime::format_duration(lasted)
                        )
                    }
                    (true, None, _) => format!("relay {name} is up again"),
                    (false, _, result) => {
                        relay.down_since = Some(Instant::now());
                        let why = result.err().unwrap_or_default();
                        format!(
                            "relay {name} is down: {why}; answers name other relays if one is up"
                        )
                    }
                };
                self.changed.push((up, said));
            }
        }
        if self.probes.is_empty() {
            self.report_changes();
        }
    }

    /// Logs what a round of probes has changed.
    fn report_changes(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        for (is_up, said) in changed.iter().take(LINES) {
            match is_up {
                true => tracing::info!("{said}"),
                false => tracing::warn!("{said}"),
            }
        }
        if let Some(more @ 1..) = changed.len().checked_sub(LINES) {
            tracing::warn!("{} more: gone down or come back", counted(more, "relay"));
        }
        let is_down = |relay: &Watched| !relay.health.is_up();
        if !changed.is_empty() && self.relays.iter().all(is_down) {
            tracing::warn!(
                "all relays are down; clients still get the nearest one. Check this machine's network, \
                 then the relays"
            );
        }
    }

    pub(crate) fn begin_measuring(&mut self) {
        let config = self.config();
        if config.rtt_file.is_some() || config.relay_control.is_some() {
            self.begin_reading(move || (config, None));
        }
    }

    pub(crate) fn begin_reload(&mut self, reread: &Arc<Reread>) {
        if self.reading.is_some() {
            self.reload_waits = Some(reread.clone());
            return;
        }
        let (reread, former) = (reread.clone(), self.config());
        self.begin_reading(move || match reread() {
            Ok(config) => (config.clone(), Some(Ok(config))),
            Err(error) => (former, Some(Err(error))),
        });
    }

    /// Reads in a thread, because the file may be large and the relay slow. One thread at a time reads.
    fn begin_reading(
        &mut self,
        load: impl FnOnce() -> (Config, Option<Result<Config, ConfigError>>) + Send + 'static,
    ) {
        let Some(measured) = self.measured.take() else {
            return;
        };
        self.reading = Some(tokio::task::spawn_blocking(move || {
            let (config, loaded) = load();
            Read::new(&config, loaded, measured)
        }));
    }

    /// Adopts what a thread has read.
    fn adopt(&mut self, read: Result<Read, JoinError>) {
        self.reading = None;
        let read = match read {
            Ok(read) => read,
            // The panic hook has reported why.
            Err(_) => {
                self.measured = Some(Measured::default());
                return;
            }
        };
        let (is_reload, former) = (read.config.is_some(), self.config());
        let adopted = self.try_adopt(read, &former);
        match adopted {
            Ok(()) if is_reload => tracing::info!("SIGHUP: the configuration has been read again"),
            Ok(()) => {}
            Err(error) if is_reload => {
                tracing::error!("SIGHUP: {error}; keeping the former configuration");
            }
            Err(error) => tracing::error!("{error}; keeping the former round-trip times"),
        }
        if let Some(reread) = self.reload_waits.take() {
            self.begin_reload(&reread);
        }
    }

    fn try_adopt(&mut self, read: Read, former: &Config) -> Result<(), ServeError> {
        let Read {
            config,
            measured,
            is_new,
            problem,
            silence,
            forgot,
        } = read;
        let (config, is_reload, mistake) = match config {
            None => (former.clone(), false, None),
            Some(Ok(config)) => (config, true, None),
            // The rest was read for the former configuration.
            Some(Err(error)) => (former.clone(), false, Some(error)),
        };
        if let Some(path) = &config.rtt_file {
            if let (true, Some(reason)) = (is_reload, &problem) {
                self.measured = Some(measured.reconfigured(former));
                let (path, reason) = (path.clone(), reason.clone());
                return Err(ServeError::Measured { path, reason });
            }
            self.report_problem(path, problem);
        }
        if let Some(path) = &config.relay_control {
            self.report_silence(path, config.relay_keep, silence, forgot);
        }
        let nearness = is_new.then(|| measured.nearness()).transpose();
        self.measured = Some(match is_reload && nearness.is_err() {
            true => measured.reconfigured(former),
            false => measured,
        });
        self.show_age();
        let Some(nearness) = nearness? else {
            return Ok(());
        };
        self.nearness = Arc::new(nearness);
        if is_reload {
            self.adopt_relays(&config, former);
        }
        let metrics = &self.shared.metrics;
        let (nearness, cookies) = (&self.nearness, &self.cookies);
        let current = current(config, &self.relays, nearness, cookies, metrics)?;
        self.shared.current.store(Arc::new(current));
        self.show_measured();
        mistake.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps what is known of relays whose probe has not changed.
    fn adopt_relays(&mut self, config: &Config, former: &Config) {
        let mut known: Vec<_> = self.relays.drain(..).collect();
        let relays = config.relays.iter().map(|relay| {
            let is_same = |w: &Watched| w.name == relay.name && w.probe == relay.probe;
            match known.iter().position(is_same) {
                Some(at) => known.swap_remove(at),
                None => Watched::new(relay),
            }
        });
        self.relays = relays.collect();
        for relay in &former.relays {
            if config.relay(&relay.name).is_none() {
                self.shared.metrics.forget(&relay.name);
            }
        }
        let restart = [
            ("listen", config.listen != former.listen),
            ("workers", config.workers != former.workers),
            ("user", config.user != former.user),
            ("metrics", config.metrics != former.metrics),
        ];
        for (key, _) in restart.iter().filter(|(_, changed)| *changed) {
            tracing::warn!("mesh.dns.{key} has changed; restart to apply it");
        }
    }

    /// Logs that the file cannot be read, or can be read again.
    fn report_problem(&mut self, path: &Path, problem: Option<String>) {
        let path = path.display();
        match &problem {
            Some(problem) if !self.is_broken => tracing::warn!(
                "cannot read the round-trip times in {path}: {problem}; keeping what was read before"
            ),
            None if self.is_broken => {
                tracing::info!("the round-trip times in {path} can be read again");
            }
            _ => {}
        }
        if problem.is_some() {
            self.shared.metrics.rtt_file_errors.inc();
        }
        self.is_broken = problem.is_some();
    }

    /// Logs that the relay cannot be asked, that its times are forgotten, or that it can be asked again.
    fn report_silence(
        &mut self,
        path: &Path,
        keep: Duration,
        silence: Option<String>,
        forgot: bool,
    ) {
        let (path, keep) = (path.display(), humantime::format_duration(keep));
        match &silence {
            Some(why) if !self.is_silent => tracing::warn!(
                "cannot ask the relay at {path} for round-trip times: {why}; what it said last is used for up to \
                 {keep}"
            ),
            None if self.is_silent => {
                tracing::info!("the relay at {path} can be asked for round-trip times again");
            }
            _ => {}
        }
        if forgot {
            tracing::warn!(
                "the relay at {path} has not answered for {keep}: its round-trip times are not used any more"
            );
        }
        if silence.is_some() {
            self.shared.metrics.relay_errors.inc();
        }
        self.is_silent = silence.is_some();
    }

    fn show_measured(&self) {
        let count = self.measured.as_ref().map_or(0, Measured::count);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.shared.metrics.rtts.set(count);
    }

    fn show_age(&self) {
        let age = self
            .measured
            .as_ref()
            .and_then(|measured| measured.live.age(Instant::now()));
        let age = age.map_or(-1, |age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        self.shared.metrics.relay_age.set(age);
    }

    fn warn_of_rate(&mut self) {
        let total = self.shared.metrics.over_rate();
        let since = total - std::mem::replace(&mut self.over_rate, total);
        let may = self
            .warned_of_rate
            .is_none_or(|at| at.elapsed() >= RATE_WARNING);
        if since > 0 && may {
            self.warned_of_rate = Some(Instant::now());
            tracing::warn!(
                "networks are over mesh.dns.rate_limit, with {} sent to TCP or not answered; if these are your clients' resolvers, raise it or add them to \
                 mesh.dns.unlimited",
                counted(since, "query")
            );
        }
    }
}

/// Waits for the end of the reading in progress; never resolves if there is none.
async fn finished(reading: &mut Option<JoinHandle<Read>>) -> Result<Read, JoinError> {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

fn current(
    config: Config,
    relays: &[Watched],
    nearness: &Arc<Nearness>,
    cookies: &Cookies,
    metrics: &Metrics,
) -> Result<Current, ServeError> {
    let relay_metrics = relays.iter().map(|relay| {
        let relay_metrics = metrics.relay(&relay.name);
        relay_metrics.up.set(relay.health.is_up().into());
        relay_metrics
    });
    Ok(Current {
        relay_metrics: relay_metrics.collect(),
        answers: answers(&config, relays, nearness.clone(), cookies.clone())?,
        config,
    })
}

fn answers(
    config: &Config,
    relays: &[Watched],
    nearness: Arc<Nearness>,
    cookies: Cookies,
) -> Result<Answers, ServeError> {
    // The serial number of the zone: the time, so that it does not fall when the answers are made again.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let serial = u32::try_from(now.unwrap_or_default().as_secs()).unwrap_or(u32::MAX);
    let relay = |(config, watched): (&RelayConfig, &Watched)| Relay {
        name: config.name.clone(),
        v4: config.v4,
        v6: config.v6,
        up: watched.up.clone(),
    };
    Ok(Answers {
        zone: config.zone(serial)?,
        relays: config.relays.iter().zip(relays).map(relay).collect(),
        nearness,
        ttl: config.ttl,
        cookies,
    })
}

/// Returns the answers that `config` leads to if every relay is up.
///
/// # Errors
/// [`ServeError`].
pub(crate) fn preview(config: &Config, measured: Measured) -> Result<Answers, ServeError> {
    let relays: Vec<_> = config.relays.iter().map(Watched::new).collect();
    let (nearness, cookies) = (Arc::new(measured.nearness()?), Cookies::new([0; 16]));
    answers(config, &relays, nearness, cookies)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[mesh.dns]\nzone = \"x.example\"\nname_server = [{ name = \"ns1\", addresses = [\"192.0.2.53\"] }]\n\
                          relay = [{ name = \"a\", addresses = [\"192.0.2.1\"] }]\nname = [{ name = \"www\" }]\n";
    const ANSWER: &str = r#"{"rtt":{"revision":"1","unchanged":false,"left_out":0,"paths":[
        {"from":"a","to":"203.0.113.0/24","rtt_ms":12.5}]}}"#;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("taut.toml"))
    }

    /// What was read after SIGHUP; the relay did not answer.
    fn read(
        config: Result<Config, ConfigError>,
        problem: Option<&str>,
        measured: Measured,
    ) -> Read {
        Read {
            config: Some(config),
            measured,
            is_new: true,
            problem: problem.map(str::to_owned),
            silence: Some("it is silent".to_owned()),
            forgot: false,
        }
    }

    #[test]
    fn a_reload_that_fails_keeps_what_the_relay_has_said() {
        let former = parse(CONFIG).unwrap();
        let mut measured = Measured::default();
        measured
            .live
            .adopt(ANSWER, &former, Instant::now())
            .unwrap();
        let mut control = Control::new(former.clone(), measured).unwrap();
        let known = |control: &Control| control.measured.as_ref().map(Measured::count);
        assert_eq!(known(&control), Some(1));

        let measured = control.measured.take().unwrap();
        let wrong = read(parse("[mesh.dns]\nzone = 1"), None, measured);
        assert!(control.try_adopt(wrong, &former).is_err());
        assert_eq!(known(&control), Some(1), "the file has a mistake");

        let text = CONFIG.replace(
            "relay = [",
            "rtt_file = \"/none\"\nrelay = [{ name = \"b\", addresses = [\"192.0.2.2\"] }, ",
        );
        let next = parse(&text).unwrap();
        let measured = control.measured.take().unwrap().reconfigured(&next);
        let unread = read(Ok(next), Some("not there"), measured);
        assert!(control.try_adopt(unread, &former).is_err());
        let times = control.measured.as_ref().unwrap().live.times();
        assert_eq!(
            times.len(),
            1,
            "the table of round-trip times cannot be read"
        );
        assert_eq!(
            times[0].1, 0,
            "the number that the relay has in the former configuration"
        );
    }
}
