//! Consecutive samples of a connection, and figures about the time from the first to the last.

use std::time::Duration;

use taut_sys::sock_diag::Connection;
use taut_sys::tcp_info::{CaState, TcpInfo};

use crate::event_delta::EventDelta;

/// A connection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time since the observation began.
    pub at: Duration,
    /// The kernel's data.
    pub connection: Connection,
}

/// A sample of a window. Samples that differ only in the time, and in the times that go on with it,
/// share what was read.
#[derive(Clone, Copy, Debug)]
pub struct SampleRef<'a> {
    /// Time since the observation began.
    pub at: Duration,
    /// The kernel's data. Its idle times are those of the last sample that shares it.
    pub connection: &'a Connection,
    /// The last sample that shares the data.
    last: &'a Sample,
    /// Whether it has `tcp_info`. Known without a look at the data, which costs a cache miss.
    has_info: bool,
}

/// Two or more samples, each with `tcp_info`.
#[derive(Clone, Debug)]
pub struct Window<'a> {
    samples: Vec<SampleRef<'a>>,
    first: &'a TcpInfo,
    last: &'a TcpInfo,
    /// The shortest round trip of any connection to the peer, if it is known.
    path_rtt: Option<Duration>,
}

/// How many segments were retransmitted after a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepeatedSince {
    pub(crate) all: u32,
    /// Those after the data in flight at that moment was acknowledged: none was lost before it.
    pub(crate) later: u32,
}

/// The shares of a window's time by what limited the sender. They add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// The application: no data to send or in flight.
    pub idle: f64,
    /// The peer's window (`SndLimTimeRwin` of RFC 4898).
    pub receiver: f64,
    /// The send buffer (`SndLimTimeSnd`).
    pub send_buffer: f64,
    /// None of these: the congestion window, pacing, or the round trip of the data in flight.
    pub network: f64,
}

/// The unit in which a receiver measures round trips: that of TCP timestamps (the kernel's TCP_TS_HZ).
const TICK: Duration = Duration::from_millis(1);

/// Sums over pairs of figures, each minus its mean: the sum of the products, and the sums of the
/// squares.
#[derive(Default)]
struct Moments {
    both: f64,
    first: f64,
    second: f64,
}

/// Returns the round trip that a receiver has measured. By timestamps it may be a tick too short, which on a short path
/// is most of it: then it is the shortest that this end has measured by acknowledgements, in microseconds.
pub fn receiver_rtt(info: &TcpInfo) -> Option<Duration> {
    let measured = info.rcv_rtt?;
    let in_doubt = measured..=measured + TICK;
    let exact = { info.min_rtt }.filter(|rtt| info.timestamps && in_doubt.contains(rtt));
    Some(exact.unwrap_or(measured))
}

// === impl Sample ===

impl Sample {
    /// Returns its `tcp_info`; `None` during a handshake.
    pub fn info(&self) -> Option<&TcpInfo> {
        self.connection.info.as_ref()
    }

    /// Moves the sample to another time, between which and its own the connection does not change.
    pub(crate) fn move_to(&mut self, at: Duration) {
        if let Some(info) = &mut self.connection.info {
            let times = info.idle_times();
            info.set_idle_times(match at.checked_sub(self.at) {
                Some(by) => times.aged(by),
                None => times.before(self.at - at),
            });
        }
        self.at = at;
    }
}

// === impl SampleRef ===

impl<'a> SampleRef<'a> {
    /// Returns the sample at `at`. `last`: the last sample that shares its data.
    pub(crate) fn new(at: Duration, last: &'a Sample, has_info: bool) -> Self {
        Self {
            at,
            connection: &last.connection,
            last,
            has_info,
        }
    }

    /// Returns its `tcp_info`; `None` during a handshake.
    pub fn info(&self) -> Option<&'a TcpInfo> {
        self.connection.info.as_ref()
    }

    /// Returns the time since the last acknowledgement.
    pub fn since_last_ack(&self) -> Option<Duration> {
        let later = self.last.at.saturating_sub(self.at);
        Some(self.info()?.last_ack_recv.saturating_sub(later))
    }
}

