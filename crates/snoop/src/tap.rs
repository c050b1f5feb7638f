//! What a tap has to be for a promise to hold: a TAP of one queue whose ring takes a frame or refuses
//! it there and then, with nothing before it.
//!
//! A tap's ring has `txqueuelen` places. Before the ring there may be a queueing discipline, and then
//! a frame that was taken may still be dropped; so it is `noqueue` while a tap is served
//! (`docs/design/snoop.md`). What was there is put back.

use std::io;

use futures_util::TryStreamExt as _;
use rtnetlink::{Handle, LinkUnspec};
use taut_sys::bpf::tc::{AttachPoint, link_count};

use crate::device::{Device, Kind, NO_QUEUE};
use crate::qdisc::{self, Qdisc};
use crate::records::{Record, Records};

/// Disciplines that only keep frames waiting, and can be put back as they were. (The others shape, or
/// have classes and filters, which would be lost.)
const PLAIN_QUEUES: &[&str] = &["pfifo_fast", "pfifo", "bfifo", "fq_codel", "fq"];

/// Why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// Netlink cannot be spoken.
    #[error("cannot speak netlink: {0}")]
    Socket(#[source] io::Error),
    /// It is not there.
    #[error("there is no device {0}; `ip link` lists those there are")]
    NoDevice(String),
    /// It is no tap.
    #[error(
        "{name} is {what} and no tap: whether the guest gets a frame cannot be known there; snoop works at \
         taps, as QEMU, Firecracker and cloud-hypervisor have them (not at macvtap, vhost-user or SR-IOV)"
    )]
    Foreign {
        /// Its name.
        name: String,
        /// What it is.
        what: String,
    },
    /// It may have many queues.
    #[error(
        "{0} was made for many queues: a flow may change from one to another and overtake itself, and what the \
         guest lacks could not be told from what comes later; start the guest with one (QEMU: without `queues=`, \
         libvirt: without `<driver queues=...>`, ip tuntap: without `multi_queue`)"
    )]
    ManyQueues(String),
    /// Another process is at it.
    #[error(
        "{0} is served by another taut snoop; one process serves a tap: stop that one, or leave this tap to it"
    )]
    Served(String),
    /// It has a queue.
    #[error(
        "{0} has a queueing discipline before its ring: `tc qdisc replace dev {0} root noqueue` first"
    )]
    Queued(String),
    /// Something else looks at what goes to the guest.
    #[error(
        "{0} has other BPF programs or tc filters at its egress: they would see each segment twice, and may take \
         one away that has been acknowledged; move them to the bridge's other ports (`tc filter show dev {0} \
         egress`, `bpftool net show dev {0}`)"
    )]
    Filtered(String),
    /// Its queueing discipline does more than keep frames.
    #[error(
        "{name} has the queueing discipline {qdisc}, which somebody has set up and which can only be lost: snoop \
         needs a tap without any. Shape what the guest is sent before the bridge, then `tc qdisc replace dev \
         {name} root noqueue`"
    )]
    Shaped {
        /// Its name.
        name: String,
        /// The discipline's.
        qdisc: String,
    },
    /// The ring would become smaller.
    #[error(
        "the ring of {name} has {present} places, more than the {asked} that are asked for: to make it smaller \
         loses what is in it; ask for at least {present}, or stop the guest and set it with `ip link set {name} \
         txqueuelen {asked}`"
    )]
    Shrinks {
        /// Its name.
        name: String,
        /// Its places now.
        present: u32,
        /// What was asked for.
        asked: u32,
    },
    /// The kernel refused a change.
    #[error("cannot {what} {name}: {source}; it needs CAP_NET_ADMIN, or root")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// At which device.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// A tap that is fit to be served. Dropped, its ring and its queueing discipline are what they were,
/// unless somebody else has changed them meanwhile.
#[derive(Debug)]
pub struct Prepared {
    index: u32,
    name: String,
    ring: Option<Changed<u32>>,
    /// What was there instead of no queue; `Some(None)`: the kernel's choice.
    qdisc: Option<Option<Qdisc>>,
    record: Record,
}

/// What it was, and what it has been made.
#[derive(Clone, Copy, Debug)]
struct Changed<T> {
    from: T,
    to: T,
}

