//! Builds the frames that the two ends of a connection would send.

use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};
use taut_sys::tap::VnetHeader;

const PEER: [u8; 4] = [10, 8, 0, 100];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 1, 0];
const SERVER: u16 = 80;

/// Offset of TCP in a frame, and of its checksum in TCP.
const L4_AT: usize = 34;
const CHECK_AT: usize = 16;

/// A window of 1 MiB.
const WINDOW: u16 = 8192;
const SCALE: u8 = 7;

/// Properties of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Whether the device completes TCP's checksum.
    pub(super) partial: bool,
    /// Bytes of data in a frame of the sender.
    pub(super) frame: usize,
}

/// A connection to a guest.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) guest: usize,
    port: u16,
    ends: Ends,
    /// The sender's next sequence number.
    next: u32,
    /// The guest's acknowledgment number.
    acked: u32,
    clock: u32,
}

// === impl Stream ===

impl Stream {
    /// Creates stream number `number`, to this guest.
    pub(super) fn new(number: usize, guest: usize, ends: Ends) -> Self {
        Self {
            guest,
            port: 5000 + number as u16,
            ends,
            next: 1,
            acked: 1,
            clock: 1,
        }
    }

    /// Returns the number of frames that fit into the guest's window.
    pub(super) fn batch(&self) -> usize {
        if self.ends.frame > super::SEGMENT {
            1
        } else {
            super::BATCH
        }
    }

    /// Returns SYN, SYN-ACK, ACK, the first segment and its ACK, each with a flag that is set if
    /// the guest sends it.
    pub(super) fn handshake(&mut self) -> Vec<(bool, Vec<u8>)> {
        let mut frames = Vec::new();
        for from_guest in [false, true] {
            let mut syn = self.header(from_guest, 0);
            syn.syn = true;
            syn.ack = from_guest;
            syn.sequence_number = 0;
            let options = [
                TcpOptionElement::MaximumSegmentSize(1460),
                TcpOptionElement::Timestamp(self.clock, 0),
                TcpOptionElement::WindowScale(SCALE),
            ];
            // The options take 4, 10 and 3 bytes of 40.
            let _ = syn.set_options(&options);
            frames.push((from_guest, self.frame(from_guest, syn, 0)));
        }
        frames.push((false, self.empty()));
        frames.push((false, self.data()));
        frames.extend(self.guest_acks(1).into_iter().map(|ack| (true, ack)));
        frames
    }

    /// Returns the sender's next segment (or many, in one frame).
    pub(super) fn data(&mut self) -> Vec<u8> {
        let len = self.ends.frame;
        let header = self.header(false, self.next);
        self.next = self.next.wrapping_add(len as u32);
        self.frame(false, header, len)
    }

    /// Returns a segment of the sender without data.
    pub(super) fn empty(&mut self) -> Vec<u8> {
        let header = self.header(false, self.next);
        self.frame(false, header, 0)
    }

    /// Returns the guest's ACKs of `count` frames. The guest's application reads nothing, so the
    /// right edge stays in place; before the last ACK, the application reads everything.
    pub(super) fn guest_acks(&mut self, count: usize) -> Vec<Vec<u8>> {
        let all = (count * self.ends.frame) as u32;
        let mut acks = Vec::with_capacity(count);
        for n in 1..=count {
            self.acked = self.acked.wrapping_add(self.ends.frame as u32);
            let mut header = self.header(true, 1);
            if n < count {
                let taken = (n * self.ends.frame) as u32;
                header.window_size = WINDOW - (taken.min(all) >> SCALE) as u16 - 1;
            }
            acks.push(self.frame(true, header, 0));
        }
        acks
    }

    fn header(&mut self, from_guest: bool, seq: u32) -> TcpHeader {
        self.clock = self.clock.wrapping_add(1);
        let (from, to) = match from_guest {
            true => (SERVER, self.port),
            false => (self.port, SERVER),
        };
        let mut header = TcpHeader::new(from, to, seq, WINDOW);
        header.ack = true;
        header.acknowledgment_number = if from_guest { self.acked } else { 1 };
        let options = [
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(self.clock, 1),
        ];
        // The options take 12 bytes of 40.
        let _ = header.set_options(&options);
        header
    }

    fn frame(&self, from_guest: bool, header: TcpHeader, len: usize) -> Vec<u8> {
        let guest_mac = [2, 0, 0, 0, 0, self.guest as u8];
        let guest = [10, 8, 0, 1 + self.guest as u8];
        let (eth, [from, to]) = match from_guest {
            true => ([guest_mac, PEER_MAC], [guest, PEER]),
            false => ([PEER_MAC, guest_mac], [PEER, guest]),
        };
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(eth[0], eth[1]).ipv4(from, to, 64);
        // Writing to memory cannot fail, and no frame exceeds the length field of IPv4.
        let _ = builder.tcp_header(header).write(&mut frame, &vec![0; len]);
        let headers = frame.len() - len;
        let mut vnet = VnetHeader::default();
        if self.ends.partial && len > 0 {
            let tcp_len = (frame.len() - L4_AT) as u32;
            let words = from.as_chunks::<2>().0.iter().chain(to.as_chunks::<2>().0);
            let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes(*word))).sum();
            let mut sum = sum + 6 + tcp_len;
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            let at = L4_AT + CHECK_AT;
            frame[at..at + 2].copy_from_slice(&(sum as u16).to_be_bytes());
            vnet.flags = VnetHeader::NEEDS_CSUM;
            vnet.csum_start = L4_AT as u16;
            vnet.csum_offset = CHECK_AT as u16;
        }
        if len > super::SEGMENT {
            vnet.gso_type = VnetHeader::GSO_TCPV4;
            vnet.gso_size = super::SEGMENT as u16;
            vnet.hdr_len = headers as u16;
        }
        let mut whole = vnet.to_bytes().to_vec();
        whole.extend(frame);
        whole
    }
}
