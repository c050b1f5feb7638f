//! A guest: a User Mode Linux kernel on a tap, whose init is `taut-lab guest`.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use taut_sys::child::Child;

use super::guest::Guest;
use super::guest::talk::{self, Answer, Ask, Counters, Lines, Sent, Settings};
use super::transfer;
use crate::peer::program::Program;
use taut_netlab::world::Host;

/// The program that is the guest's kernel.
pub(in crate::experiment) const KERNEL: Program = Program {
    name: "linux.uml",
    version: "--version",
    package: "user-mode-linux",
};

/// The name of the guest's network device.
pub(in crate::experiment) const DEVICE: &str = "vec0";
/// CPU features that the C library must not use. The kernel does not save their registers, neither
/// between threads nor over a page fault. How the C library copies depends on more features:
/// without the second and the last feature listed here it would use ymm16 and higher.
pub(in crate::experiment) const NO_WIDE_REGISTERS: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-AVX_Fast_Unaligned_Load",
);
/// A guest's memory, in GiB. The paper's guests had 256 MB, of which Linux gives TCP's buffers
/// about a tenth (`tcp_mem`); ten connections with today's windows need more. With less, the guest
/// drops segments inside the window that it advertised, including segments that were acknowledged
/// early for it (docs/snoop-safety.md).
pub(in crate::experiment) const MEMORY_GIB: u32 = 1;
/// How long a guest may take to boot.
const BOOT: Duration = Duration::from_secs(60);
/// How long a guest may take to answer.
const PATIENCE: Duration = Duration::from_secs(150);
/// The pause between two attempts to connect to a booting guest.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of clock queries; the fastest one counts.
const CLOCK_QUESTIONS: usize = 30;

/// A booting guest.
pub(in crate::experiment) struct Booting {
    child: Child,
    guest: Guest,
    log: std::path::PathBuf,
}

/// A guest that answers requests. It is killed when this and all other references to its process
/// are dropped.
pub(in crate::experiment) struct Uml {
    pub(in crate::experiment) process: Arc<Child>,
    control: Lines,
    /// The offset to add to a time of the guest's clock to get the host's, in nanoseconds.
    ahead: i64,
    pub(in crate::experiment) address: Ipv4Addr,
}

// === impl Booting ===

impl Booting {
    /// Wraps a started guest that writes its console to `log`.
    pub(super) fn of(child: Child, guest: Guest, log: std::path::PathBuf) -> Self {
        Self { child, guest, log }
    }

    /// Starts a guest on `tap` of `host`.
    pub(in crate::experiment) fn start(
        host: &Host,
        tap: &str,
        guest: Guest,
        dir: &Path,
    ) -> io::Result<Self> {
        let log = dir.join(format!("{tap}.log"));
        let out = File::create(&log)?;
        let lab = std::env::current_exe()?;
        let mut command = Command::new(&lab);
        command.args([
            "kernel",
            "--",
            &format!("mem={MEMORY_GIB}G"),
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "console=tty0",
            "con=null",
            "con0=null,fd:1",
        ]);
        // The directory of the socket and the process id; the default is the home directory.
        command.arg(format!("uml_dir={}", dir.display()));
        command.arg(format!("umid={tap}.uml"));
        command.arg(format!("init={}", lab.display()));
        command.arg(format!("vec0:transport=tap,ifname={tap},depth=128,gro=1"));
        // The kernel passes this variable to init (see `kernel`).
        command.arg(format!("{}={}", NO_WIDE_REGISTERS.0, NO_WIDE_REGISTERS.1));
        command.args(["--", "guest"]).args(guest.to_args());
        command
            .current_dir(dir)
            .env("HOME", dir)
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out);
        let child = host.spawn(command)?;
        Ok(Self { child, guest, log })
    }

    /// Returns the process id, which is also the id of the process group.
    pub(in crate::experiment) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the guest answers `client`, and compares the clocks.
    pub(in crate::experiment) fn ready(mut self, client: &Host) -> io::Result<Uml> {
        let to = SocketAddr::from((self.guest.address, talk::CONTROL));
        let deadline = Instant::now() + BOOT;
        let stream = loop {
            let connected = client
                .run(|| TcpStream::connect_timeout(&to, Duration::from_secs(2)))
                .map_err(io::Error::other)?;
            if let Ok(stream) = connected {
                break stream;
            }
            if let Some(status) = self.child.wait_for(PAUSE)? {
                return Err(self.failed(&format!("ended ({status})")));
            }
            if Instant::now() > deadline {
                return Err(self.failed(&format!("does not answer at {to} after {BOOT:?}")));
            }
        };
        let mut uml = Uml {
            process: Arc::new(self.child),
            control: Lines::over(stream, Some(PATIENCE))?,
            ahead: 0,
            address: self.guest.address,
        };
        uml.compare_clocks()?;
        Ok(uml)
    }

    fn failed(&self, how: &str) -> io::Error {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let end = end_of_console(&String::from_utf8_lossy(&text));
        io::Error::other(format!("the guest {how}; the end of its console: {end}"))
    }
}

