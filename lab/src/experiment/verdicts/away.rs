//! A guest that is descheduled, as the receiver or as the sender.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::experiment::guests::gate::{Gate, Sharers};
use crate::experiment::guests::guest::Guest;
use crate::experiment::guests::guest::talk::Start;
use crate::experiment::guests::network::{ALONE, SERVER, SERVER_MAC, TAP, lay_out_alone};
use crate::experiment::guests::slices::{Shape, Slices};
use crate::experiment::guests::uml::{self, Booting, Uml};
use taut_netlab::world::World;

/// socat's options for retries: the listener may start at the same time as the client.
const TRIES: &str = "retry=100,interval=0.1";

/// The seconds within which a command in a guest, which has a share of a core, writes its first line.
const FIRST_LINE: u8 = 40;

/// The guest, and the gate that decides when it runs.
pub(super) struct Away {
    // Dropped first: the guest runs freely once the gate ends.
    gate: Gate,
    guest: Uml,
    shape: Shape,
    seed: u64,
}

// === impl Away ===

impl Away {
    /// Boots a guest on a bridge with the link of `client`. `sharers` guests share its core, itself
    /// included; each has the core for a `slice` in its turn. At first the guest runs all the time.
    pub(super) fn boot(
        world: &World,
        sharers: usize,
        slice: Duration,
        seed: u64,
    ) -> io::Result<Self> {
        let (server, client) = (world.host("server"), world.host("client"));
        lay_out_alone(server, client)?;
        let guest = Guest {
            address: ALONE.0,
            mac: ALONE.1,
            load: 0,
            device: uml::DEVICE.to_owned(),
            neighbours: vec![(SERVER, SERVER_MAC)],
        };
        let guest = Booting::start(client, TAP, guest, world.dir())?.ready(server)?;
        let mut guests = vec![None; sharers];
        guests[0] = Some(Arc::clone(&guest.process));
        let gate = Gate::start(Sharers {
            driver: None,
            guests,
        })?;
        Ok(Self {
            gate,
            guest,
            shape: Shape {
                guest: slice,
                ..Shape::of(sharers, false)
            },
            seed,
        })
    }

    /// Starts a download. From now on the guest runs only in its slices.
    pub(super) fn download(&mut self, url: &str) -> io::Result<()> {
        self.talk("curl", &["-q", "--silent", "--output", "/dev/null", url])
    }

    /// Like [`Self::download`], but the guest sends to this port of the server.
    pub(super) fn upload(&mut self, port: u16) -> io::Result<()> {
        let to = format!("TCP:{SERVER}:{port},{TRIES}");
        self.talk("socat", &["-u", "OPEN:/dev/zero", &to])
    }

    fn talk(&mut self, program: &str, args: &[&str]) -> io::Result<()> {
        self.guest.start(Start {
            name: program.to_owned(),
            program: program.to_owned(),
            args: args.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
        })?;
        self.gate.close(Slices::new(self.shape, self.seed));
        Ok(())
    }

    /// Runs `taut` in the guest with these arguments, and sends its output to this port of the
    /// server. With a `limit`, sends its first line and what follows within that time; its next
    /// write then ends it. A signal could come before it is ready: it has only a share of a core.
    pub(super) fn say(
        &mut self,
        taut: &Path,
        args: &[&str],
        limit: Option<Duration>,
        port: u16,
    ) -> io::Result<()> {
        let part = match limit {
            Some(limit) => {
                let seconds = limit.as_secs_f64();
                format!("| {{ timeout {FIRST_LINE} sed -u 1q; timeout {seconds} cat; }}")
            }
            None => String::new(),
        };
        let script = format!(
            "{{ \"$TAUT\" \"$@\" || echo it failed; }} {part} | socat -u STDIN TCP:{SERVER}:{port},{TRIES}"
        );
        let mut all = vec!["-c".to_owned(), script, "sh".to_owned()];
        all.extend(args.iter().map(ToString::to_string));
        self.guest.start(Start {
            name: format!("taut-{port}"),
            program: "sh".to_owned(),
            args: all,
            env: vec![("TAUT".to_owned(), taut.display().to_string())],
        })
    }
}
