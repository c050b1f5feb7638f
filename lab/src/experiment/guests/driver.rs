//! The driver domain: a process that only carries frames between the wire and the host's bridge.
//! The gate stops it when the driver domain does not have the core.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use taut_sys::child::Child;
use taut_sys::tap::Tap;

use super::network::DriverEnds;
use taut_netlab::link::frame::Frame;
use taut_netlab::world::Host;

/// The number of frames taken from one side before the other side has its turn.
const BURST: usize = 32;

/// Carries frames between the two TAPs until one of them is gone.
///
/// Splits super-frames into segments for two reasons. The paper's driver domain had no
/// super-frames. And User Mode Linux's driver charges 64 KiB of socket memory for every
/// super-frame, however short, but for a segment only its size, as other drivers do.
///
/// # Errors
/// If a TAP cannot be polled or read.
pub fn carry(wire: OwnedFd, uplink: OwnedFd) -> io::Result<()> {
    let taps = [Tap::from(wire), Tap::from(uplink)];
    let mut buffer = vec![0; Tap::MAX_READ];
    loop {
        let ready = {
            let mut fds = taps.each_ref().map(|tap| {
                let fd = tap.as_fd();
                PollFd::from_borrowed_fd(fd, PollFlags::IN)
            });
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            fds.map(|fd| fd.revents().intersects(PollFlags::IN | PollFlags::ERR))
        };
        for from in (0..2).filter(|from| ready[*from]) {
            burst(&taps[from], &taps[1 - from], &mut buffer)?;
        }
    }
}

fn burst(from: &Tap, to: &Tap, buffer: &mut [u8]) -> io::Result<()> {
    for _ in 0..BURST {
        match from.read(buffer) {
            Ok(len) => {
                let Ok(frame) = Frame::parse(&buffer[..len]) else {
                    continue;
                };
                for segment in 0..frame.segments().count {
                    // A frame that the other side's kernel refuses is lost, as on any wire; TCP
                    // recovers.
                    let _ = to.write(&frame.cut(segment..segment + 1));
                }
            }
            Err(e) => {
                return match e.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(e),
                };
            }
        }
    }
    Ok(())
}

/// Starts the driver domain on `host`, with its log in `dir`.
pub(in crate::experiment) fn start(
    host: &Host,
    dir: &Path,
    ends: DriverEnds,
) -> io::Result<Arc<Child>> {
    let log = File::create(dir.join(format!("driver-{}.log", host.name())))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("driver")
        .stdin(Stdio::from(ends.wire))
        .stdout(Stdio::from(ends.uplink))
        .stderr(log);
    Ok(Arc::new(host.spawn(command)?))
}
