//! TLS in the kernel: the socket takes and gives plaintext, so that splice works. What is no data comes by
//! recvmsg, with its type.

use std::cell::Cell;
use std::sync::Arc;

use taut_mesh::channel::{Channel, Key};
use taut_sys::Errno;
use taut_sys::kernel_tls::{self, RECORD_OVERHEAD};
use taut_sys::pipe::Pipe;
use taut_sys::socket::Stream;

use super::READS_MAX;
use crate::counters::worker::WorkerMetrics;
use crate::forwarding::direction::{Received, Scratch};
use crate::outcome::kernel_tls::ControlRecord;

/// An alert that ends a stream in order: its level, warning, and close_notify (RFC 8446 section 6.1).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// The description of an alert that says nothing about the stream (RFC 8446 section 6.1).
const USER_CANCELED: u8 = 90;

/// The type of a handshake message that changes the key (RFC 8446 section 4).
const KEY_UPDATE: u8 = 24;

/// The TLS of a leg, in the kernel.
#[derive(Debug)]
pub(super) struct KernelTls {
    metrics: Arc<WorkerMetrics>,
    /// The peer has ended its stream.
    closed: bool,
    /// close_notify has been sent. FIN follows when the leg is closed: the kernel would send it ahead of
    /// records that TCP has not taken yet.
    ended: bool,
    /// The connection cannot continue.
    broken: bool,
    /// The connection's error, which reading it has cleared: bytes that arrived before may be left.
    failed: Cell<Option<Errno>>,
    /// What [`kernel_tls::written`] would return if no plaintext and no record had been written since the
    /// beginning of the connection.
    base: u64,
    /// The bytes written since then.
    plain: u64,
}

// === impl KernelTls ===

impl KernelTls {
    /// Returns the start of a count of what is written, for [`KernelTls::new`]; `None` if it cannot be had
    /// now. The connection must hold nothing unsent.
    pub(super) fn base(stream: &Stream) -> Option<u64> {
        kernel_tls::exactly_written(stream).ok().flatten()
    }

