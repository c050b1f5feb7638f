//! `taut relay status`, `sessions`, `end`, `drain`, `reload` and `upgrade`: commands to a running relay.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand};
use taut_observe::versioned::Versioned;
use taut_relay::control::protocol::{
    AddressState, AddressStatus, Answer, Filter, ForwardStatus, MembersStatus, PeerStatus, Request,
    SessionRow, Status,
};
use taut_relay::control::{self, MAX_ROWS};
use taut_sys::plural::counted;

use crate::failure::Failure;
use crate::table::{self, figure, text};

/// A command to a running relay.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show the state of the running relay: forwards, next relays, limits, and what is broken
    #[command(after_help = "Example:
  taut relay status --json | jq .")]
    Status(Socket),
    /// List the open sessions
    #[command(after_help = "Example:
  taut relay sessions --client 192.0.2.0/24")]
    Sessions {
        #[command(flatten)]
        which: Which,
        /// Maximum number of sessions to list, up to 10000
        #[arg(long, default_value_t = 1000, help_heading = "Output")]
        limit: usize,
        #[command(flatten)]
        socket: Socket,
    },
    /// Reset sessions; at least one of the filters is required
    #[command(after_help = "Example:
  taut relay end --forward web --client 192.0.2.7")]
    End {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        socket: Socket,
    },
    /// Accept no more connections, at one forward or at all, or lead new sessions around a next relay or an address of
    /// a destination; open sessions continue
    ///
    /// Without --forward, --peer and --address the relay stops after its last session or relay.drain_timeout, as after
    /// SIGTERM.
    #[command(after_help = "Examples:
  taut relay drain                  before this machine goes down
  taut relay drain --peer fra1      before that relay does
  taut relay drain --peer fra1 --undo
  taut relay drain --address 192.0.2.10:80   before that server does")]
    Drain {
        /// Forward, by its name; it stays drained until --undo or a restart
        #[arg(long, value_name = "NAME", help_heading = "What is drained")]
        forward: Option<String>,
        /// Next relay, by its name; it stays drained until --undo or a restart
        #[arg(
            long,
            value_name = "NAME",
            conflicts_with = "forward",
            help_heading = "What is drained"
        )]
        peer: Option<String>,
        /// Address of a destination, as `taut relay status` lists it; it stays drained until --undo or a restart
        #[arg(
            long,
            value_name = "ADDRESS:PORT",
            conflicts_with_all = ["forward", "peer"],
            help_heading = "What is drained"
        )]
        address: Option<String>,
        /// Accept connections at the forward, or lead sessions to the relay or the address, again
        #[arg(long, help_heading = "What is drained")]
        undo: bool,
        #[command(flatten)]
        socket: Socket,
    },
    /// Reload the configuration and show the result
    #[command(after_help = "Example:
  taut relay --check && taut relay reload")]
    Reload(Socket),
    /// Replace the running relay by a new process of this program, and lose no connection
    ///
    /// The new process has the command line and the log of the running one. It takes the listening sockets over,
    /// interception included; the running one drains. If the new process cannot start, the running one continues.
    #[command(after_help = "Examples:
  taut relay upgrade        after the program has been replaced, or a setting
                            has changed that a reload cannot change
  systemctl reload taut-relay   if systemd has started the relay")]
    Upgrade(super::upgrade::Args),
}