/// The devices of the calling thread's network namespace.
///
/// # Errors
/// [`TapError::Socket`]: netlink cannot be spoken.
pub fn devices() -> Result<Vec<Device>, TapError> {
    with_netlink(async |handle| list(&handle).await)
}

/// Whether it is a tap that can be served.
///
/// # Errors
/// [`TapError::Foreign`] or [`TapError::ManyQueues`].
pub fn require_single_queue_tap(device: &Device) -> Result<(), TapError> {
    let foreign = |what: &str| {
        Err(TapError::Foreign {
            name: device.name.clone(),
            what: what.to_owned(),
        })
    };
    match &device.kind {
        Kind::Tap { many_queues: false } => Ok(()),
        Kind::Tap { many_queues: true } => Err(TapError::ManyQueues(device.name.clone())),
        Kind::Tun => foreign("a TUN (without Ethernet)"),
        Kind::Other(Some(kind)) => foreign(&format!("a device of kind {kind}")),
        Kind::Other(None) => foreign("a device of hardware"),
    }
}

// === impl Prepared ===

impl Prepared {
    /// Makes the tap fit to be served, its ring with at least `ring` places if that is said.
    ///
    /// # Errors
    /// [`TapError`], and then it is as it was.
    pub fn prepare(
        device: &Device,
        ring: Option<u32>,
        records: &Records,
    ) -> Result<Self, TapError> {
        require_single_queue_tap(device)?;
        if let Some(asked) = ring
            && asked < device.ring
        {
            return Err(TapError::Shrinks {
                name: device.name.clone(),
                present: device.ring,
                asked,
            });
        }
        // Dropped, it puts back what has been done when a step fails.
        let mut prepared = Self {
            index: device.index,
            name: device.name.clone(),
            ring: None,
            qdisc: None,
            record: records.of(device).map_err(|source| match source.kind() {
                io::ErrorKind::WouldBlock => TapError::Served(device.name.clone()),
                _ => refused("open the record of", &device.name, source),
            })?,
        };
        with_netlink(async |handle| prepared.change(&handle, device, ring).await)?;
        Ok(prepared)
    }

    async fn change(
        &mut self,
        handle: &Handle,
        device: &Device,
        ring: Option<u32>,
    ) -> Result<(), TapError> {
        if device.has_queue() {
            let before = qdisc::root(self.ifindex())
                .await
                .map_err(|source| self.refused("read the queueing discipline of", source))?;
            if let Some(before) = &before
                && !before.is_kernels_choice()
                && !PLAIN_QUEUES.contains(&&*before.name())
            {
                return Err(TapError::Shaped {
                    name: self.name.clone(),
                    qdisc: before.name(),
                });
            }
            let before = before.filter(|before| !before.is_kernels_choice());
            self.record
                .save(before.as_ref())
                .map_err(|source| self.refused("record the queueing discipline of", source))?;
            self.qdisc = Some(before);
            qdisc::replace(&Qdisc::named(self.ifindex(), NO_QUEUE))
                .await
                .map_err(|source| self.refused("take the queueing discipline off", source))?;
        }
        // Without a queue because of a process that was killed, or by somebody's will.
        if !device.has_queue() {
            self.qdisc = self.record.left(device);
        }
        if let Some(to) = ring.filter(|to| *to != device.ring) {
            set_ring(handle, self.index, to)
                .await
                .map_err(|source| self.refused("size the ring of", io::Error::other(source)))?;
            let from = device.ring;
            self.ring = Some(Changed { from, to });
        }
        Ok(())
    }

    fn ifindex(&self) -> i32 {
        self.index.cast_signed()
    }

    fn refused(&self, what: &'static str, source: io::Error) -> TapError {
        refused(what, &self.name, source)
    }

