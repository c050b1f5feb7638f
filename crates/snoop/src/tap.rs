//! Prepares a tap for early ACKs: a TAP with one queue, whose ring takes a frame or refuses it at
//! once, with no other queue in front.
//!
//! The ring has `txqueuelen` places. A queueing discipline in front of it could still drop a frame
//! after the sender got its ACK, so a served tap has `noqueue` (`docs/design/snoop.md`). The
//! original discipline is restored afterwards.

use std::io;

use futures_util::{StreamExt as _, TryStreamExt as _};
use rtnetlink::packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle};
use rtnetlink::{Handle, LinkUnspec};
use taut_exposition::runtime;
use taut_sys::privileges::{self, Capability};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::device::{Device, Kind, NO_QUEUE};
use crate::hook::ForeignHook;
use crate::qdisc::{self, PATIENCE, Qdisc};
use crate::records::{Record, Records};

/// Disciplines that only queue frames, so that they can be restored. (Others shape traffic, or have
/// classes and filters, which would be lost.)
const PLAIN_QUEUES: &[&str] = &["pfifo_fast", "pfifo", "bfifo", "fq_codel", "fq"];

/// The reason why a device cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// Netlink fails.
    #[error("netlink request failed: {0}")]
    Socket(#[source] io::Error),
    /// The device does not exist.
    #[error("device {0} does not exist; `ip link` lists the devices")]
    NoDevice(String),
    /// The device is not a tap.
    #[error(
        "{name} is {what}, not a tap, so delivery to the guest cannot be observed; snoop serves the taps of QEMU, Firecracker and \
         cloud-hypervisor, not macvtap, vhost-user or SR-IOV"
    )]
    Foreign {
        /// The device's name.
        name: String,
        /// The kind of the device.
        what: String,
    },
    /// The tap was created with several queues.
    #[error(
        "{0} was created with many queues: a flow that moves between them is reordered, which looks like loss in the guest; \
         start the guest with one queue (QEMU: without `queues=`, libvirt: without `<driver queues=...>`, ip tuntap: without \
         `multi_queue`)"
    )]
    ManyQueues(String),
    /// Another process serves the tap.
    #[error("{0} is served by another taut snoop; stop it, or leave this tap to it")]
    Served(String),
    /// A queueing discipline is in front of the ring.
    #[error(
        "{0} has a queueing discipline before its ring; run `tc qdisc replace dev {0} root noqueue` first"
    )]
    Queued(String),
    /// Programs or filters of others see the packets.
    #[error("{}", hook.sentence(name))]
    Filtered {
        /// The device's name.
        name: String,
        /// Where they are.
        hook: ForeignHook,
    },
    /// The queueing discipline cannot be restored after a replacement.
    #[error(
        "{name} has the queueing discipline {qdisc}, which could not be restored: snoop needs a tap without one. Shape the \
         guest's traffic before the bridge, then run `tc qdisc replace dev {name} root noqueue`"
    )]
    Shaped {
        /// The device's name.
        name: String,
        /// The discipline's name.
        qdisc: String,
    },
    /// The requested ring is smaller than the present one.
    #[error(
        "the ring of {name} has {present} places; shrinking it to {asked} would lose the frames in it. Pass --ring {present} or more, \
         or stop the guest and run `ip link set {name} txqueuelen {asked}`"
    )]
    Shrinks {
        /// The device's name.
        name: String,
        /// The ring's present length.
        present: u32,
        /// The requested length.
        asked: u32,
    },
    /// The kernel refused a request.
    #[error("cannot {what} {name}: {source}{}", privileges::hint(.source, &[Capability::NetAdmin]))]
    Refused {
        /// The request, as a verb phrase.
        what: &'static str,
        /// The device's name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A tap that is ready to be served. Dropping it restores its ring and queueing discipline, unless
/// someone else changed them meanwhile.
#[derive(Debug)]
pub struct Prepared {
    index: u32,
    name: String,
    ring: Option<Changed<u32>>,
    /// The original discipline; `Some(None)` is the kernel's default.
    qdisc: Option<Option<Qdisc>>,
    record: Record,
}

/// The original value of a setting, and the value that it was changed to.
#[derive(Clone, Copy, Debug)]
struct Changed<T> {
    from: T,
    to: T,
}

/// Lists the devices of the calling thread's network namespace.
///
/// # Errors
/// [`TapError::Socket`].
pub fn devices() -> Result<Vec<Device>, TapError> {
    with_netlink(async |handle| list(&handle).await)
}

/// Returns the queueing disciplines below the roots of all devices, each with its device's index:
/// one for each queue of `mq`, and those of classes.
///
/// # Errors
/// [`TapError::Socket`].
pub fn qdiscs_below_roots() -> Result<Vec<(u32, String)>, TapError> {
    with_netlink(async |handle| {
        let all = handle.qdisc().get().execute();
        let all: Vec<_> = all
            .try_collect()
            .await
            .map_err(|e| TapError::Socket(io::Error::other(e)))?;
        let below = all.into_iter().filter_map(|qdisc| {
            // The hooks of filters are beside the root.
            let is_below = ![TcHandle::ROOT, TcHandle::CLSACT].contains(&qdisc.header.parent);
            let index = u32::try_from(qdisc.header.index)
                .ok()
                .filter(|_| is_below)?;
            let kind = qdisc
                .attributes
                .into_iter()
                .find_map(|attribute| match attribute {
                    TcAttribute::Kind(kind) => Some(kind),
                    _ => None,
                });
            Some((index, kind?))
        });
        Ok(below.collect())
    })
}

/// Checks that the device is a TAP with one queue.
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
        Kind::Other(None) => foreign("a hardware device or the loopback"),
    }
}

// === impl Prepared ===

