//! `soak`: a mesh under load while its machines and links fail in every way that real machines and
//! links fail.
//!
//! Two hundred sessions per second, of every size and in both orders of half-close, go through two
//! `taut relay`, and every byte is compared. Meanwhile the relays are killed, stopped, reloaded
//! with new keys, lists of members and configuration, cut off from one another, and attacked by an
//! outsider who is no member.
//!
//! A session may break if an event explains both how and when it broke. It must never end normally
//! with missing or changed bytes. At the end the kernel must hold no leftovers.

mod chaos;
mod figures;
mod outsider;
mod plan;
mod rig;
mod watch;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::descriptors::enough_descriptors;
use super::outcome::Outcome;
use super::sessions::ends::{self, Patience, Run};
use super::sessions::transfer::Traffic;
use super::threads::{inside, joined};
use super::{Experiment, ExperimentError, Request};
use chaos::Chaos;
use figures::Found;
use plan::{Plan, Side};
use rig::Rig;
use taut_sys::bpf::Object;
use watch::{Enough, Holding, Processes};

/// The entry in the list of experiments.
pub const EXPERIMENT: Experiment = Experiment {
    name: "soak",
    about: "a mesh under load while relays are killed and revoked, links cut, keys rotated, and an outsider attacks",
    has_parts: false,
    minutes: 5,
    run,
};

/// The patience of both ends. It is longer than the relays take to notice any fault in this
/// experiment.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(15),
    idle: Duration::from_secs(20),
};
/// The maximum number of bytes in one direction of a session.
const LONGEST: u64 = 4 << 20;
/// How long the kernel may take to free the resources of ended processes and namespaces.
const BURIAL: Duration = Duration::from_secs(20);
/// The pause between two checks for leftovers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn run(request: &Request) -> Result<Outcome, ExperimentError> {
    let machine = ExperimentError::machine;
    enough_descriptors(ends::AT_ONCE + outsider::AT_ONCE)
        .map_err(machine("hold both ends of every session"))?;
    let plan = Plan::of(request);
    let rig = Rig::build(request.seed, &request.taut)?;
    let listen = |at| -> Result<TcpListener, ExperimentError> {
        let listener = rig.world.host("server").run(|| TcpListener::bind(at))?;
        listener.map_err(machine("listen"))
    };
    let (server, trap) = (listen(rig.server())?, listen(rig.trap())?);

    let processes = Processes::default();
    let mut chaos = Chaos::start(&rig, &processes)?;
    let rest = |chaos: &Chaos<'_>, idle: Option<&[Holding; 2]>| {
        let of = |side: Side| {
            let idle = idle.map(|idle| &idle[side as usize]);
            Holding::at_rest(&rig, side, chaos.process(side), idle)
        };
        let both = of(Side::Near).and_then(|near| Ok([near, of(Side::Far)?]));
        both.map_err(machine("read the resources of the relays"))
    };
    let idle = rest(&chaos, None)?;
    let kinds = |chaos: &Chaos<'_>| {
        let both = Side::BOTH.map(|side| watch::kinds(chaos.process(side)));
        let [near, far] = both;
        near.and_then(|near| Ok([near, far?]))
            .map_err(machine("read the resources of the relays"))
    };
    let idle_kinds = kinds(&chaos)?;

    super::progress::say(&format!(
        "soak: {} s of {} sessions/s, {} events",
        plan.load.as_secs(),
        plan.rate,
        plan.events.len()
    ));
    let traffic = Traffic {
        seed: plan.seed,
        longest: LONGEST,
    };
    let run = Arc::new(Run::new(PATIENCE));
    let enough = Enough::default();
    let (load, attack, samples) = std::thread::scope(|scope| {
        let served =
            scope.spawn(|| inside(&rig.world, "server", || ends::serve(server, traffic, &run)));
        let samples = scope.spawn(|| processes.sample(&run, &enough));
        let attack = scope.spawn(|| {
            inside(&rig.world, "outsider", || {
                outsider::attack(&plan, &rig, &run)
            })
        });
        let load = scope.spawn(|| {
            let load = inside(&rig.world, "client", || {
                ends::load(traffic, plan.arrivals(), rig.entrance(), &run)
            });
            enough.say();
            run.over.notify_one();
            load
        });
        let wreaked = chaos.wreak(&plan, &run);
        if wreaked.is_err() {
            run.give_up();
        }
        let load = joined(load)?;
        joined(served)?;
        wreaked?;
        let samples = samples
            .join()
            .unwrap_or_else(|p| std::panic::resume_unwind(p));
        Ok::<_, ExperimentError>((load, joined(attack)?, samples))
    })?;
    chaos.settle()?;
    let began = Instant::now();
    let left = rest(&chaos, Some(&idle))?;
    let settled = began.elapsed();
    let kinds = [idle_kinds, kinds(&chaos)?];
    let counters = Side::BOTH.map(|side| watch::counters(&rig, side));
    let [near, far] = counters;
    let counters = near
        .and_then(|near| Ok([near, far?]))
        .map_err(machine("read the counters of the relays"))?;
    let reloads = chaos.reloads();
    let done = chaos.finish()?;
    let dialled = dialled(&trap).map_err(machine("count connections at the trap"))?;

    let id = rig.world.id().to_owned();
    drop(trap);
    rig.world
        .tear_down()
        .map_err(machine("take the world down"))?;
    let leftovers =
        leftovers(&done.objects, &id).map_err(machine("look for leftovers in the kernel"))?;
    let found = Found {
        sum: run.ledger.sum(),
        planned: plan.arrivals().count() as u64,
        load,
        attack,
        samples,
        idle,
        left,
        kinds,
        counters,
        settled,
        reloads,
        done,
        dialled,
        leftovers,
    };
    Ok(figures::outcome(&found, &plan, request))
}

/// Returns the number of connections at the trap. No authorized client connects to it.
fn dialled(trap: &TcpListener) -> io::Result<u64> {
    trap.set_nonblocking(true)?;
    let mut dialled = 0;
    loop {
        match trap.accept() {
            Ok(_) => dialled += 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(dialled),
            Err(e) => return Err(e),
        }
    }
}

/// Describes what the relays and their world have left in the kernel.
fn leftovers<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    world: &str,
) -> io::Result<Vec<String>> {
    let deadline = Instant::now() + BURIAL;
    let mut left = Vec::new();
    for object in objects {
        while object.exists()? {
            if Instant::now() > deadline {
                left.push(format!("BPF {object:?}"));
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    for entry in std::fs::read_dir(taut_sys::netns::NETNS_DIR)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("taut-{world}-")) {
            left.push(format!("the network namespace {name}"));
        }
    }
    Ok(left)
}