impl<'a> From<&'a Sample> for SampleRef<'a> {
    fn from(sample: &'a Sample) -> Self {
        Self::new(sample.at, sample, sample.info().is_some())
    }
}

// === impl Window ===

impl<'a> Window<'a> {
    /// Returns the window over these samples, oldest first. `None` if fewer than two samples have
    /// `tcp_info`, or if no time passed between them.
    pub fn of(samples: impl IntoIterator<Item: Into<SampleRef<'a>>>) -> Option<Self> {
        let all = samples.into_iter();
        let mut samples = Vec::with_capacity(all.size_hint().0);
        samples.extend(all.map(Into::into).filter(|sample| sample.has_info));
        let (first, last) = (*samples.first()?, *samples.last()?);
        (first.at < last.at).then_some(Self {
            first: first.info()?,
            last: last.info()?,
            samples,
            path_rtt: None,
        })
    }

    /// Sets the shortest round trip of all connections to the peer. A connection that began while a
    /// queue stood in the path has never seen the path without it.
    #[must_use]
    pub fn on_path(self, shortest: Option<Duration>) -> Self {
        Self {
            path_rtt: shortest,
            ..self
        }
    }

    /// Returns the round trip of the path without queues, as far as it is known: the shortest of
    /// this connection and of all others to the peer. `None` if there is none, or if it is zero.
    pub fn shortest_rtt(&self) -> Option<Duration> {
        let own = self.range(|info| info.min_rtt).map(|range| range.0);
        let all = own.into_iter().chain(self.path_rtt);
        all.min().filter(|rtt| !rtt.is_zero())
    }

    /// Returns the longest round trip of the window; `None` if events are not counted, or if none
    /// was measured.
    pub(crate) fn longest_rtt(&self) -> Option<Duration> {
        let later = self.samples.get(1..).unwrap_or_default();
        let longest = later.iter().filter_map(|sample| {
            let events = sample.connection.internals?.events?;
            Some(events.rtt_most_recent)
        });
        longest.max().filter(|rtt| !rtt.is_zero())
    }

    /// Returns the rates of the fastest train of acknowledgements of each scan that has one, in
    /// bytes a second. Empty if events are not counted.
    pub(crate) fn train_rates(&self) -> Vec<f64> {
        let events = |sample: &SampleRef<'_>| sample.connection.internals?.events;
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        let rates = pairs.filter_map(|(before, sample)| {
            let (before, events) = (events(before)?, events(sample)?);
            let mss = sample.info()?.snd_mss;
            let rate = f64::from(events.train_most_recent) * f64::from(mss);
            // Samples repeat while nothing changes.
            (events.trains != before.trains && rate > 0.0).then_some(rate)
        });
        rates.collect()
    }

