//! The protocol between the lab and a guest: a line of JSON for each request and each answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The port for requests.
pub(in crate::experiment) const CONTROL: u16 = 5000;
/// The port for streams.
pub(in crate::experiment) const STREAMS: u16 = 5001;

/// The maximum length of a line: about a thousand samples of flows.
const LONGEST: u64 = 4 * 1024 * 1024;

/// A request to a guest.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(in crate::experiment) enum Ask {
    /// Reads the clock.
    Clock,
    /// Changes the settings for receiving from now on.
    Settings(Settings),
    /// Allocates memory for `streams` streams of `bytes` bytes each.
    Expect { streams: usize, bytes: usize },
    /// Reads TCP's counters.
    Counters,
    /// Sends a stream to another guest.
    Send(Send),
    /// Starts a program.
    Start(Start),
    /// Runs a program until it ends.
    Run(Start),
    /// Writes a file.
    Write { path: String, text: String },
    /// Serves blocks on this port from now on.
    Serve { port: u16 },
    /// Sends as fast as possible over all these connections at once.
    Flows { flows: Vec<Flow> },
}

/// A connection over which a guest sends as fast as possible.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Flow {
    pub(in crate::experiment) to: SocketAddr,
    pub(in crate::experiment) congestion_control: String,
    /// How long the guest sends.
    pub(in crate::experiment) time: Duration,
    /// The interval between samples.
    pub(in crate::experiment) interval: Duration,
}

/// The result of flows.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Flowed {
    /// The result of each flow.
    pub(in crate::experiment) flows: Vec<FlowEnd>,
    /// The counters of the guest's TCP during the flows.
    pub(in crate::experiment) counted: Counters,
}

/// The result of one flow.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct FlowEnd {
    /// Acknowledged payload, in bytes.
    pub(in crate::experiment) acked: u64,
    /// Retransmitted segments.
    pub(in crate::experiment) repeated: u32,
    pub(in crate::experiment) samples: Vec<FlowSample>,
}

/// A sample of a flow. Times are in microseconds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct FlowSample {
    /// The time since the flow's start.
    pub(in crate::experiment) at: u64,
    /// The smoothed round-trip time.
    pub(in crate::experiment) srtt: u64,
    /// The retransmission time-out.
    pub(in crate::experiment) rto: u64,
    /// The congestion window, in segments.
    pub(in crate::experiment) cwnd: u32,
    /// The pacing rate, in bytes per second.
    pub(in crate::experiment) pacing: u64,
    /// Acknowledged payload, in bytes.
    pub(in crate::experiment) acked: u64,
}

/// The result of a program.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Ran {
    /// The program's exit status; `None` if it was killed.
    pub(in crate::experiment) status: Option<i32>,
    /// The end of its standard output and standard error.
    pub(in crate::experiment) said: String,
}

/// A program for a guest to run, from the host's file system.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Start {
    /// The program's name. Starting a program kills a running one of the same name.
    pub(in crate::experiment) name: String,
    pub(in crate::experiment) program: String,
    pub(in crate::experiment) args: Vec<String>,
    /// The environment, in addition to the guest's own.
    pub(in crate::experiment) env: Vec<(String, String)>,
}

/// The settings of a guest's TCP for receiving.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(in crate::experiment) struct Settings {
    /// `net.ipv4.tcp_rmem`: minimum, default and maximum, in bytes.
    pub(in crate::experiment) rmem: [u32; 3],
    /// The initial receive window of a connection in segments, set on the route; 0 keeps the
    /// kernel's default.
    pub(in crate::experiment) initrwnd: u32,
}

/// A stream for a guest to send.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Send {
    pub(in crate::experiment) to: SocketAddr,
    pub(in crate::experiment) seed: u64,
    pub(in crate::experiment) bytes: usize,
    /// Whether CUBIC ends slow start when round trips become longer (RFC 9406).
    pub(in crate::experiment) hystart: bool,
}

/// A guest's answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::experiment) enum Answer {
    /// The guest's clock, in nanoseconds.
    Clock(u64),
    /// The request is done.
    Done,
    /// TCP's counters.
    Counters(Counters),
    /// The stream has been sent and received.
    Sent(Sent),
    /// The program has ended.
    Ran(Ran),
    /// The flows have ended.
    Flowed(Flowed),
    /// The request failed.
    Failed(String),
}

/// TCP's counters of losses, real and assumed, from `/proc/net/netstat` and `/proc/net/snmp`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub(in crate::experiment) struct Counters {
    /// Segments dropped because the socket's memory was used up.
    pub(in crate::experiment) rcv_q_drop: u64,
    /// Segments dropped because the window was closed.
    pub(in crate::experiment) zero_window_drop: u64,
    /// Segments with an old timestamp.
    pub(in crate::experiment) paws: u64,
    /// Out-of-order segments dropped for lack of memory.
    pub(in crate::experiment) ofo_pruned: u64,
    /// How often the receive queue was collapsed.
    pub(in crate::experiment) pruned: u64,
    /// Slow starts that ended because round trips became longer (RFC 9406).
    pub(in crate::experiment) hystart: u64,
    /// Tail loss probes that the sender assumed to have repaired a loss.
    pub(in crate::experiment) loss_probe_recoveries: u64,
    /// Retransmission time-outs.
    pub(in crate::experiment) timeouts: u64,
    /// Retransmission time-outs that F-RTO found spurious (RFC 5682).
    #[serde(default)]
    pub(in crate::experiment) spurious: u64,
    /// Window reductions that were undone because no segment had been lost.
    #[serde(default)]
    pub(in crate::experiment) undone: u64,
    /// Retransmitted segments.
    #[serde(default)]
    pub(in crate::experiment) repeated: u64,
    /// Tail loss probes.
    #[serde(default)]
    pub(in crate::experiment) loss_probes: u64,
    /// Segments that the receiver reported as duplicates (RFC 2883).
    #[serde(default)]
    pub(in crate::experiment) duplicates: u64,
    /// Segments received out of order or twice; each was answered with a duplicate ACK.
    #[serde(default)]
    pub(in crate::experiment) answered_again: u64,
}