    async fn put_back(&mut self, handle: &Handle) -> Result<(), TapError> {
        let devices = list(handle).await?;
        let recorded = self.qdisc.is_some();
        // Its guest may have gone, and it with the guest.
        let Some(now) = devices.iter().find(|device| device.index == self.index) else {
            self.record.remove();
            return Ok(());
        };
        if let Some(before) = self.qdisc.take()
            && !now.has_queue()
        {
            let done = match before {
                Some(before) => qdisc::replace(&before).await,
                None => qdisc::reset(self.ifindex()).await,
            };
            done.map_err(|source| self.refused("put the queueing discipline back at", source))?;
        }
        if recorded {
            self.record.remove();
        }
        // A smaller ring loses what is in it and has been acknowledged; so it stays if there is
        // more in it now than before, which cannot be known: it stays larger.
        if let Some(Changed { from, to }) = self.ring.take()
            && now.ring == to
        {
            tracing::info!(
                tap = %self.name, places = to, before = from,
                "the ring stays as large as it is, for made smaller it would lose what is in it; `ip link \
                 set {} txqueuelen {from}` makes it what it was", self.name
            );
        }
        Ok(())
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if self.qdisc.is_none() && self.ring.is_none() {
            return;
        }
        if let Err(error) = with_netlink(async |handle| self.put_back(&handle).await) {
            tracing::warn!("{error}");
        }
    }
}

fn refused(what: &'static str, name: &str, source: io::Error) -> TapError {
    TapError::Refused {
        what,
        name: name.to_owned(),
        source,
    }
}

async fn list(handle: &Handle) -> Result<Vec<Device>, TapError> {
    let links = handle.link().get().execute();
    let links: Vec<_> = links
        .try_collect()
        .await
        .map_err(|e| TapError::Socket(io::Error::other(e)))?;
    Ok(links.into_iter().filter_map(Device::from_link).collect())
}

/// Whether anything but this process's program (`own` links of tcx, and the filter of this priority)
/// is at the egress of a device.
///
/// # Errors
/// [`TapError::Refused`]: the kernel does not say.
pub(crate) fn is_filtered(device: &Device, own: u32, priority: u32) -> Result<bool, TapError> {
    let failed = |source| refused("see the filters of", &device.name, source);
    let links = link_count(device.index, AttachPoint::Egress).map_err(|e| failed(e.into()))?;
    if links > own {
        return Ok(true);
    }
    with_netlink(async |_| {
        let filters = qdisc::egress_filters(device.index.cast_signed(), priority).await;
        filters.map(|others| others > 0).map_err(failed)
    })
}

/// Puts every device of this namespace at a bridge of this name, each with a ring of so many places.
pub(crate) fn bridge(name: &str, ring: u32) -> Result<(), TapError> {
    let failed = |e: rtnetlink::Error| TapError::Socket(io::Error::other(e));
    with_netlink(async |handle| {
        let ports = list(&handle).await?;
        let bridge = rtnetlink::LinkBridge::new(name).build();
        handle.link().add(bridge).execute().await.map_err(failed)?;
        let bridge = list(&handle).await?;
        let bridge = bridge.iter().find(|device| device.name == name);
        let bridge = bridge.ok_or_else(|| TapError::NoDevice(name.to_owned()))?;
        for port in ports.iter().filter(|port| port.name != "lo") {
            let link = LinkUnspec::new_with_index(port.index)
                .controller(bridge.index)
                .txqueuelen(ring)
                .up();
            let link = link.build();
            handle.link().set(link).execute().await.map_err(failed)?;
        }
        Ok(())
    })
}

async fn set_ring(handle: &Handle, index: u32, places: u32) -> Result<(), rtnetlink::Error> {
    let link = LinkUnspec::new_with_index(index).txqueuelen(places).build();
    handle.link().set(link).execute().await
}

/// Runs `job` with a netlink connection of the calling thread's network namespace.
fn with_netlink<T>(job: impl AsyncFnOnce(Handle) -> Result<T, TapError>) -> Result<T, TapError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(TapError::Socket)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(TapError::Socket)?;
        let connection = tokio::spawn(connection);
        let done = job(handle).await;
        connection.abort();
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(kind: Kind) -> Device {
        Device {
            name: "vnet0".into(),
            index: 7,
            ring: 500,
            qdisc: "pfifo_fast".into(),
            mac: None,
            kind,
        }
    }

    #[test]
    fn only_a_tap_of_one_queue_is_fit() {
        assert!(require_single_queue_tap(&device(Kind::Tap { many_queues: false })).is_ok());
        for (kind, word) in [
            (Kind::Tap { many_queues: true }, "many queues"),
            (Kind::Tun, "TUN"),
            (Kind::Other(Some("veth".into())), "kind veth"),
            (Kind::Other(None), "hardware"),
        ] {
            let said = require_single_queue_tap(&device(kind)).map_err(|e| e.to_string());
            assert!(said.is_err_and(|said| said.contains(word)), "{word}");
        }
    }
}
