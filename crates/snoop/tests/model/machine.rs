//! The BPF programs, which the kernel runs for the test (BPF_PROG_TEST_RUN), and guests' taps into
//! which they deliver.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramInput, ProgramMut,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use taut_sys::netns::Netns;
use taut_sys::tap::{Tap, VnetHeader};

use crate::kept::Kept;
use crate::layout::{self, Layout};
use crate::maps::{Exits, Records};
use crate::reference::{Config, Event};
use crate::segment::FRAME_MAX;
use crate::seq::Seq;

const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/snoop.bpf.o"));

/// Lengths of the taps' rings.
pub(crate) const RINGS: [u32; 5] = [1, 2, 4, 16, 500];

/// Size of the ring buffer for copies, which has room for few. Then the longest frame whose copy
/// has the smallest size, and the kernel's overhead.
const COPIES: u32 = 16 * 1024;
const COPIED_MAX: usize = 1600;
const RECORD: usize = 8;

/// Keys of the map `guest_nets`: prefix length and address.
const GUEST_NETS: [[u8; 20]; 2] = [
    net(120, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 8, 0, 0]),
    net(16, [0xfd, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
];

/// The peer prefixes that are distrusted if the configuration says that any are.
const DISTRUSTED: [([u8; 6], u16); 2] = [([10, 8, 0, 0, 0, 0], 4), ([0xfd, 8, 0, 0, 0, 0], 6)];

/// `struct __sk_buff`: its size, and the offsets of its mark and device index.
const CONTEXT: usize = 192;
const MARK_AT: usize = 8;
const IFINDEX_AT: usize = 40;

const fn net(prefix: u8, address: [u8; 16]) -> [u8; 20] {
    let length = (prefix as u32).to_ne_bytes();
    let mut key = [0; 20];
    let mut at = 0;
    while at < 20 {
        key[at] = if at < 4 { length[at] } else { address[at - 4] };
        at += 1;
    }
    key
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    ToGuest,
    FromGuest,
}

/// The result of a program for a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran<'f> {
    /// The returned `TC_ACT_*`.
    pub(crate) action: i32,
    pub(crate) mark: u32,
    /// The frame after the program.
    pub(crate) frame: &'f [u8],
}

/// The loaded programs, in a network namespace with taps that lives until the process ends or this
/// is dropped.
pub(crate) struct Machine {
    to_guest: ProgramMut<'static>,
    from_guest: ProgramMut<'static>,
    flows: MapHandle,
    config: MapHandle,
    exits: [Exits; 2],
    layout: Layout,
    /// Names of the modes and of the BYPASS reasons, in the programs' order.
    modes: Vec<&'static str>,
    reasons: Vec<&'static str>,
    config_layout: Layout,
    event_layout: Layout,
    copy_layout: Layout,
    source: MapHandle,
    pending_syns: MapHandle,
    handshakes: MapHandle,
    copies: Records,
    events: Records,
    taps: Vec<(Tap, u32)>,
    out: Vec<u8>,
    context: Vec<u8>,
    read: Vec<u8>,
}

/// Runs `job` with the programs, in a network namespace of its own.
pub(crate) fn with_machine<T: Send>(job: impl FnOnce(&mut Machine) -> T + Send) -> T {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes network namespaces and must run as root; `make test` does"
    );
    let thread = rustix::thread::gettid().as_raw_nonzero();
    let name = format!("taut-snoop-model-{thread}");
    let netns = Removed(Netns::create(&name).unwrap());
    netns.0.run(|| job(&mut Machine::new(&name))).unwrap()
}

struct Removed(Netns);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = Netns::delete(self.0.name());
    }
}

// === impl Machine ===

