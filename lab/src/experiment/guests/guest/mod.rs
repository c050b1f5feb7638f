//! `taut-lab guest`: runs in a guest, as the init of a User Mode Linux kernel.

mod blocks;
pub(super) mod burner;
mod flow;
mod network;
pub(in crate::experiment) mod programs;
mod receiver;
pub(in crate::experiment) mod talk;

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::io::Errno;
use rustix::mount::MountFlags;

use self::programs::Programs;
use self::receiver::{Entrance, Room};
use self::talk::{Answer, Ask, Counters, Lines, Settings};
use super::transfer;

/// The module parameter that enables CUBIC's HyStart.
const HYSTART: &str = "/sys/module/tcp_cubic/parameters/hystart";

/// The options of a guest at boot.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The guest's address in a /24 network.
    pub address: Ipv4Addr,
    /// The addresses and MAC addresses of the other members of the network. With them the guest
    /// need not resolve any address.
    pub neighbours: Vec<(Ipv4Addr, [u8; 6])>,
    /// Its own MAC address.
    pub mac: [u8; 6],
    /// Its CPU load, in per cent.
    pub load: u8,
    /// The name of its network device.
    pub device: String,
}

/// Runs a guest. Returns only on failure, which also ends the guest's kernel.
///
/// # Errors
/// The error, for the guest's console.
pub fn run(guest: &Guest) -> io::Result<()> {
    for (what, at) in [("proc", "/proc"), ("sysfs", "/sys")] {
        match rustix::mount::mount(what, at, what, MountFlags::empty(), None) {
            // EBUSY: already mounted.
            Ok(()) | Err(Errno::BUSY) => {}
            Err(e) => return Err(e.into()),
        }
    }
    network::configure(guest)?;
    let load = guest.load;
    if load > 0 {
        std::thread::Builder::new().spawn(move || burner::burn(load))?;
    }
    let room = Room::default();
    let mut entrance = Some(Entrance::open(talk::STREAMS, &room)?);
    let mut programs = Programs::default();
    let control = TcpListener::bind((Ipv4Addr::UNSPECIFIED, talk::CONTROL))?;
    loop {
        let (stream, _) = control.accept()?;
        // The lab has disconnected, or will connect again.
        if let Err(e) = answer_all(stream, guest, &room, &mut entrance, &mut programs) {
            eprintln!("a request was not answered: {e}");
        }
    }
}

fn answer_all(
    stream: TcpStream,
    guest: &Guest,
    room: &Room,
    entrance: &mut Option<Entrance>,
    programs: &mut Programs,
) -> io::Result<()> {
    let mut lines = Lines::over(stream, None)?;
    while let Some(ask) = lines.receive::<Ask>()? {
        let answer = match answer(ask, guest, room, entrance, programs) {
            Ok(answer) => answer,
            Err(e) => Answer::Failed(e.to_string()),
        };
        lines.say(&answer)?;
    }
    Ok(())
}

fn answer(
    ask: Ask,
    guest: &Guest,
    room: &Room,
    entrance: &mut Option<Entrance>,
    programs: &mut Programs,
) -> io::Result<Answer> {
    Ok(match ask {
        Ask::Clock => Answer::Clock(transfer::now()),
        Ask::Settings(settings) => {
            apply(&settings, guest)?;
            // A connection inherits its listener's buffers, which have the size that was set when
            // listen() was called.
            *entrance = None;
            *entrance = Some(Entrance::open(talk::STREAMS, room)?);
            Answer::Done
        }
        Ask::Expect { streams, bytes } => {
            room.expect(streams, bytes);
            Answer::Done
        }
        Ask::Counters => Answer::Counters(counters()?),
        Ask::Send(send) => {
            std::fs::write(HYSTART, u8::from(send.hystart).to_string())?;
            let bytes = transfer::bytes(send.seed, send.bytes);
            let before = counters()?;
            let mut sent = transfer::send(send.to, &bytes)?;
            sent.counted = Some(counters()?.since(&before));
            Answer::Sent(sent)
        }
        Ask::Start(start) => {
            programs.start(&start, guest)?;
            Answer::Done
        }
        Ask::Run(start) => Answer::Ran(programs.run(&start, guest)?),
        Ask::Write { path, text } => {
            std::fs::write(&path, text).map_err(|e| io::Error::other(format!("{path}: {e}")))?;
            Answer::Done
        }
        Ask::Serve { port } => {
            blocks::serve(port)?;
            Answer::Done
        }
        Ask::Flows { flows } => {
            let before = counters()?;
            let flows = flow::send(&flows)?;
            let counted = counters()?.since(&before);
            Answer::Flowed(talk::Flowed { flows, counted })
        }
    })
}

/// Returns TCP's counters in the network namespace of the calling thread.
pub(in crate::experiment) fn counters() -> io::Result<Counters> {
    let mut text = std::fs::read_to_string("/proc/thread-self/net/netstat")?;
    text += &std::fs::read_to_string("/proc/thread-self/net/snmp")?;
    Ok(Counters::parse(&text))
}

fn apply(settings: &Settings, guest: &Guest) -> io::Result<()> {
    let rmem = settings.rmem.map(|bytes| bytes.to_string()).join(" ");
    std::fs::write("/proc/sys/net/ipv4/tcp_rmem", rmem)?;
    network::route(guest, settings.initrwnd)
}

// === impl Guest ===

impl Guest {
    /// Formats the options as arguments of `taut-lab guest`.
    pub(in crate::experiment) fn to_args(&self) -> Vec<String> {
        let mac = |mac: &[u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut args = vec![
            format!("--address={}", self.address),
            format!("--mac={}", mac(&self.mac)),
            format!("--load={}", self.load),
            format!("--device={}", self.device),
        ];
        let neighbours = self.neighbours.iter();
        args.extend(neighbours.map(|(address, of)| format!("--neighbour={address}={}", mac(of))));
        args
    }
}

/// Parses a MAC address.
///
/// # Errors
/// The parse error.
pub fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| format!("{text} is no MAC address such as 02:78:00:00:00:01"))
}

/// Parses a neighbour: `ADDRESS=MAC`.
///
/// # Errors
/// The parse error.
pub fn parse_neighbour(text: &str) -> Result<(Ipv4Addr, [u8; 6]), String> {
    let (address, mac) = text.split_once('=').ok_or("a neighbour is ADDRESS=MAC")?;
    let address = address.parse().map_err(|e| format!("{address}: {e}"))?;
    Ok((address, parse_mac(mac)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_is_told_can_be_read_again() {
        let (address, mac) = (Ipv4Addr::new(10, 78, 0, 1), [2, 0x78, 0, 0, 0xff, 1]);
        let guest = Guest {
            address,
            mac,
            load: 60,
            device: "eth0".to_owned(),
            neighbours: vec![(address, mac)],
        };
        let args = guest.to_args();
        let neighbour = args[4].strip_prefix("--neighbour=").unwrap();
        assert_eq!(parse_neighbour(neighbour), Ok((address, mac)));
        assert_eq!(parse_mac(args[1].strip_prefix("--mac=").unwrap()), Ok(mac));
        assert!(parse_mac("02:78").is_err());
        assert!(parse_neighbour("10.78.0.1").is_err());
    }
}
