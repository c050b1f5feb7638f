//! The legs of a session: TCP connections, with or without TLS.

use std::sync::Arc;
use std::time::Duration;

use taut_mesh::channel::{Channel, sealed_len};
use taut_mesh::dialler::Rejection;
use taut_sys::Errno;
use taut_sys::kernel_tls;
use taut_sys::pipe::Pipe;
use taut_sys::socket::{Stream, can_limit_windows};
use taut_sys::tcp_info::TcpInfo;

use crate::counters::worker::WorkerMetrics;
use crate::forwarding::backlog::{Buffer, Buffered};
use crate::forwarding::direction::{Leg, Received, Scratch};
use crate::forwarding::user_timeout::Outstanding;
use crate::outcome::kernel_tls::FallBack;

mod kernel;

use kernel::KernelTls;

/// A leg of a session.
#[derive(Debug)]
pub(crate) struct TcpLeg {
    stream: Stream,
    tls: Tls,
    /// The peer is a relay of the mesh.
    is_of_mesh: bool,
}

/// What protects a leg.
#[derive(Debug)]
enum Tls {
    /// Nothing: a leg to a client or destination, or within a trusted network.
    None,
    /// TLS in this process.
    Process(Box<ProcessTls>),
    /// TLS in the kernel.
    Kernel(Box<KernelTls>),
    /// The kernel took a part of what it needs for TLS. Nothing may be sent or received.
    Broken,
}

/// The TLS of a leg, in this process.
#[derive(Debug)]
struct ProcessTls {
    channel: Channel,
    /// Sealed bytes that the socket has not taken yet, from `sent` on. At most what one call of
    /// [`Leg::send`] seals, and a few short records of the protocol.
    pending: Vec<u8>,
    sent: usize,
    /// FIN has been sent; nothing may follow it.
    ended: bool,
    /// Reads end where a record ends, so that the kernel can go on with the next one.
    stops_at_border: bool,
    /// The kernel has refused the keys.
    stays: bool,
    metrics: Arc<WorkerMetrics>,
}

// === impl TcpLeg ===

impl TcpLeg {
    /// Returns the leg of a connection between relays, which is protected if there is a channel.
    pub(crate) fn new(
        stream: Stream,
        channel: Option<Channel>,
        metrics: &Arc<WorkerMetrics>,
    ) -> Self {
        let tls = match channel {
            None => Tls::None,
            Some(channel) => {
                metrics.tls_legs.add(1);
                Tls::Process(Box::new(ProcessTls {
                    channel,
                    pending: Vec::new(),
                    sent: 0,
                    ended: false,
                    stops_at_border: false,
                    stays: false,
                    metrics: metrics.clone(),
                }))
            }
        };
        Self {
            stream,
            tls,
            is_of_mesh: true,
        }
    }

    /// Returns the connection.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Resets the connection.
    pub(crate) fn abort(self) {
        self.stream.abort();
    }

    /// Gives the keys to the kernel if that is possible now.
    fn move_to_kernel(&mut self) {
        let Tls::Process(tls) = &mut self.tls else {
            return;
        };
        if tls.stays || !tls.channel.is_exportable() || tls.held() > 0 {
            return;
        }
        if !tls.channel.partial().is_empty() {
            tls.stops_at_border = true;
            return;
        }
        let Some(written) = KernelTls::base(&self.stream) else {
            return;
        };
        if let Err(error) = kernel_tls::attach(&self.stream) {
            tls.stays = true;
            tls.stops_at_border = false;
            let cause = FallBack::of(error);
            tls.metrics.kernel_tls_fall_backs[cause.index()].add(1);
            tracing::debug!(%error, "the keys of a leg between relays stay in this process");
            return;
        }
        // If this fails, the leg must never become one without TLS.
        let Tls::Process(tls) = std::mem::replace(&mut self.tls, Tls::Broken) else {
            return;
        };
        let ProcessTls {
            channel, metrics, ..
        } = *tls;
        match KernelTls::new(&self.stream, channel, written, &metrics) {
            Ok(kernel) => {
                metrics.kernel_tls_legs.add(1);
                self.tls = Tls::Kernel(Box::new(kernel));
            }
            Err(error) => {
                metrics.kernel_tls_fall_backs[FallBack::Broken.index()].add(1);
                tracing::debug!(%error, "a leg between relays breaks: the kernel refuses its keys");
            }
        }
    }
}