    /// Returns `tcp_info` of all samples, oldest first.
    pub fn infos(&self) -> impl Iterator<Item = &'a TcpInfo> {
        self.samples.iter().filter_map(|sample| sample.info())
    }

    /// Returns all samples, oldest first.
    pub fn samples(&self) -> &[SampleRef<'a>] {
        &self.samples
    }

    /// Returns `tcp_info` of the first sample.
    pub fn first(&self) -> &'a TcpInfo {
        self.first
    }

    /// Returns `tcp_info` of the last sample.
    pub fn last(&self) -> &'a TcpInfo {
        self.last
    }

    /// Returns the time from the first sample to the last.
    pub fn elapsed(&self) -> Duration {
        let at = |sample: Option<&SampleRef<'_>>| sample.map_or(Duration::ZERO, |sample| sample.at);
        at(self.samples.last()).saturating_sub(at(self.samples.first()))
    }

    /// Returns by how much a count grew; 0 if the kernel does not report it.
    pub fn more<T: Into<u64>>(&self, of: impl Fn(&TcpInfo) -> Option<T>) -> u64 {
        match (of(self.first), of(self.last)) {
            (Some(first), Some(last)) => last.into().saturating_sub(first.into()),
            _ => 0,
        }
    }

    /// Returns by how much a 32-bit count grew, even if it wrapped around.
    pub fn more_wrapping(&self, of: impl Fn(&TcpInfo) -> Option<u32>) -> u32 {
        match (of(self.first), of(self.last)) {
            (Some(first), Some(last)) => last.wrapping_sub(first),
            _ => 0,
        }
    }

    /// Returns by how much a time grew.
    pub fn longer(&self, of: impl Fn(&TcpInfo) -> Option<Duration>) -> Duration {
        match (of(self.first), of(self.last)) {
            (Some(first), Some(last)) => last.saturating_sub(first),
            _ => Duration::ZERO,
        }
    }

    /// Returns the events between the first sample and the last; `None` if they are not counted.
    pub(crate) fn event_delta(&self) -> Option<EventDelta> {
        let events = |sample: Option<&SampleRef<'_>>| sample?.connection.internals?.events;
        let (first, last) = (self.samples.first(), self.samples.last());
        Some(EventDelta::between(&events(first)?, &events(last)?))
    }

    /// Returns the rate of payload that the peer acknowledged, in bytes a second.
    pub fn sent_rate(&self) -> f64 {
        self.more(|info| info.bytes_acked) as f64 / self.elapsed().as_secs_f64()
    }

    /// Returns the rate of payload that the peer acknowledged, over the time in which data was in
    /// flight or waited, in bytes a second. A path or a buffer limits the sender to this rate,
    /// whatever the application's pauses. Without the kernel's account of that time, the same as
    /// [`Window::sent_rate`].
    pub fn busy_rate(&self) -> f64 {
        let busy = match self.longer(|info| info.busy_time).min(self.elapsed()) {
            Duration::ZERO => self.elapsed(),
            busy => busy,
        };
        self.more(|info| info.bytes_acked) as f64 / busy.as_secs_f64()
    }

    /// Returns the rate of payload received in order, in bytes a second.
    pub fn received_rate(&self) -> f64 {
        self.more(|info| info.bytes_received) as f64 / self.elapsed().as_secs_f64()
    }

    /// Returns the share of data segments that were lost: retransmitted, and not reported as
    /// duplicates by the peer.
    pub fn loss(&self) -> f64 {
        match self.more_wrapping(|info| info.data_segs_out) {
            0 => 0.0,
            sent => f64::from(self.repeated()) / f64::from(sent),
        }
    }

    /// Returns how many segments were retransmitted and not reported as duplicates by the peer.
    pub fn repeated(&self) -> u32 {
        self.repeated_after(self.first)
    }

    /// Like [`Window::repeated`], but after the first sample that is not before `since`; in the
    /// whole window if that is the last sample.
    pub(crate) fn repeated_since(&self, since: Duration) -> RepeatedSince {
        let but_last = &self.samples[..self.samples.len() - 1];
        let mut infos = but_last
            .iter()
            .skip_while(|sample| sample.at < since)
            .filter_map(SampleRef::info);
        let first = infos.next().unwrap_or(self.first);
        let in_flight = u64::from(first.unacked) * u64::from(first.snd_mss);
        let answered = first
            .bytes_acked
            .map(|acked| acked.saturating_add(in_flight));
        let later = infos.find(|info| info.bytes_acked >= answered);
        RepeatedSince {
            all: self.repeated_after(first),
            later: self.repeated_after(later.unwrap_or(first)),
        }
    }

    fn repeated_after(&self, first: &TcpInfo) -> u32 {
        let more = |of: fn(&TcpInfo) -> Option<u32>| match (of(first), of(self.last)) {
            (Some(first), Some(last)) => last.wrapping_sub(first),
            _ => 0,
        };
        let again = more(|info| Some(info.total_retrans));
        again.saturating_sub(more(|info| info.dsack_dups))
    }

    /// Returns the share of the time in which the peer's window was filling: the window's right
    /// edge moved by less than half of the bytes acknowledged, so the rest waits to be read. Time
    /// during loss recovery does not count, because later data then waits for the lost segment.
    /// Returns 0 if the kernel does not report the window (before Linux 5.4).
    pub fn filled(&self) -> f64 {
        let mut filled = Duration::ZERO;
        let samples = self.samples.iter().filter_map(|sample| {
            let info = sample.info()?;
            let is_whole = info.ca_state == CaState::Open && info.sacked == 0;
            Some((
                sample.at,
                info.bytes_acked?,
                u64::from(info.snd_wnd?),
                is_whole,
            ))
        });
        let mut before = None;
        for (at, acked, window, is_whole) in samples {
            if let Some((from, acked_before, end)) =
                before.replace((at, acked, acked.saturating_add(window)))
            {
                let came = acked.saturating_sub(acked_before);
                let read = acked.saturating_add(window).saturating_sub(end);
                if read < came / 2 && is_whole {
                    filled += at.saturating_sub(from);
                }
            }
        }
        filled.as_secs_f64() / self.elapsed().as_secs_f64()
    }

    /// Returns the mean share of the peer's buffer that holds unread data: how far its window is
    /// below the widest that it has offered so far, as a share of the widest. Samples during loss
    /// recovery do not count, as in [`Window::filled`]. `None` if the kernel does not report the
    /// window (before Linux 5.4).
    pub fn unread_share(&self) -> Option<f64> {
        let (mut widest, mut sum, mut count) = (0, 0.0, 0.0);
        for sample in &self.samples {
            let Some(info) = sample.info() else { continue };
            let snd_wnd = info.snd_wnd?;
            let ever = sample.connection.internals.map_or(0, |i| i.max_window);
            widest = widest.max(ever).max(snd_wnd);
            if info.ca_state == CaState::Open && info.sacked == 0 && widest > 0 {
                sum += 1.0 - f64::from(snd_wnd) / f64::from(widest);
                count += 1.0;
            }
        }
        (count > 0.0).then(|| sum / count)
    }

    /// Returns the shares of the time by what limited the sender; `None` if the kernel does not
    /// report them (before Linux 4.10).
    pub fn shares(&self) -> Option<Shares> {
        self.last.busy_time?;
        let elapsed = self.elapsed().as_secs_f64();
        let share = |time: Duration| (time.as_secs_f64() / elapsed).clamp(0.0, 1.0);
        let busy = share(self.longer(|info| info.busy_time));
        let receiver = share(self.longer(|info| info.rwnd_limited)).min(busy);
        let send_buffer = share(self.longer(|info| info.sndbuf_limited)).min(busy - receiver);
        Some(Shares {
            idle: 1.0 - busy,
            receiver,
            send_buffer,
            network: busy - receiver - send_buffer,
        })
    }

    /// Returns the mean of a figure over the samples that have it.
    pub fn mean(&self, of: impl Fn(&TcpInfo) -> Option<f64>) -> Option<f64> {
        mean(self.infos().filter_map(of))
    }

    /// Returns the mean time since the last acknowledgement, in seconds, over the samples for which
    /// `is` returns true.
    pub fn mean_since_last_ack(&self, is: impl Fn(&TcpInfo) -> bool) -> Option<f64> {
        let samples = self
            .samples
            .iter()
            .filter(|sample| sample.info().is_some_and(&is));
        mean(samples.filter_map(|sample| Some(sample.since_last_ack()?.as_secs_f64())))
    }

    /// Returns the mean of a time, in seconds, over the samples that have it.
    pub fn mean_seconds(&self, of: impl Fn(&TcpInfo) -> Option<Duration>) -> Option<f64> {
        self.mean(|info| of(info).map(|time| time.as_secs_f64()))
    }

    /// Divides the window into parts of at least length `part`. Returns the rate of acknowledged
    /// payload in each, in bytes a second.
    pub fn sent_rates(&self, part: Duration) -> Vec<f64> {
        let mut rates = Vec::new();
        let mut from: Option<(Duration, u64)> = None;
        for sample in &self.samples {
            let Some(acked) = sample.info().and_then(|info| info.bytes_acked) else {
                continue;
            };
            let Some((at, before)) = from else {
                from = Some((sample.at, acked));
                continue;
            };
            let time = sample.at.saturating_sub(at);
            if time >= part {
                rates.push(acked.saturating_sub(before) as f64 / time.as_secs_f64());
                from = Some((sample.at, acked));
            }
        }
        rates
    }

    /// Returns Pearson's correlation coefficient of two figures, from -1 to 1, over the samples
    /// that have both. `None` if fewer than four samples have both, or if one figure is constant.
    pub fn correlation(
        &self,
        one: impl Fn(&TcpInfo) -> Option<f64>,
        other: impl Fn(&TcpInfo) -> Option<f64>,
    ) -> Option<f64> {
        let moments = self.moments(one, other)?;
        let all = (moments.first * moments.second).sqrt();
        (all > 0.0).then(|| moments.both / all)
    }

    fn moments(
        &self,
        one: impl Fn(&TcpInfo) -> Option<f64>,
        other: impl Fn(&TcpInfo) -> Option<f64>,
    ) -> Option<Moments> {
        let pairs = self
            .infos()
            .filter_map(|info| Some((one(info)?, other(info)?)));
        let pairs: Vec<_> = pairs.collect();
        if pairs.len() < 4 {
            return None;
        }
        let count = pairs.len() as f64;
        let sums = pairs.iter().fold((0.0, 0.0), |s, p| (s.0 + p.0, s.1 + p.1));
        let means = (sums.0 / count, sums.1 / count);
        let mut moments = Moments::default();
        for (a, b) in pairs {
            let (a, b) = (a - means.0, b - means.1);
            moments.both += a * b;
            moments.first += a * a;
            moments.second += b * b;
        }
        Some(moments)
    }

    /// Returns the slope of `other` over `one` (least squares). `None` as in
    /// [`Window::correlation`].
    pub fn slope(
        &self,
        one: impl Fn(&TcpInfo) -> Option<f64>,
        other: impl Fn(&TcpInfo) -> Option<f64>,
    ) -> Option<f64> {
        let moments = self.moments(one, other)?;
        (moments.first > 0.0).then(|| moments.both / moments.first)
    }

    /// Returns the share of the busy samples for which `is` returns true. In the others nothing
    /// waits and nothing is in flight, so they say nothing about what limits the sender while it
    /// sends; the kernel accounts for that time exactly.
    pub fn often(&self, is: impl Fn(&TcpInfo) -> bool) -> f64 {
        self.often_of_samples(|_, info| is(info))
    }

    /// Like [`Window::often`], but `is` receives the whole sample.
    pub fn often_of_samples(&self, is: impl Fn(&SampleRef<'_>, &TcpInfo) -> bool) -> f64 {
        let (mut so, mut count) = (0u32, 0u32);
        for sample in &self.samples {
            let Some(info) = sample.info().filter(|info| is_busy(info)) else {
                continue;
            };
            so += u32::from(is(sample, info));
            count += 1;
        }
        f64::from(so) / f64::from(count.max(1))
    }

    /// Returns the smallest and the largest value of a figure.
    pub fn range<T: Ord + Copy>(&self, of: impl Fn(&TcpInfo) -> Option<T>) -> Option<(T, T)> {
        let mut values = self.infos().filter_map(of);
        let first = values.next()?;
        Some(values.fold((first, first), |(least, most), value| {
            (least.min(value), most.max(value))
        }))
    }
}

/// Returns the mean of the values; `None` without any.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

/// Whether data waits to be sent or is in flight.
fn is_busy(info: &TcpInfo) -> bool {
    info.unacked > 0 || info.notsent_bytes.is_some_and(|bytes| bytes > 0)
}

#[cfg(test)]
pub(crate) mod tests;
