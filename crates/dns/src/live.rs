//! The round-trip times that a relay on this machine knows, from its control socket.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | paths of an answer | [`LIMIT`] | further ones are left out by the relay, and counted |
//! | bytes of an answer | [`MAX_ANSWER`] | refused; the former times stay |
//! | the time for an answer | [`PATIENCE`] | refused; the former times stay |

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taut_sys::control_socket::{self, ControlError};

use crate::config::Config;
use crate::nearness::{Measurement, RelayId};

/// The most paths that are asked for, the relay's own maximum.
const LIMIT: usize = 300_000;

/// The longest answer.
const MAX_ANSWER: u64 = 64 << 20;

/// The longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known from a relay.
#[derive(Debug, Default)]
pub(crate) struct Live {
    /// What the relay has said, with names, because numbers may change with the configuration.
    heard: Vec<(IpNet, Box<str>, Duration)>,
    times: Vec<Measurement>,
    /// The revision of the relay's answer.
    revision: Option<String>,
    /// When the relay last said that these are its times.
    confirmed: Option<Instant>,
}

/// The relay's times cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    /// No relay answers, or it is not trusted.
    #[error("{0}")]
    Connect(#[from] ControlError),
    /// The conversation failed.
    #[error("the relay does not answer: {0}")]
    Io(#[from] std::io::Error),
    /// The answer is longer than [`MAX_ANSWER`].
    #[error("the relay's answer has more than {MAX_ANSWER} bytes")]
    TooLong,
    /// The answer is not understood.
    #[error(
        "the relay's answer is not understood ({0}); restart both with the same version of taut"
    )]
    Garbled(#[from] serde_json::Error),
    /// The relay refused the request.
    #[error("the relay says: {0}")]
    Refused(String),
    /// The relay answers `unchanged` for a revision that this server does not have.
    #[error(
        "the relay says that revision {0} of its times is unchanged, which was not asked about"
    )]
    OtherRevision(String),
}

#[derive(Serialize)]
struct Request<'a> {
    #[serde(rename = "do")]
    command: &'static str,
    limit: usize,
    prefixes_only: bool,
    known: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Rtt(Times),
    Error(String),
}

#[derive(Debug, Deserialize)]
struct Times {
    revision: String,
    unchanged: bool,
    paths: Vec<PathTime>,
}

#[derive(Debug, Deserialize)]
struct PathTime {
    from: String,
    to: String,
    rtt_ms: f64,
}

// === impl Live ===