/// Which relay, and how to print its answer.
#[derive(Args)]
pub(crate) struct Socket {
    /// Control socket of the relay (relay.control)
    #[arg(long, value_name = "PATH", default_value = control::PATH, help_heading = "The relay")]
    control: PathBuf,
    /// Print the answer as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Which sessions; all that are given must match.
#[derive(Args)]
pub(crate) struct Which {
    /// Session, by its number in the list
    #[arg(long, value_name = "ID", help_heading = "Sessions")]
    session: Option<String>,
    /// Sessions of this forward
    #[arg(long, value_name = "NAME", help_heading = "Sessions")]
    forward: Option<String>,
    /// Sessions through this next relay
    #[arg(long, value_name = "NAME", help_heading = "Sessions")]
    peer: Option<String>,
    /// Sessions of clients in this network, or with this address
    #[arg(long, value_name = "PREFIX", help_heading = "Sessions")]
    client: Option<String>,
}

impl From<Which> for Filter {
    fn from(which: Which) -> Self {
        Self {
            id: which.session,
            forward: which.forward,
            peer: which.peer,
            client: which.client,
        }
    }
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    let (request, socket) = match command {
        Command::Status(socket) => (Request::Status, socket),
        Command::Sessions {
            which,
            limit,
            socket,
        } => {
            let (filter, limit) = (which.into(), limit.min(MAX_ROWS));
            (Request::Sessions { filter, limit }, socket)
        }
        Command::End { which, socket } => {
            let filter = which.into();
            (Request::End { filter }, socket)
        }
        Command::Drain {
            forward,
            peer,
            address,
            undo,
            socket,
        } => (
            Request::Drain {
                forward,
                peer,
                address,
                undo,
            },
            socket,
        ),
        Command::Reload(socket) => (Request::Reload, socket),
        Command::Upgrade(args) => return super::upgrade::run(&args),
    };
    let run = |e: &dyn std::fmt::Display| Failure::Run(e.to_string());
    let answer = control::ask(&socket.control, &request).map_err(|e| run(&e))?;
    let text = match socket.json {
        true => Versioned::new(&answer).pretty().map_err(|e| run(&e))?,
        false => super::plain(&in_words(&answer)),
    };
    crate::failure::print(&text)
}

fn in_words(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => status_in_words(status),
        Answer::Sessions { sessions, matching } => sessions_in_words(sessions, *matching),
        Answer::Ended { sessions } => format!("{} reset\n", counted(*sessions, "session")),
        Answer::Done { notes } => notes.iter().map(|note| format!("{note}\n")).collect(),
        Answer::Error(error) => format!("{error}\n"),
        // Only `taut mesh` asks for these.
        Answer::Mesh(_) | Answer::Rtt(_) => String::new(),
    }
}

fn status_in_words(status: &Status) -> String {
    let per_source = status.max_sessions_per_source;
    let per_source = per_source.map_or_else(String::new, |n| format!(", {n} per source"));
    let queued = match status.queued {
        0 => String::new(),
        n => format!(", {} in the queue for a place", counted(n, "client")),
    };
    let mut text = format!(
        "taut relay {}, process {}, up {}{}\n{} of {}{per_source}{queued}; {}\n",
        status.version,
        status.pid,
        duration(status.uptime),
        if status.draining { ", draining" } else { "" },
        status.sessions,
        counted(status.max_sessions, "session"),
        counted(status.workers, "worker"),
    );
    text.push_str("\nforwards\n");
    for forward in &status.forwards {
        let to = forward
            .to
            .as_deref()
            .map_or_else(String::new, |to| format!(" to {to}"));
        let listen = match (forward.drained, forward.listen.is_empty()) {
            (true, _) => "drained".to_owned(),
            (false, true) => "no longer configured".to_owned(),
            (false, false) => forward.listen.join(", "),
        };
        text.push_str(&format!(
            "  {}: {listen}{to}; {}, {} up, {} down\n",
            forward.name,
            counted(forward.sessions, "session"),
            ByteSize(forward.to_upstream),
            ByteSize(forward.to_client),
        ));
        text.push_str(&addresses_in_words(forward));
    }
    if !status.peers.is_empty() {
        text.push_str("\nnext relays\n");
    }
    for peer in &status.peers {
        text.push_str(&format!(
            "  {}: {}{} ready; {}, {} sent, {} received{}\n",
            peer.name,
            if peer.drained { "drained; " } else { "" },
            counted(peer.ready, "connection"),
            counted(peer.sessions, "session"),
            ByteSize(peer.sent),
            ByteSize(peer.received),
            leg(peer),
        ));
    }
    if let Some(memory) = &status.window_memory {
        text.push_str(&format!(
            "\nwindows between relays\n  {} of memory in use, {} promised beyond 4 MiB each; budget {}\n",
            ByteSize(memory.used),
            ByteSize(memory.promised),
            ByteSize(memory.budget),
        ));
    }
    if let Some(members) = &status.members {
        text.push_str(&members_in_words(members));
    }
    text.push_str(match status.broken.is_empty() {
        true => "\nnothing is broken\n",
        false => "\nbroken\n",
    });
    for broken in &status.broken {
        let subject = match broken.subject.is_empty() {
            true => String::new(),
            false => format!(" {}", broken.subject),
        };
        text.push_str(&format!(
            "  {}{subject}: {}, for {}; {} affected\n",
            broken.condition,
            broken.cause,
            duration(broken.seconds),
            broken.affected,
        ));
    }
    text
}