impl Prepared {
    /// Prepares the tap. If `ring` is given, enlarges the ring to at least that many places.
    ///
    /// # Errors
    /// [`TapError`]; the tap is restored.
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
        // If a step fails, dropping this undoes the earlier ones.
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
            // A reset that got half-way was on its way to the kernel's choice.
            let before = before.filter(|root| !root.is_kernels_choice() && !root.is_half_reset());
            self.record
                .save(before.as_ref())
                .map_err(|source| self.refused("record the queueing discipline of", source))?;
            self.qdisc = Some(before);
            qdisc::replace(&Qdisc::named(self.ifindex(), NO_QUEUE))
                .await
                .map_err(|source| self.refused("remove the queueing discipline of", source))?;
        }
        // The queue was removed by a process that was killed, or by the administrator.
        if !device.has_queue() {
            self.qdisc = self.record.left(device);
        }
        if let Some(to) = ring.filter(|to| *to != device.ring) {
            set_ring(handle, self.index, to)
                .await
                .map_err(|source| self.refused("resize the ring of", io::Error::other(source)))?;
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
        // The tap disappears with its guest.
        let Some(now) = devices.iter().find(|device| device.index == self.index) else {
            self.record.remove();
            return Ok(());
        };
        let root = qdisc::root(self.ifindex()).await;
        let root =
            root.map_err(|source| self.refused("read the queueing discipline of", source))?;
        let is_half_reset = root.is_some_and(|root| root.is_half_reset());
        if let Some(before) = self.qdisc.take()
            && (!now.has_queue() || is_half_reset)
        {
            let done = match before {
                Some(before) => qdisc::replace(&before).await,
                None => qdisc::reset(self.ifindex()).await,
            };
            done.map_err(|source| self.refused("restore the queueing discipline of", source))?;
        }
        if recorded {
            self.record.remove();
        }
        // Shrinking a ring loses frames that were acknowledged. Whether it holds more frames than
        // fit into the old size cannot be known, so it stays large.
        if let Some(Changed { from, to }) = self.ring.take()
            && now.ring == to
        {
            tracing::info!(
                tap = %self.name, places = to, before = from,
                "the ring keeps its new length, because shrinking it would lose frames; `ip link set {} txqueuelen {from}` restores it", self.name
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

/// Returns the names of the taps of the calling thread's network namespace whose settings a process
/// has changed that was killed.
///
/// # Errors
/// [`TapError`].
pub fn abandoned(records: &Records) -> Result<Vec<String>, TapError> {
    let devices = with_netlink(async |handle| list(&handle).await)?;
    let abandoned = records.abandoned(&devices);
    let abandoned = abandoned.map_err(|e| refused("look for the record of", "a tap", e))?;
    Ok(abandoned.iter().map(|device| device.name.clone()).collect())
}

/// Restores the settings of these taps. Records of taps that no longer exist are removed.
///
/// # Errors
/// [`TapError`]; the record stays.
pub fn restore_abandoned(records: &Records) -> Result<(), TapError> {
    let devices = with_netlink(async |handle| list(&handle).await)?;
    records.sweep(&devices);
    let abandoned = records.abandoned(&devices);
    for device in abandoned.map_err(|e| refused("look for the record of", "a tap", e))? {
        let record = records.of(device);
        let record = record.map_err(|e| refused("open the record of", &device.name, e))?;
        let mut prepared = Prepared {
            index: device.index,
            name: device.name.clone(),
            ring: None,
            qdisc: record.left(device),
            record,
        };
        with_netlink(async |handle| prepared.put_back(&handle).await)?;
    }
    Ok(())
}

pub(crate) fn refused(what: &'static str, name: &str, source: io::Error) -> TapError {
    TapError::Refused {
        what,
        name: name.to_owned(),
        source,
    }
}

async fn list(handle: &Handle) -> Result<Vec<Device>, TapError> {
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(LinkMessage::default()));
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let answers = handle.clone().request(request);
    let mut answers = answers.map_err(|e| TapError::Socket(io::Error::other(e)))?;
    let mut devices = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                devices.extend(Device::from_link(link));
            }
            NetlinkPayload::Error(error) => return Err(TapError::Socket(error.to_io())),
            NetlinkPayload::Done(_) => return Ok(devices),
            _ => {}
        }
    }
    // A part of the list would make taps look as if they were gone, and their records superfluous.
    Err(TapError::Socket(qdisc::lost()))
}

/// Creates a bridge, and attaches every device of this namespace to it with a ring of `ring`
/// places.
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

/// Runs `job` with a netlink connection in the calling thread's network namespace.
fn with_netlink<T>(job: impl AsyncFnOnce(Handle) -> Result<T, TapError>) -> Result<T, TapError> {
    block_on(async {
        let (mut connection, handle, _) = rtnetlink::new_connection().map_err(TapError::Socket)?;
        connection.set_forward_done(true);
        let connection = tokio::spawn(connection);
        let done = timeout(PATIENCE, job(handle)).await.ok();
        // It ends by itself if its socket fails: the request of that moment then looks as if it were done, and
        // later ones fail. If the kernel had no memory for an answer, it goes on, and the request waits forever.
        let done = done.filter(|_| !connection.is_finished());
        connection.abort();
        done.unwrap_or_else(|| Err(TapError::Socket(qdisc::lost())))
    })
}

/// Runs `job` on the calling thread.
pub(crate) fn block_on<T>(job: impl Future<Output = Result<T, TapError>>) -> Result<T, TapError> {
    let runtime = runtime::build(Builder::new_current_thread().enable_io().enable_time())
        .map_err(TapError::Socket)?;
    runtime.block_on(job)
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
            xdp: false,
            up: true,
            kind,
        }
    }

    #[test]
    fn only_a_tap_with_one_queue_can_be_served() {
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