impl Machine {
    /// Loads the programs in the calling thread's network namespace, which has this name.
    fn new(netns: &str) -> Self {
        // The per-CPU counters are read on one CPU.
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).unwrap();
        let taps: Vec<_> = (0..RINGS.len())
            .map(|n| Tap::create(&format!("guest{n}")).unwrap())
            .collect();
        let mut lines = String::new();
        for (n, ring) in RINGS.iter().enumerate() {
            lines += &format!("link set guest{n} addrgenmode none\n");
            lines += &format!("link set guest{n} mtu 9000 txqueuelen {ring} up\n");
        }
        batch("ip", netns, &lines);
        let lines = (0..RINGS.len()).map(|n| format!("qdisc replace dev guest{n} root noqueue\n"));
        batch("tc", netns, &lines.collect::<String>());
        let numbered = taps.into_iter().enumerate();
        let taps = numbered.map(|(n, tap)| (tap, index_of(&format!("guest{n}"))));
        let taps = taps.collect();

        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(PROGRAMS).unwrap();
        bound_copies(&mut open);
        // Leaked, because the programs and maps below refer to it.
        let object: &'static Object = Box::leak(Box::new(open.load().unwrap()));
        let program = |name: &str| {
            let mut programs = object.progs_mut();
            programs.find(|program| program.name() == name).unwrap()
        };
        let map = |name: &str| {
            let mut maps = object.maps();
            let map = maps.find(|map| map.name() == name).unwrap();
            MapHandle::try_from(&map).unwrap()
        };
        let exits = |name: &str, enumeration: &str, prefix: &str| {
            let (map, names) = (map(name), layout::names(enumeration, prefix));
            assert_eq!(
                map.max_entries() as usize,
                names.len(),
                "enum {enumeration}"
            );
            Exits::of(map, names)
        };
        for (name, of) in [("flows", "snoop_flow"), ("config", "snoop_config")] {
            let size = map(name).value_size() as usize;
            assert_eq!(size, Layout::of(of).size, "struct {of}");
        }
        let nets = map("guest_nets");
        for net in GUEST_NETS {
            nets.update(&net, &[1], MapFlags::ANY).unwrap();
        }
        let distrusted = map("distrusted");
        for (bytes, version) in DISTRUSTED {
            let key = [&bytes[..], &u16::to_ne_bytes(version)].concat();
            distrusted.update(&key, &[1], MapFlags::ANY).unwrap();
        }
        Self {
            source: map("source"),
            pending_syns: map("pending_syns"),
            handshakes: map("handshakes"),
            copies: Records::of(&map("retained")),
            events: Records::of(&map("events")),
            to_guest: program("snoop_to_guest"),
            from_guest: program("snoop_from_guest"),
            flows: map("flows"),
            config: map("config"),
            exits: [
                exits("to_guest_exits", "snoop_to_guest", "SNOOP_TG_"),
                exits("from_guest_exits", "snoop_from_guest", "SNOOP_FG_"),
            ],
            layout: Layout::of("snoop_flow"),
            modes: layout::names("snoop_mode", "SNOOP_"),
            reasons: layout::names("snoop_bypass", "SNOOP_"),
            config_layout: Layout::of("snoop_config"),
            event_layout: Layout::of("snoop_event"),
            copy_layout: Layout::of("snoop_copy"),
            taps,
            out: vec![0; FRAME_MAX + 64],
            context: vec![0; CONTEXT],
            read: vec![0; Tap::MAX_READ],
        }
    }

    /// Runs one of the programs on a frame at this tap.
    pub(crate) fn run(&mut self, side: Side, tap: usize, mark: u32, frame: &[u8]) -> Ran<'_> {
        let mut context = [0; CONTEXT];
        context[MARK_AT..MARK_AT + 4].copy_from_slice(&mark.to_ne_bytes());
        let ifindex = self.taps[tap].1;
        context[IFINDEX_AT..IFINDEX_AT + 4].copy_from_slice(&ifindex.to_ne_bytes());
        let program = match side {
            Side::ToGuest => &self.to_guest,
            Side::FromGuest => &self.from_guest,
        };
        let output = program
            .test_run(ProgramInput {
                context_in: Some(&mut context),
                context_out: Some(&mut self.context),
                data_in: Some(frame),
                data_out: Some(&mut self.out),
                ..ProgramInput::default()
            })
            .expect("the kernel runs the program");
        let action = output.return_value.cast_signed();
        let len = output.data.as_deref().map_or(0, <[u8]>::len);
        let mark = self.context[MARK_AT..MARK_AT + 4].try_into();
        Ran {
            action,
            mark: u32::from_ne_bytes(mark.expect("4 bytes are 4")),
            frame: &self.out[..len],
        }
    }

    /// Takes the next frame out of a tap's ring; returns `None` if it is empty.
    pub(crate) fn take(&mut self, tap: usize) -> Option<&[u8]> {
        let len = self.taps[tap].0.read(&mut self.read).ok()?;
        Some(&self.read[VnetHeader::LEN..len])
    }

    /// Returns the state of a flow; `None` if it is not tracked.
    pub(crate) fn kept(&self, key: &[u8]) -> Option<Kept> {
        let bytes = self.flows.lookup(key, MapFlags::ANY).unwrap()?;
        let long = |field| Seq(self.layout.u32(&bytes, field));
        let name = |names: &[&'static str], field| {
            let number = usize::from(self.layout.u8(&bytes, field));
            names.get(number).copied().unwrap_or("?")
        };
        let mode = match name(&self.modes, "mode") {
            "bypass" => name(&self.reasons, "bypass"),
            mode => mode,
        };
        Some(Kept {
            mode,
            next_seq: long("next_seq"),
            acked_seq: long("acked_seq"),
            vm_seq: long("vm_seq"),
            rcv_edge: long("rcv_edge"),
            advertised_edge: long("advertised_edge"),
            vm_una: long("vm_una"),
            ts_peer: long("ts_peer"),
        })
    }

    /// Removes a flow, its pending SYN, its listener, and the learnt Ethernet address.
    pub(crate) fn forget(&self, key: &[u8]) {
        let _ = self.flows.delete(key);
        let _ = self.pending_syns.delete(key);
        // The key of the listener: address, port and version.
        let listener = [&key[..16], &key[32..34], &key[38..40]].concat();
        let _ = self.handshakes.delete(&listener);
        let none = vec![0; self.source.value_size() as usize];
        self.source
            .update(&0_u32.to_ne_bytes(), &none, MapFlags::ANY)
            .unwrap();
    }

    /// Returns the events since the last call.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        let records = self.events.take();
        let layout = &self.event_layout;
        let event = |bytes: &Vec<u8>| Event {
            vm_seq: Seq(layout.u32(bytes, "vm_seq")),
            acked_seq: Seq(layout.u32(bytes, "acked_seq")),
            reach: Seq(layout.u32(bytes, "reach")),
            contradicted: layout.u32(bytes, "contradicted") != 0,
        };
        records.iter().map(event).collect()
    }

    /// Returns how many copies fit between two calls of [`Machine::copies`].
    pub(crate) fn copies_max(&self) -> usize {
        let record = RECORD + (self.copy_layout.size + COPIED_MAX).next_multiple_of(8);
        (COPIES as usize - 1) / record
    }

    /// Returns the frames copied since the last call.
    pub(crate) fn copies(&mut self) -> Vec<Vec<u8>> {
        let mut records = self.copies.take();
        let layout = &self.copy_layout;
        for record in &mut records {
            let headers = layout.u16(record, "l4_at") + layout.u16(record, "header");
            let len = usize::from(headers) + layout.u32(record, "len") as usize;
            record.drain(..layout.size);
            record.truncate(len);
        }
        records
    }

    /// Moves the stored times back, so that `ticks` (2^20 ns) seem to have passed.
    pub(crate) fn pass_time(&self, key: &[u8], ticks: u32, fields: &[&str]) {
        let Some(mut bytes) = self.flows.lookup(key, MapFlags::ANY).unwrap() else {
            return;
        };
        for field in fields {
            let then = self.layout.u32(&bytes, field).wrapping_sub(ticks);
            self.layout.set(&mut bytes, field, &then.to_ne_bytes());
        }
        self.flows.update(key, &bytes, MapFlags::EXIST).unwrap();
    }

    /// Configures the programs. `by_address`: guest networks are configured. `awake`: the guest
    /// counts as awake whenever it was heard.
    pub(crate) fn configure(&self, c: &Config, by_address: bool, awake: bool) {
        let layout = &self.config_layout;
        let mut bytes = vec![0; layout.size];
        let words = [
            ("on", u32::from(c.on)),
            ("buf_size", c.buffer),
            ("guest_rcvbuf", c.guest_rcvbuf),
            ("start_early", u32::from(c.start_early)),
            ("ecn", u32::from(c.ecn)),
            ("ring", c.ring),
            ("sharing", c.sharing),
            ("awake_ticks", if awake { 1 << 20 } else { 0 }),
            ("exposure", c.exposure),
            ("exposure_ticks", c.exposure_ticks),
            ("distrusted", u32::from(c.distrusted)),
        ];
        for (field, value) in words {
            layout.set(&mut bytes, field, &value.to_ne_bytes());
        }
        let flags = [
            ("mac_known", u8::from(c.guest_mac.is_some())),
            ("by_address", u8::from(by_address)),
            ("guest_ttl", c.guest_ttl),
            ("full", u8::from(c.full)),
        ];
        for (field, value) in flags {
            layout.set(&mut bytes, field, &[value]);
        }
        layout.set(&mut bytes, "guest_mac", &c.guest_mac.unwrap_or_default());
        layout.set(&mut bytes, "until_ns", &u64::MAX.to_ne_bytes());
        self.config
            .update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY)
            .unwrap();
    }

    /// Returns the counters of a program.
    pub(crate) fn exits(&mut self, side: Side) -> &mut Exits {
        &mut self.exits[side as usize]
    }
}

/// Leaves no room for a copy at times.
fn bound_copies(open: &mut OpenObject) {
    let mut maps = open.maps_mut();
    let mut retained = maps.find(|map| map.name() == "retained").unwrap();
    retained.set_max_entries(COPIES).unwrap();
}

fn index_of(name: &str) -> u32 {
    let family = rustix::net::AddressFamily::INET;
    let socket = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None).unwrap();
    rustix::net::netdevice::name_to_index(socket.as_fd(), name).unwrap()
}

/// Runs `ip` or `tc` in a namespace with many lines of input.
fn batch(program: &str, netns: &str, lines: &str) {
    let mut child = Command::new(program)
        .args(["-n", netns, "-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(lines.as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success(), "{program} {lines}");
}
