//! The messages between the two processes, and their order. This module uses no socket.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use taut_sys::scm_rights::MAX_DESCRIPTORS;

use super::MAX_SOCKETS;

/// The version of the protocol; incremented when older processes cannot interoperate.
const VERSION: u32 = 1;

/// A message, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Message {
    /// New process: requests the sockets.
    Take {
        version: u32,
        /// It also takes the lock of interception, which the first release did not pass on.
        #[serde(default)]
        interception: bool,
    },
    /// Old process: announces the number of sockets that follow.
    Offer {
        version: u32,
        sockets: usize,
        /// The lock of interception follows, before the sockets.
        #[serde(default)]
        interception: bool,
    },
    /// Old process: the descriptor sent with this message is the lock of interception.
    Interception,
    /// Old process: the addresses of the descriptors sent with this message, in the same order.
    Sockets { addrs: Vec<SocketAddr> },
    /// New process: it accepts connections.
    Serving,
    /// Old process: it no longer accepts connections.
    Draining,
}

/// The next step of the old process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the offer and all sockets, and the lock of interception if the new process takes it.
    Give { interception: bool },
    /// Drain, and send `Draining`.
    Drain,
}

/// The old process's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Giving {
    #[default]
    Unasked,
    Given,
    Over,
}

/// The new process's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Taking {
    #[default]
    Asked,
    /// The lock of interception comes next, and then this number of sockets.
    LockOffered(usize),
    /// The number of sockets still to come.
    Offered(usize),
    Over,
}

/// Returns whether a process of user `own` may exchange sockets with one of user `other`.
pub(super) fn may_talk(other: u32, own: u32) -> bool {
    other == 0 || other == own
}

// === impl Message ===

impl Message {
    pub(super) fn take() -> Self {
        Self::Take {
            version: VERSION,
            interception: true,
        }
    }

    pub(super) fn offer(sockets: usize, interception: bool) -> Self {
        Self::Offer {
            version: VERSION,
            sockets,
            interception,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Numbers and text always serialise. If they did not, the other process would reject the
        // message.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes)
            .map_err(|e| format!("the other process sent an invalid message: {e}"))
    }
}

// === impl Giving ===

impl Giving {
    /// Handles a message of the new process.
    pub(super) fn handle(&mut self, message: &Message) -> Result<Next, String> {
        match (*self, message) {
            (
                Self::Unasked,
                &Message::Take {
                    version: VERSION,
                    interception,
                },
            ) => {
                *self = Self::Given;
                Ok(Next::Give { interception })
            }
            (Self::Unasked, Message::Take { version, .. }) => Err(other_version(*version)),
            (Self::Given, Message::Serving) => {
                *self = Self::Over;
                Ok(Next::Drain)
            }
            (state, message) => Err(format!("unexpected message {message:?} in state {state:?}")),
        }
    }
}

// === impl Taking ===

impl Taking {
    /// Handles a message of the old process that carried `descriptors` descriptors. Returns the
    /// addresses of sockets.
    pub(super) fn handle(
        &mut self,
        message: Message,
        descriptors: usize,
    ) -> Result<Vec<SocketAddr>, String> {
        match (*self, message) {
            (Self::Asked, Message::Offer { version, .. }) if version != VERSION => {
                Err(other_version(version))
            }
            (Self::Asked, Message::Offer { sockets, .. }) if sockets > MAX_SOCKETS => Err(format!(
                "{sockets} sockets are offered; the limit is {MAX_SOCKETS}"
            )),
            (
                Self::Asked,
                Message::Offer {
                    sockets,
                    interception,
                    ..
                },
            ) if descriptors == 0 => {
                *self = match interception {
                    true => Self::LockOffered(sockets),
                    false => Self::Offered(sockets),
                };
                Ok(Vec::new())
            }
            (Self::LockOffered(sockets), Message::Interception) if descriptors == 1 => {
                *self = Self::Offered(sockets);
                Ok(Vec::new())
            }
            (Self::Offered(left), Message::Sockets { addrs })
                if (1..=MAX_DESCRIPTORS.min(left)).contains(&descriptors)
                    && addrs.len() == descriptors =>
            {
                *self = Self::Offered(left - descriptors);
                Ok(addrs)
            }
            (Self::Offered(0), Message::Draining) if descriptors == 0 => {
                *self = Self::Over;
                Ok(Vec::new())
            }
            (state, message) => Err(format!(
                "unexpected message {message:?} with {descriptors} descriptors in state {state:?}"
            )),
        }
    }