/// A receiving application's report on a stream. Times are on the guest's clock, in nanoseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Received {
    /// When the connection was accepted.
    pub(in crate::experiment) accepted: u64,
    /// When the first byte could be read.
    pub(in crate::experiment) first: u64,
    /// When the last byte had been read.
    pub(in crate::experiment) last: u64,
    pub(in crate::experiment) bytes: usize,
    /// The SHA-256 of all bytes.
    pub(in crate::experiment) digest: [u8; 32],
}

/// A sender's report on a stream, including the receiver's report. Times are on the sender's clock,
/// in nanoseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(in crate::experiment) struct Sent {
    /// The time before `connect`.
    pub(in crate::experiment) connect: u64,
    /// The time before the first byte was written.
    pub(in crate::experiment) write: u64,
    /// The time when all bytes had been acknowledged.
    pub(in crate::experiment) acked: u64,
    /// The longest pause between two reads of the acknowledged bytes.
    pub(in crate::experiment) longest_pause: u64,
    /// Retransmitted segments.
    pub(in crate::experiment) repeated: u32,
    /// The slow start threshold at the end, in segments; `None` while slow start continues.
    pub(in crate::experiment) ssthresh: Option<u32>,
    /// The counters of the sender's TCP during the stream, if the sender is a guest; a guest sends
    /// no other data.
    pub(in crate::experiment) counted: Option<Counters>,
    pub(in crate::experiment) received: Received,
}

/// A connection that carries one JSON value per line.
pub(in crate::experiment) struct Lines {
    reader: BufReader<TcpStream>,
}

// === impl Lines ===

impl Lines {
    pub(in crate::experiment) fn over(
        stream: TcpStream,
        patience: Option<Duration>,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    pub(in crate::experiment) fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line)
    }

    /// Returns the next line's value; `None` at the end of the stream.
    pub(in crate::experiment) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        (&mut self.reader).take(LONGEST).read_line(&mut line)?;
        match line.is_empty() {
            true => Ok(None),
            false => Ok(Some(serde_json::from_str(&line)?)),
        }
    }
}

// === impl Counters ===

impl Counters {
    /// Parses `/proc/net/netstat` and `/proc/net/snmp`: a line of names and a line of figures.
    pub(super) fn parse(netstat: &str) -> Self {
        let figure = |name: &str| {
            netstat
                .lines()
                .zip(netstat.lines().skip(1))
                .find_map(|(names, figures)| {
                    let at = names.split_whitespace().position(|word| word == name)?;
                    figures.split_whitespace().nth(at)?.parse().ok()
                })
        };
        let figure = |name: &str| figure(name).unwrap_or(0);
        Self {
            rcv_q_drop: figure("TCPRcvQDrop"),
            zero_window_drop: figure("TCPZeroWindowDrop"),
            paws: figure("PAWSEstab"),
            ofo_pruned: figure("OfoPruned"),
            pruned: figure("PruneCalled"),
            hystart: figure("TCPHystartTrainDetect") + figure("TCPHystartDelayDetect"),
            loss_probe_recoveries: figure("TCPLossProbeRecovery"),
            timeouts: figure("TCPTimeouts"),
            spurious: figure("TCPSpuriousRTOs"),
            undone: [
                "TCPFullUndo",
                "TCPPartialUndo",
                "TCPDSACKUndo",
                "TCPLossUndo",
            ]
            .map(figure)
            .iter()
            .sum(),
            repeated: figure("RetransSegs"),
            loss_probes: figure("TCPLossProbes"),
            duplicates: figure("TCPDSACKRecv"),
            answered_again: figure("TCPOFOQueue") + figure("TCPDSACKOldSent"),
        }
    }

    /// Returns the difference from an earlier reading.
    pub(in crate::experiment) fn since(&self, before: &Self) -> Self {
        Self {
            rcv_q_drop: self.rcv_q_drop - before.rcv_q_drop,
            zero_window_drop: self.zero_window_drop - before.zero_window_drop,
            paws: self.paws - before.paws,
            ofo_pruned: self.ofo_pruned - before.ofo_pruned,
            pruned: self.pruned - before.pruned,
            hystart: self.hystart - before.hystart,
            loss_probe_recoveries: self.loss_probe_recoveries - before.loss_probe_recoveries,
            timeouts: self.timeouts - before.timeouts,
            spurious: self.spurious - before.spurious,
            undone: self.undone - before.undone,
            repeated: self.repeated - before.repeated,
            loss_probes: self.loss_probes - before.loss_probes,
            duplicates: self.duplicates - before.duplicates,
            answered_again: self.answered_again - before.answered_again,
        }
    }

    /// Returns the number of segments lost for lack of memory.
    pub(in crate::experiment) fn lost(&self) -> u64 {
        self.rcv_q_drop + self.zero_window_drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_their_names() {
        let text = "TcpExt: SyncookiesSent PAWSEstab TCPRcvQDrop TCPZeroWindowDrop\n\
                    TcpExt: 1 2 3 4\nIpExt: InNoRoutes PruneCalled\nIpExt: 5 6\n";
        let counters = Counters::parse(text);
        assert_eq!((counters.paws, counters.lost(), counters.pruned), (2, 7, 6));
    }
}