    /// Gives the keys of `channel` to the kernel. The stream must have the ULP.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) fn new(
        stream: &Stream,
        channel: Channel,
        written: u64,
        metrics: &Arc<WorkerMetrics>,
    ) -> Result<Self, Errno> {
        let closed = channel.is_closed();
        let keys = channel.into_keys().map_err(|_| Errno::PROTO)?;
        let key = |key: &Key| (key.key.clone(), key.iv, key.sequence);
        let (secret, iv, sequence) = key(&keys.sending);
        let sending = kernel_tls::Key {
            key: &secret,
            iv: &iv,
            sequence,
        };
        kernel_tls::set_sending_key(stream, &sending)?;
        let base = written.wrapping_sub(sequence.wrapping_mul(RECORD_OVERHEAD));
        let (secret, iv, sequence) = key(&keys.receiving);
        let receiving = kernel_tls::Key {
            key: &secret,
            iv: &iv,
            sequence,
        };
        kernel_tls::set_receiving_key(stream, &receiving)?;
        Ok(Self {
            metrics: metrics.clone(),
            closed,
            ended: false,
            broken: false,
            failed: Cell::new(None),
            base,
            plain: 0,
        })
    }

    pub(super) fn recv(
        &mut self,
        stream: &Stream,
        scratch: &mut Scratch<'_>,
    ) -> Result<Received, Errno> {
        for _ in 0..READS_MAX {
            if self.closed {
                return Ok(Received {
                    len: 0,
                    more: false,
                });
            }
            if self.broken {
                return Err(Errno::PROTO);
            }
            match kernel_tls::recv(stream, scratch.plain) {
                // The kernel stops at a record of another type, and no event reports that.
                Ok(kernel_tls::Received::Data(len)) => return Ok(Received { len, more: true }),
                Ok(kernel_tls::Received::Fin) => return Err(Errno::CONNRESET),
                Ok(kernel_tls::Received::Alert(len)) => self.on_alert(&scratch.plain[..len]),
                Ok(kernel_tls::Received::Handshake(len)) => {
                    let is_update = scratch.plain[..len].first() == Some(&KEY_UPDATE);
                    self.break_off(match is_update {
                        true => ControlRecord::KeyUpdate,
                        false => ControlRecord::Other,
                    });
                }
                Ok(kernel_tls::Received::Other) => self.break_off(ControlRecord::Other),
                Err(e) => return Err(self.in_context(e)),
            }
        }
        tracing::debug!("a leg between relays breaks: its peer sends records without content");
        Err(Errno::PROTO)
    }

    fn on_alert(&mut self, alert: &[u8]) {
        match alert {
            [_, 0] => {
                self.count(ControlRecord::CloseNotify);
                self.closed = true;
            }
            [_, USER_CANCELED] => self.count(ControlRecord::Alert),
            _ => self.break_off(ControlRecord::Alert),
        }
    }

    fn break_off(&mut self, record: ControlRecord) {
        self.count(record);
        self.broken = true;
        let record = record.label();
        tracing::debug!(record, "a leg between relays breaks");
    }

    fn count(&self, record: ControlRecord) {
        self.metrics.kernel_tls_records[record.index()].add(1);
    }

    /// Returns what an error of a read means.
    fn in_context(&self, error: Errno) -> Errno {
        match (error, self.failed.get()) {
            (Errno::AGAIN, Some(failed)) => failed,
            // The record was altered, or is none.
            (Errno::BADMSG | Errno::MSGSIZE | Errno::INVAL, _) => Errno::PROTO,
            (error, _) => error,
        }
    }

    pub(super) fn send(&mut self, stream: &Stream, bytes: &[u8]) -> Result<usize, Errno> {
        if self.broken {
            return Err(Errno::PROTO);
        }
        let sent = stream.send(bytes)?;
        self.plain += sent as u64;
        Ok(sent)
    }

    /// Moves data into a pipe. A result of 0 means that only [`KernelTls::recv`] can read what comes next.
    pub(super) fn fill(&self, stream: &Stream, pipe: &Pipe, max: usize) -> Result<usize, Errno> {
        if self.closed || self.broken {
            return Ok(0);
        }
        match pipe.fill(stream, max) {
            Ok(n) => {
                self.metrics.kernel_tls_received.add(n as u64);
                Ok(n)
            }
            Err(Errno::INVAL) => Ok(0),
            Err(e) => Err(self.in_context(e)),
        }
    }

    pub(super) fn drain(
        &mut self,
        stream: &Stream,
        pipe: &Pipe,
        len: usize,
    ) -> Result<usize, Errno> {
        if self.broken {
            return Err(Errno::PROTO);
        }
        let sent = pipe.drain(stream, len)?;
        self.plain += sent as u64;
        self.metrics.kernel_tls_sent.add(sent as u64);
        Ok(sent)
    }

    pub(super) fn shutdown_write(&mut self, stream: &Stream) -> Result<(), Errno> {
        if self.broken {
            return Err(Errno::PROTO);
        }
        if !self.ended {
            kernel_tls::send_alert(stream, CLOSE_NOTIFY)?;
            self.plain += CLOSE_NOTIFY.len() as u64;
            self.ended = true;
        }
        Ok(())
    }

    pub(super) fn take_error(&self, stream: &Stream) -> Result<(), Errno> {
        stream.take_error().map_err(|error| {
            let error = self.in_context(error);
            self.failed.set(Some(error));
            error
        })
    }

    /// Returns the number of bytes that TCP has not taken yet; closing the leg would discard them. It may be
    /// too high while acknowledgements arrive.
    pub(super) fn held(&self, stream: &Stream) -> usize {
        let (Ok(records), Ok(written)) = (
            kernel_tls::records_made(stream),
            kernel_tls::written(stream),
        ) else {
            return 0;
        };
        let made = self
            .plain
            .wrapping_add(records.wrapping_mul(RECORD_OVERHEAD));
        let held = self.base.wrapping_add(made).wrapping_sub(written);
        // Below zero only if the connection has ended.
        usize::try_from(i64::from_ne_bytes(held.to_ne_bytes()).max(0)).unwrap_or(usize::MAX)
    }
}