    /// Returns whether every socket has arrived.
    pub(super) fn has_all(self) -> bool {
        matches!(self, Self::Offered(0) | Self::Over)
    }
}

fn other_version(version: u32) -> String {
    format!(
        "the other process speaks version {version}, this one {VERSION}: \
         restart without a handover, or go by a release that knows both"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sockets(n: usize) -> Message {
        Message::Sockets {
            addrs: vec!["[2001:db8::1]:443".parse().unwrap(); n],
        }
    }

    #[test]
    fn the_old_process_drains_only_after_it_has_given_and_is_told() {
        let mut old = Giving::default();
        assert!(old.handle(&Message::Serving).is_err());
        assert_eq!(
            old.handle(&Message::take()),
            Ok(Next::Give { interception: true })
        );
        assert!(old.handle(&Message::take()).is_err());
        assert_eq!(old.handle(&Message::Serving), Ok(Next::Drain));
        assert!(old.handle(&Message::Serving).is_err());
        let error = Giving::default().handle(&Message::Take {
            version: 2,
            interception: false,
        });
        assert!(error.unwrap_err().contains("speaks version 2, this one 1"));
    }

    #[test]
    fn the_new_process_takes_exactly_what_was_offered() {
        let mut new = Taking::default();
        assert!(new.handle(sockets(1), 1).is_err());
        new.handle(Message::offer(254, false), 0).unwrap();
        assert!(new.handle(sockets(2), 1).is_err());
        assert!(new.handle(sockets(254), 254).is_err());
        assert_eq!(new.handle(sockets(253), 253).unwrap().len(), 253);
        assert!(!new.has_all());
        assert!(new.handle(Message::Draining, 0).is_err());
        assert!(new.handle(sockets(2), 2).is_err());
        new.handle(sockets(1), 1).unwrap();
        assert!(new.has_all());
        assert!(new.handle(sockets(1), 1).is_err());
        new.handle(Message::Draining, 0).unwrap();

        assert!(
            Taking::default()
                .handle(Message::offer(MAX_SOCKETS + 1, false), 0)
                .is_err()
        );
        let other = Message::Offer {
            version: 9,
            sockets: 1,
            interception: false,
        };
        assert!(Taking::default().handle(other, 0).is_err());
    }

    #[test]
    fn the_lock_of_interception_comes_alone_and_before_the_sockets() {
        let mut new = Taking::default();
        new.handle(Message::offer(1, true), 0).unwrap();
        assert!(!new.has_all());
        assert!(new.handle(sockets(1), 1).is_err());
        assert!(new.handle(Message::Interception, 0).is_err());
        new.handle(Message::Interception, 1).unwrap();
        assert!(new.handle(Message::Interception, 1).is_err());
        new.handle(sockets(1), 1).unwrap();
        assert!(new.has_all());
    }

    /// What a process of the first release sends, which knows nothing of the lock.
    #[test]
    fn a_process_that_knows_no_lock_gives_and_takes_as_before() {
        let take = Message::decode(br#"{"say":"take","version":1}"#).unwrap();
        let given = Giving::default().handle(&take);
        assert_eq!(
            given,
            Ok(Next::Give {
                interception: false
            })
        );
        let offer = Message::decode(br#"{"say":"offer","version":1,"sockets":0}"#).unwrap();
        let mut new = Taking::default();
        new.handle(offer, 0).unwrap();
        assert!(new.has_all());
    }

    #[test]
    fn the_longest_message_fits() {
        let addr = "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%4294967295]:65535";
        let addrs = vec![addr.parse().unwrap(); MAX_DESCRIPTORS];
        assert!(Message::Sockets { addrs }.encode().len() <= super::super::MAX_MESSAGE);
    }

    #[test]
    fn only_root_and_the_same_user_are_accepted() {
        assert!(may_talk(0, 1000) && may_talk(1000, 1000) && may_talk(0, 0));
        assert!(!may_talk(1001, 1000) && !may_talk(1000, 0));
    }

    proptest! {
        #[test]
        fn nothing_that_is_said_is_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            talk in prop::collection::vec((0usize..6, 0usize..300), 0..12),
        ) {
            let _ = Message::decode(&bytes);
            let (mut old, mut new) = (Giving::default(), Taking::default());
            for (which, n) in talk {
                let message = match which {
                    0 => Message::take(),
                    1 => Message::offer(n, n % 2 == 1),
                    2 => sockets(n),
                    3 => Message::Serving,
                    4 => Message::Interception,
                    _ => Message::Draining,
                };
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message.clone()));
                let _ = old.handle(&message);
                let _ = new.handle(message, n);
            }
        }
    }
}