impl From<Stream> for TcpLeg {
    fn from(stream: Stream) -> Self {
        Self {
            stream,
            tls: Tls::None,
            is_of_mesh: false,
        }
    }
}

// === impl Leg for TcpLeg ===

impl Leg for TcpLeg {
    type Pipe = Pipe;

    fn recv(&mut self, scratch: &mut Scratch<'_>) -> Result<Received, Errno> {
        match &mut self.tls {
            Tls::None => {
                let len = self.stream.recv(scratch.plain)?;
                let more = len == scratch.plain.len();
                Ok(Received { len, more })
            }
            Tls::Process(tls) => tls.recv(&self.stream, scratch),
            Tls::Kernel(tls) => tls.recv(&self.stream, scratch),
            Tls::Broken => Err(Errno::PROTO),
        }
    }

    fn peek(&self) -> Result<Option<bool>, Errno> {
        match &self.tls {
            Tls::None => self.stream.peek(),
            // Only a read can tell.
            Tls::Process(_) | Tls::Kernel(_) | Tls::Broken => Ok(Some(true)),
        }
    }

    fn send(&mut self, bytes: &[u8], cipher: &mut [u8]) -> Result<usize, Errno> {
        match &mut self.tls {
            Tls::None => self.stream.send(bytes),
            Tls::Process(tls) => tls.send(&self.stream, bytes, cipher),
            Tls::Kernel(tls) => tls.send(&self.stream, bytes),
            Tls::Broken => Err(Errno::PROTO),
        }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        match &mut self.tls {
            Tls::None | Tls::Kernel(_) | Tls::Broken => Ok(()),
            Tls::Process(tls) => tls.flush(&self.stream),
        }
    }

    fn prepare_splice(&mut self) -> Result<bool, Errno> {
        self.move_to_kernel();
        match &self.tls {
            Tls::None | Tls::Kernel(_) => Ok(true),
            Tls::Process(_) => Ok(false),
            Tls::Broken => Err(Errno::PROTO),
        }
    }

    fn fill(&mut self, pipe: &Pipe, max: usize) -> Result<usize, Errno> {
        match &self.tls {
            Tls::None => pipe.fill(&self.stream, max),
            Tls::Kernel(tls) => tls.fill(&self.stream, pipe, max),
            Tls::Process(_) | Tls::Broken => Err(Errno::PROTO),
        }
    }

    fn drain(&mut self, pipe: &Pipe, len: usize) -> Result<usize, Errno> {
        match &mut self.tls {
            Tls::None => pipe.drain(&self.stream, len),
            Tls::Kernel(tls) => tls.drain(&self.stream, pipe, len),
            // The pipe holds plaintext.
            Tls::Process(_) | Tls::Broken => Err(Errno::PROTO),
        }
    }

    fn shutdown_write(&mut self) -> Result<(), Errno> {
        match &mut self.tls {
            Tls::None => self.stream.shutdown_write(),
            Tls::Process(tls) => tls.shutdown_write(&self.stream),
            Tls::Kernel(tls) => tls.shutdown_write(&self.stream),
            Tls::Broken => Err(Errno::PROTO),
        }
    }

    fn ends_with_fin(&self) -> bool {
        matches!(self.tls, Tls::None)
    }

    fn take_error(&self) -> Result<(), Errno> {
        match &self.tls {
            Tls::Kernel(tls) => tls.take_error(&self.stream),
            Tls::None | Tls::Process(_) | Tls::Broken => self.stream.take_error(),
        }
    }

    fn unacknowledged(&self) -> usize {
        self.stream.unacknowledged() + self.held()
    }

    fn unsent(&self) -> usize {
        self.stream.unsent() + self.held()
    }