/// Returns the addresses of a forward, a line each, if there is something to say of them: more than one, or one
/// that is not up.
fn addresses_in_words(forward: &ForwardStatus) -> String {
    if let []
    | [
        AddressStatus {
            state: AddressState::Up,
            ..
        },
    ] = forward.addresses[..]
    {
        return String::new();
    }
    let mut text = String::new();
    for address in &forward.addresses {
        let state = match address.state {
            AddressState::NoAddress => "has no address".to_owned(),
            AddressState::Drained => "drained".to_owned(),
            AddressState::Up => "up".to_owned(),
            AddressState::Down => format!(
                "down for {}, {}",
                duration(address.seconds.unwrap_or(0.0)),
                address.cause.as_deref().unwrap_or("unknown")
            ),
        };
        let (address, sessions) = (&address.address, counted(address.sessions, "session"));
        text.push_str(&format!("    {address}: {state}; {sessions}\n"));
    }
    if forward.addresses_left_out > 0 {
        text.push_str(&format!(
            "    and {}\n",
            counted(forward.addresses_left_out, "more address")
        ));
    }
    text
}

/// Returns the list of members in words, and where it comes from.
fn members_in_words(members: &MembersStatus) -> String {
    let serial = members
        .serial
        .map_or_else(String::new, |n| format!(", signed, serial {n}"));
    let expires = members
        .expires_in
        .map_or_else(String::new, |left| match left < 0.0 {
            true => format!(", expired {} ago", duration(-left)),
            false => format!(", expires in {}", duration(left)),
        });
    let mut text = format!("\nmembers\n  {}{serial}{expires}\n", members.count);
    let Some(etcd) = &members.etcd else {
        return text;
    };
    let read = etcd.read_age.map_or_else(
        || "the list has not been read".to_owned(),
        |age| format!("list read {} ago", duration(age)),
    );
    let state = if etcd.connected {
        "connected"
    } else {
        "not connected"
    };
    text.push_str(&format!(
        "  etcd: {}, {state}, {read}; {} of {} announced",
        etcd.endpoint,
        etcd.present,
        counted(members.count, "relay")
    ));
    match etcd.absent.is_empty() {
        true => text.push('\n'),
        false => text.push_str(&format!(", not {}\n", etcd.absent.join(", "))),
    }
    if let Some(refusal) = &etcd.refusal {
        text.push_str(&format!("  the list in etcd is refused: {refusal}\n"));
    }
    if let Some(failure) = etcd.last_failure.as_ref().filter(|_| !etcd.connected) {
        text.push_str(&format!("  {failure}\n"));
    }
    if let Some(failure) = &etcd.announcement {
        text.push_str(&format!("  announcing this relay fails: {failure}\n"));
    }
    text
}

fn sessions_in_words(sessions: &[SessionRow], matching: u64) -> String {
    if matching == 0 {
        return "no session is open, or none matches\n".to_owned();
    }
    let columns = [
        text("ID"),
        text("FORWARD"),
        text("CLIENT"),
        text("UPSTREAM"),
        text("PEER"),
        text("STATE"),
        figure("AGE"),
        figure("UP"),
        figure("DOWN"),
    ];
    let row = |row: &SessionRow| {
        vec![
            row.id.clone(),
            row.forward.clone(),
            row.client.to_string(),
            row.upstream
                .map_or_else(|| "-".to_owned(), |addr| addr.to_string()),
            row.peer.clone().unwrap_or_else(|| "-".to_owned()),
            row.state.clone(),
            duration(row.age),
            ByteSize(row.to_upstream).to_string(),
            ByteSize(row.to_client).to_string(),
        ]
    };
    let mut text = table::table(&columns, sessions.iter().map(row));
    let listed = sessions.len() as u64;
    if listed < matching {
        text.push_str(&format!(
            "{listed} of {}; --limit lists more\n",
            counted(matching, "session")
        ));
    }
    text
}

/// Returns what is known of the leg to a relay, as the end of a line.
fn leg(peer: &PeerStatus) -> String {
    let window = peer.window.map_or_else(String::new, |window| {
        format!("; window {}", ByteSize(window.into()))
    });
    let rate = peer.rate.map_or_else(String::new, |rate| {
        format!(
            "; {} Mbit/s reach it, {} active",
            rate.saturating_mul(8) / 1_000_000,
            counted(peer.active, "connection")
        )
    });
    window + &rate
}

fn duration(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    humantime::format_duration(Duration::from_secs(seconds.as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cannot_control_the_terminal() {
        let answer = Answer::Done {
            notes: vec!["a\u{1b}[2Jb\rc".to_owned()],
        };
        assert_eq!(super::super::plain(&in_words(&answer)), "a[2Jbc\n");
    }
}
