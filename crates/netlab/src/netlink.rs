//! Blocking calls of rtnetlink.

use futures_util::TryStreamExt as _;
use rtnetlink::Handle;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::LinkMessage;

/// An rtnetlink request that failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The netlink socket or its runtime failed.
    #[error("netlink: {0}")]
    Socket(#[from] std::io::Error),
    /// The kernel rejected a request.
    #[error("{what}: {source}")]
    Refused {
        /// The object of the request.
        what: String,
        /// The kernel's reason.
        source: Box<rtnetlink::Error>,
    },
    /// No device has this name.
    #[error("there is no device {0}")]
    NoDevice(String),
}

/// Runs `job` with a netlink connection of the calling thread's network namespace.
///
/// # Errors
/// When the socket cannot be opened, and whatever `job` returns.
pub fn with_netlink<T>(
    job: impl AsyncFnOnce(Handle) -> Result<T, NetlinkError>,
) -> Result<T, NetlinkError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        let connection = tokio::spawn(connection);
        let done = job(handle).await;
        connection.abort();
        done
    })
}

/// Returns the interface index of the device `name`.
///
/// # Errors
/// When there is no such device, or the kernel rejects the request.
pub async fn index(handle: &Handle, name: &str) -> Result<u32, NetlinkError> {
    Ok(get(handle, name).await?.header.index)
}

pub(crate) async fn get(handle: &Handle, name: &str) -> Result<LinkMessage, NetlinkError> {
    let mut request = handle.link().get().match_name(name.to_owned());
    request.message_mut().header.interface_family = AddressFamily::Unspec;
    let found = request.execute().try_next().await.map_err(refused(name))?;
    found.ok_or_else(|| NetlinkError::NoDevice(name.to_owned()))
}

/// Wraps a rejected request with the name of its object, for `map_err`.
pub fn refused(what: &str) -> impl FnOnce(rtnetlink::Error) -> NetlinkError {
    move |source| NetlinkError::Refused {
        what: what.to_owned(),
        source: Box::new(source),
    }
}