/// Returns the last lines of a console up to the panic, if there was one: the stack that follows it does
/// not tell what happened.
fn end_of_console(text: &str) -> String {
    const LINES: usize = 5;
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    if let Some(panic) = lines.iter().position(|line| line.contains("Kernel panic")) {
        lines.truncate(panic + 1);
    }
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}

// === impl Uml ===

impl Uml {
    /// Returns the process id, which is also the id of the process group.
    pub(in crate::experiment) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Converts a time of the guest's clock to the host's clock.
    pub(in crate::experiment) fn on_host(&self, guest: u64) -> u64 {
        guest.saturating_add_signed(self.ahead)
    }

    pub(in crate::experiment) fn set(&mut self, settings: Settings) -> io::Result<()> {
        self.done(&Ask::Settings(settings))
    }

    pub(in crate::experiment) fn expect(&mut self, streams: usize, bytes: usize) -> io::Result<()> {
        self.done(&Ask::Expect { streams, bytes })
    }

    pub(in crate::experiment) fn counters(&mut self) -> io::Result<Counters> {
        match self.ask(&Ask::Counters)? {
            Answer::Counters(counters) => Ok(counters),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the guest send a stream. Times are on the guest's clock.
    pub(in crate::experiment) fn send(&mut self, send: talk::Send) -> io::Result<Sent> {
        match self.ask(&Ask::Send(send))? {
            Answer::Sent(sent) => Ok(sent),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the guest start a program.
    pub(in crate::experiment) fn start(&mut self, start: talk::Start) -> io::Result<()> {
        self.done(&Ask::Start(start))
    }

    /// Makes the guest run a program until it ends, and returns the program's output.
    pub(in crate::experiment) fn run(&mut self, start: talk::Start) -> io::Result<talk::Ran> {
        match self.ask(&Ask::Run(start))? {
            Answer::Ran(ran) => Ok(ran),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the guest write a file, such as a setting of its kernel.
    pub(in crate::experiment) fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        let (path, text) = (path.to_owned(), text.to_owned());
        self.done(&Ask::Write { path, text })
    }

    /// Makes the guest serve blocks on this port.
    pub(in crate::experiment) fn serve(&mut self, port: u16) -> io::Result<()> {
        self.done(&Ask::Serve { port })
    }

    /// Makes the guest send over several connections at once.
    pub(in crate::experiment) fn flows(
        &mut self,
        flows: Vec<talk::Flow>,
    ) -> io::Result<talk::Flowed> {
        match self.ask(&Ask::Flows { flows })? {
            Answer::Flowed(flowed) => Ok(flowed),
            other => Err(unexpected(&other)),
        }
    }

    fn done(&mut self, ask: &Ask) -> io::Result<()> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, ask: &Ask) -> io::Result<Answer> {
        self.control.say(ask)?;
        match self.control.receive()? {
            Some(Answer::Failed(why)) => {
                Err(io::Error::other(format!("error in the guest: {why}")))
            }
            Some(answer) => Ok(answer),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Measures the offset of the guest's clock. The offset is constant because User Mode Linux
    /// reads the host's clock.
    fn compare_clocks(&mut self) -> io::Result<()> {
        let mut best = u64::MAX;
        for _ in 0..CLOCK_QUESTIONS {
            let before = transfer::now();
            let answer = self.ask(&Ask::Clock)?;
            let took = transfer::now() - before;
            let Answer::Clock(guest) = answer else {
                return Err(unexpected(&answer));
            };
            if took < best {
                best = took;
                self.ahead = (before + took / 2).cast_signed() - guest.cast_signed();
            }
        }
        Ok(())
    }
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("the guest answered another request: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_console_is_what_precedes_the_stack_of_a_panic() {
        assert_eq!(end_of_console("booted\n\nready\n"), "booted | ready");
        let panicked =
            "1\n2\n3\n4\nno device\nKernel panic - not syncing: init\nCPU: 0\n [<0>] x\n";
        let end = "2 | 3 | 4 | no device | Kernel panic - not syncing: init";
        assert_eq!(end_of_console(panicked), end);
        assert_eq!(end_of_console(""), "");
    }
}