    fn held(&self) -> usize {
        match &self.tls {
            Tls::None | Tls::Broken => 0,
            Tls::Process(tls) => tls.held(),
            Tls::Kernel(tls) => tls.held(&self.stream),
        }
    }

    fn is_unanswered(&self, since: Duration) -> bool {
        let info = TcpInfo::of(&self.stream);
        info.is_ok_and(|info| info.unacked > 0 && info.last_ack_recv >= since)
    }

    fn is_of_mesh(&self) -> bool {
        self.is_of_mesh
    }

    fn outstanding(&self) -> Option<Outstanding> {
        if self.stream.unacknowledged() == 0 {
            return None;
        }
        let info = TcpInfo::of(&self.stream).ok()?;
        Some(Outstanding {
            segs_in: info.segs_in.unwrap_or(0),
            retransmits: info.retransmits,
            probes: info.probes,
        })
    }

    fn is_its_own_peer(&self) -> bool {
        self.stream.is_its_own_peer()
    }

    fn end_gracefully(&self) {
        self.stream.end_gracefully();
    }
}

// === impl Buffered for TcpLeg ===

impl Buffered for TcpLeg {
    fn unread(&self) -> u64 {
        self.stream.unread() as u64
    }

    fn path(&self) -> (Duration, u64) {
        let Ok(info) = TcpInfo::of(&self.stream) else {
            return Default::default();
        };
        // A leg that hardly sends measured its round trip long ago. What the receiver measures includes the
        // pauses of its peer.
        let sender = info.rtt.unwrap_or_default();
        let receiver = info.rcv_rtt.unwrap_or_default();
        (sender.max(receiver.min(2 * sender)), info.rcv_mss.into())
    }

    fn largest_window(&self) -> Option<u64> {
        let clamp = self.stream.window_clamp();
        clamp.ok().filter(|_| can_limit_windows()).map(u64::from)
    }

    fn limit_window(&self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Err(error) = self.stream.set_window_clamp(bytes) {
            tracing::debug!(%error, "a leg keeps its window");
        }
    }

    fn unlimit_window(&self) {
        // No window can be larger.
        let scales = TcpInfo::of(&self.stream).map(|info| info.window_scales);
        let (_, scale) = scales.ok().flatten().unwrap_or_default();
        self.limit_window(u64::from(u16::MAX) << scale);
    }

    fn buffer(&self) -> Option<Buffer> {
        // The buffers of legs between relays follow their own need.
        let may_limit = !self.is_of_mesh() && self.stream.is_receive_buffer_tuned();
        let (buffer, info) = (
            self.stream.receive_buffer().ok()?,
            TcpInfo::of(&self.stream).ok()?,
        );
        Some(Buffer {
            used: buffer.used.into(),
            size: buffer.size.into(),
            // Linux 6.2.
            window: info.rcv_wnd?.into(),
            may_limit,
        })
    }

    fn limit_buffer(&self, bytes: u64) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let set = self.stream.set_receive_buffer(bytes);
        if let Err(error) = &set {
            tracing::debug!(%error, "a leg keeps its receive buffer");
        }
        set.is_ok()
    }

    fn unlimit_buffer(&self, bytes: u64) {
        self.limit_buffer(bytes);
        if let Err(error) = self.stream.tune_receive_buffer() {
            tracing::debug!(%error, "the kernel does not tune the receive buffer of a leg");
        }
    }

    fn limit_unsent(&self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Err(error) = self.stream.limit_unsent(bytes) {
            tracing::debug!(%error, "a leg may leave any number of bytes unsent");
        }
    }
}

// === impl ProcessTls ===

impl ProcessTls {
    /// Returns the number of sealed bytes that the socket has not taken yet.
    fn held(&self) -> usize {
        self.pending.len() - self.sent
    }

