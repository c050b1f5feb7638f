//! Two `taut relay` of a mesh on one host, one behind the other.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use super::relay::{Member, make_key, wait_for_pool, write_members};
use super::two_relays::{Layout, TwoRelays};
use super::{PeerError, Service};

/// How far a relay's metrics port is from the port that it relays at.
const METRICS: u16 = 200;

/// The number of connections that the near relay keeps ready to the far one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// As many as the relay decides by itself.
    Own,
    /// None: every session waits for a connection of its own.
    None,
    /// Exactly this many.
    Exactly(u32),
}

/// Starts the pair, and waits until its pool is filled.
///
/// # Errors
/// [`PeerError`].
pub fn pair(taut: &Path, layout: &Layout<'_>, pool: Pool) -> Result<TwoRelays, PeerError> {
    let [near, far] = configurations(layout, pool)?;
    let port = layout.near.port();
    let far = start(
        taut,
        layout,
        &format!("taut-far-{port}"),
        layout.between,
        &far,
    )?;
    let near = start(
        taut,
        layout,
        &format!("taut-near-{port}"),
        layout.near,
        &near,
    )?;
    let least = match pool {
        Pool::Own => 1,
        Pool::None => 0,
        Pool::Exactly(number) => number,
    };
    wait_for_pool(&near, layout.host, metrics(layout.near), least)?;
    Ok(TwoRelays { near, far })
}

/// Returns the configurations of the near and of the far relay. Their files are in the layout's
/// directory.
fn configurations(layout: &Layout<'_>, pool: Pool) -> Result<[String; 2], PeerError> {
    let Layout {
        near,
        between,
        to,
        dir,
        ..
    } = layout;
    let file = |name: &str| dir.join(format!("mesh-{}-{name}", near.port()));
    let keys = ["near.key", "far.key"].map(file);
    let list = file("members.toml");
    // An earlier pair at these ports has left its files.
    if !list.exists() {
        let member = |name: &str, key, addresses| -> Result<Member, PeerError> {
            Ok(Member {
                name: name.to_owned(),
                keys: vec![make_key(key)?],
                addresses,
            })
        };
        let members = [
            member("near", &keys[0], Vec::new())?,
            member("far", &keys[1], vec![*between])?,
        ];
        write_members(&list, &members)?;
    }
    let [near_key, far_key] = keys.each_ref().map(|key| key.display());
    let list = list.display();
    let pool = match pool {
        Pool::Own => String::new(),
        Pool::None => "pool_max = 0\n".to_owned(),
        Pool::Exactly(number) => format!("pool_min = {number}\npool_max = {number}\n"),
    };
    // Turbo start is for long paths, and limits the rate.
    let near = format!(
        "[relay]\n\
         metrics = \"{}\"\n\
         [relay.mesh]\n\
         private_key_file = \"{near_key}\"\n\
         members_file = \"{list}\"\n\
         turbo = false\n\
         {pool}\
         [[relay.forward]]\n\
         listen = \"{near}\"\n\
         via = \"far\"\n\
         to = \"{to}\"\n",
        metrics(*near)
    );
    // A relay refuses destinations on its own machine unless they are named.
    let far = format!(
        "[relay]\n\
         metrics = \"{}\"\n\
         [relay.mesh]\n\
         private_key_file = \"{far_key}\"\n\
         members_file = \"{list}\"\n\
         turbo = false\n\
         listen = \"{between}\"\n\
         allow = \"{}/32:{}\"\n",
        metrics(*between),
        to.ip(),
        to.port()
    );
    Ok([near, far])
}

fn metrics(relay: SocketAddr) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, relay.port() + METRICS).into()
}

fn start(
    taut: &Path,
    layout: &Layout<'_>,
    name: &str,
    addr: SocketAddr,
    configuration: &str,
) -> Result<Service, PeerError> {
    let mut command = Command::new(taut);
    command
        .args(["relay", "--config"])
        .arg(layout.write(name, configuration)?);
    Service::start(layout.host, name, command, addr, layout.dir)
}
