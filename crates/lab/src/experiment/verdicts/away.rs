//! A guest that is kept from its CPU, at the end that receives or at the one that sends.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::experiment::guests::gate::{Gate, Sharers};
use crate::experiment::guests::guest::Guest;
use crate::experiment::guests::guest::talk::Start;
use crate::experiment::guests::network::{ALONE, SERVER, SERVER_MAC, TAP, lay_out_alone};
use crate::experiment::guests::slices::{Shape, Slices};
use crate::experiment::guests::uml::{self, Booting, Uml};
use taut_netlab::world::World;

/// Who listens may have been started at the same time.
const TRIES: &str = "retry=100,interval=0.1";

/// The guest, and who decides when it runs.
pub(super) struct Away {
    // Everybody runs when it ends.
    gate: Gate,
    guest: Uml,
    shape: Shape,
    seed: u64,
}

// === impl Away ===

impl Away {
    /// A guest on a bridge with the link of `client`, which shares its core with so many as `sharers` says, itself
    /// included. It runs all the time yet.
    pub(super) fn boot(world: &World, sharers: usize, seed: u64) -> io::Result<Self> {
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
            shape: Shape::of(sharers, false),
            seed,
        })
    }

    /// It begins to download, and from now on it runs in its slices only.
    pub(super) fn download(&mut self, url: &str) -> io::Result<()> {
        self.talk("curl", &["-q", "--silent", "--output", "/dev/null", url])
    }

    /// The same, and it sends to this port of the server's.
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

    /// It runs `taut` with these arguments, and sends what that says to this port of the server's.
    pub(super) fn say(&mut self, taut: &Path, args: &[&str], port: u16) -> io::Result<()> {
        let script = format!(
            "{{ \"$TAUT\" \"$@\" || echo it failed; }} | socat -u STDIN TCP:{SERVER}:{port},{TRIES}"
        );
        let mut all = vec!["-c".to_owned(), script, "sh".to_owned()];
        all.extend(args.iter().map(ToString::to_string));
        self.guest.start(Start {
            name: "taut".to_owned(),
            program: "sh".to_owned(),
            args: all,
            env: vec![("TAUT".to_owned(), taut.display().to_string())],
        })
    }
}