    fn recv(&mut self, stream: &Stream, scratch: &mut Scratch<'_>) -> Result<Received, Errno> {
        for _ in 0..READS_MAX {
            if self.channel.is_closed() {
                return Ok(Received {
                    len: 0,
                    more: false,
                });
            }
            let held = self.channel.partial().len();
            let border = match self.stops_at_border {
                true => self.channel.missing().map(|missing| held + missing),
                false => None,
            };
            let room = scratch.room().min(border.unwrap_or(usize::MAX));
            let len = read_up_to(stream, self.channel.partial(), room, scratch)?;
            let mut replies = Vec::new();
            let arrived = &mut scratch.cipher[..len];
            let opened = self.channel.open(arrived, scratch.plain, &mut replies);
            if !replies.is_empty() && !self.ended {
                self.pending.extend_from_slice(&replies);
                // What is left goes out when the leg is writable.
                let _ = self.flush(stream);
            }
            match opened {
                Ok(opened) if opened.len > 0 => {
                    return Ok(Received {
                        len: opened.len,
                        // The end must be seen too, and no event reports it.
                        more: opened.closed || len == room,
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a leg between relays breaks");
                    return Err(match Rejection::from(error) {
                        Rejection::KeyRefused => Errno::ACCESS,
                        _ => Errno::PROTO,
                    });
                }
            }
        }
        tracing::debug!("a leg between relays breaks: its peer sends records without content");
        Err(Errno::PROTO)
    }

    fn send(&mut self, stream: &Stream, bytes: &[u8], cipher: &mut [u8]) -> Result<usize, Errno> {
        self.flush(stream)?;
        let len = bytes.len().min(SEAL_MAX);
        let sealed = self.channel.seal(&bytes[..len], cipher);
        let sealed = &cipher[..sealed.map_err(|_| Errno::PROTO)?];
        let sent = loop {
            match stream.send(sealed) {
                Ok(n) => break n,
                Err(Errno::AGAIN) => break 0,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        };
        self.pending.extend_from_slice(&sealed[sent..]);
        Ok(len)
    }

    fn flush(&mut self, stream: &Stream) -> Result<(), Errno> {
        while self.sent < self.pending.len() {
            match stream.send(&self.pending[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        // Most legs hold nothing most of the time.
        if self.sent > 0 {
            self.pending = Vec::new();
            self.sent = 0;
        }
        Ok(())
    }

    fn shutdown_write(&mut self, stream: &Stream) -> Result<(), Errno> {
        self.channel
            .close(&mut self.pending)
            .map_err(|_| Errno::PROTO)?;
        self.flush(stream)?;
        stream.shutdown_write()?;
        self.ended = true;
        Ok(())
    }
}

/// Reads records behind `partial`, the start of one of them, into `scratch.cipher`. Returns the length of
/// both.
///
/// # Errors
/// `EAGAIN` and others of recv(2). At the end of the stream `ECONNRESET`: only close_notify ends it in order
/// (RFC 8446 section 6.1).
pub(crate) fn read_records(
    stream: &Stream,
    partial: &[u8],
    scratch: &mut Scratch<'_>,
) -> Result<usize, Errno> {
    read_up_to(stream, partial, scratch.room(), scratch)
}

/// Does the same, until both have `room` bytes.
fn read_up_to(
    stream: &Stream,
    partial: &[u8],
    room: usize,
    scratch: &mut Scratch<'_>,
) -> Result<usize, Errno> {
    let held = partial.len();
    if held >= room {
        return Err(Errno::PROTO);
    }
    scratch.cipher[..held].copy_from_slice(partial);
    match stream.recv(&mut scratch.cipher[held..room])? {
        0 => Err(Errno::CONNRESET),
        n => Ok(held + n),
    }
}

/// The number of reads in a row that may bring no byte of the stream. A record arrives in a few; a peer
/// that sends records without content must not keep the worker.
pub(crate) const READS_MAX: usize = 32;

/// The number of bytes that one call seals.
const SEAL_MAX: usize = 64 << 10;

/// The room for sealed bytes that [`Scratch::cipher`] must have.
pub(crate) const CIPHER: usize = sealed_len(SEAL_MAX);

#[cfg(test)]
mod tests;