impl Live {
    /// Asks the relay at `path`, and returns whether its times have changed.
    ///
    /// # Errors
    /// [`LiveError`]; what was known before stays.
    pub(crate) fn ask(&mut self, path: &Path, config: &Config) -> Result<bool, LiveError> {
        let mut stream = control_socket::connect_to_owner(path)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_string(&Request {
            command: "rtt",
            limit: LIMIT,
            prefixes_only: true,
            known: self.revision.as_deref(),
        })?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut answer)?;
        if !answer.ends_with('\n') && answer.len() as u64 >= MAX_ANSWER {
            return Err(LiveError::TooLong);
        }
        self.adopt(&answer, config, Instant::now())
    }

    /// Adopts an answer that came at `now`.
    pub(crate) fn adopt(
        &mut self,
        answer: &str,
        config: &Config,
        now: Instant,
    ) -> Result<bool, LiveError> {
        let times = match serde_json::from_str(answer)? {
            Answer::Rtt(times) => times,
            Answer::Error(why) => return Err(LiveError::Refused(why)),
        };
        if times.unchanged && self.revision.as_ref() != Some(&times.revision) {
            return Err(LiveError::OtherRevision(times.revision));
        }
        self.confirmed = Some(now);
        if times.unchanged {
            return Ok(false);
        }
        let heard = times.paths.into_iter().filter_map(|path| {
            let prefix = path.to.parse::<IpNet>().ok()?;
            let rtt = Duration::try_from_secs_f64(path.rtt_ms / 1e3).ok()?;
            Some((prefix.trunc(), path.from.into_boxed_str(), rtt))
        });
        self.heard = heard.collect();
        self.revision = Some(times.revision);
        self.reconfigure(config);
        Ok(true)
    }

    /// Uses the numbers that relays have in `config`.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        let relays = (0..).zip(&config.relays);
        let numbers: HashMap<_, RelayId> = relays
            .map(|(id, relay)| (relay.name.as_str(), id))
            .collect();
        let heard = self.heard.iter();
        let known =
            heard.filter_map(|(prefix, relay, rtt)| Some((*prefix, *numbers.get(&**relay)?, *rtt)));
        self.times = known.collect();
    }

    /// Forgets all times if the relay last confirmed them longer than `keep` before `now`. Returns whether there
    /// were any.
    pub(crate) fn expire(&mut self, keep: Duration, now: Instant) -> bool {
        let is_old = self
            .confirmed
            .is_some_and(|at| now.saturating_duration_since(at) > keep);
        is_old && !std::mem::take(self).heard.is_empty()
    }

    /// Returns how long ago the relay confirmed the times; `None` if it never has, or they are forgotten.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.confirmed.map(|at| now.saturating_duration_since(at))
    }

    /// Returns the times.
    pub(crate) fn times(&self) -> &[Measurement] {
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config() -> Config {
        Config::parse(
            "[mesh.dns]\nzone = \"x.example\"\nname_server = [{ name = \"ns1\", addresses = [\"192.0.2.53\"] }]\n\
             relay = [{ name = \"a\", addresses = [\"192.0.2.1\"] }]\nname = [{ name = \"www\" }]\n",
            Path::new("taut.toml"),
        )
        .unwrap()
    }

    const ANSWER: &str = r#"{"rtt":{"revision":"1f","unchanged":false,"left_out":0,"paths":[
        {"from":"a","to":"203.0.113.0/24","rtt_ms":12.5,"smoothed_ms":13.0,"loss":0.0,"age_s":1.0},
        {"from":"stranger","to":"203.0.113.0/24","rtt_ms":1.0},
        {"from":"a","to":"b","rtt_ms":1.0},
        {"from":"a","to":"198.51.100.0/24","rtt_ms":-1.0}]}}"#;

    #[test]
    fn times_of_relays_of_the_configuration_to_prefixes_are_taken_and_nothing_else() {
        let (mut live, config, now) = (Live::default(), config(), Instant::now());
        assert!(live.adopt(ANSWER, &config, now).unwrap());
        let prefix = "203.0.113.0/24".parse().unwrap();
        assert_eq!(live.times(), [(prefix, 0, Duration::from_micros(12_500))]);
        let unchanged = r#"{"rtt":{"revision":"1f","unchanged":true,"paths":[],"left_out":0}}"#;
        assert!(!live.adopt(unchanged, &config, now).unwrap());
        assert_eq!(live.times().len(), 1);
    }

    #[test]
    fn a_revision_that_was_not_asked_about_cannot_be_unchanged() {
        let (mut live, config, now) = (Live::default(), config(), Instant::now());
        let other = r#"{"rtt":{"revision":"20","unchanged":true,"paths":[],"left_out":0}}"#;
        assert!(live.adopt(other, &config, now).is_err());
        assert_eq!(live.age(now), None);
        live.adopt(ANSWER, &config, now).unwrap();
        let later = now + Duration::from_secs(10);
        let error = live.adopt(other, &config, later).unwrap_err();
        assert!(matches!(error, LiveError::OtherRevision(version) if version == "20"));
        // The times stay, and are not confirmed.
        assert_eq!(live.times().len(), 1);
        assert_eq!(live.age(later), Some(Duration::from_secs(10)));
    }

    #[test]
    fn times_are_forgotten_when_the_relay_has_not_confirmed_them_for_too_long() {
        let (mut live, now, keep) = (Live::default(), Instant::now(), Duration::from_secs(60));
        live.adopt(ANSWER, &config(), now).unwrap();
        assert!(!live.expire(keep, now + keep));
        assert_eq!(live.age(now + keep), Some(keep));
        let refused = live.adopt(r#"{"error":"no mesh"}"#, &config(), now + keep);
        assert_eq!(refused.unwrap_err().to_string(), "the relay says: no mesh");
        let later = now + keep + Duration::from_secs(1);
        assert!(live.expire(keep, later));
        assert!(live.times().is_empty() && live.age(later).is_none());
        assert!(!live.expire(keep, later));
    }

    proptest! {
        #[test]
        fn whatever_answers_is_taken_or_refused_and_keeps_the_former_times(text in ".{0,200}", rtt in any::<f64>()) {
            let (mut live, config, now) = (Live::default(), config(), Instant::now());
            live.adopt(ANSWER, &config, now).unwrap();
            if live.adopt(&text, &config, now).is_err() {
                prop_assert_eq!(live.times().len(), 1);
            }
            let odd = format!(r#"{{"rtt":{{"revision":"2","unchanged":false,"paths":[{{"from":"a","to":"::/0","rtt_ms":{rtt:e}}}]}}}}"#);
            let _ = live.adopt(&odd, &config, now);
        }
    }
}
