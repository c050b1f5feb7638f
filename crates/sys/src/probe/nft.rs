//! Probe of nftables' `tproxy` expression, in a private network namespace.

use std::io;

use super::module::unless_it_loads;
use super::{Answer, network};
use crate::netlink::{ACK, CREATE, Message, NETFILTER, REQUEST};

/// Probes whether nftables can redirect a packet to a socket with another address (TPROXY).
pub fn tproxy() -> Answer {
    unless_it_loads(&["nf_tables", "nft_tproxy"], || {
        network::in_private(|| Answer::of(add_rule()))
    })
}

/// Runs `add rule ip taut taut tproxy to :1`, with its table and chain, as one transaction.
fn add_rule() -> io::Result<()> {
    const BATCH_BEGIN: u16 = 0x10;
    const BATCH_END: u16 = 0x11;
    const NFTABLES: u16 = 10;
    const NEWTABLE: u16 = NFTABLES << 8;
    const NEWCHAIN: u16 = NFTABLES << 8 | 3;
    const NEWRULE: u16 = NFTABLES << 8 | 6;
    const NAME: &str = "taut";
    const RULE: u32 = 3;

    // struct nfgenmsg: family, version, resource.
    let batch = [[0, 0], NFTABLES.to_be_bytes()].concat();
    let ipv4 = [libc::NFPROTO_IPV4 as u8, 0, 0, 0];
    Message::default()
        .message(BATCH_BEGIN, REQUEST, 0, |m| m.raw(&batch))
        .message(NEWTABLE, REQUEST | CREATE, 1, |m| {
            m.raw(&ipv4).name(1, NAME)
        })
        .message(NEWCHAIN, REQUEST | CREATE, 2, |m| chain(m.raw(&ipv4), NAME))
        .message(NEWRULE, REQUEST | CREATE | ACK, RULE, |m| {
            rule(m.raw(&ipv4), NAME)
        })
        .message(BATCH_END, REQUEST, 4, |m| m.raw(&batch))
        .send(NETFILTER, RULE)
}

/// Appends a filter chain at prerouting, the only hook where the kernel accepts the expression.
fn chain(message: Message, name: &str) -> Message {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 3;
    const HOOK: u16 = 4;
    const TYPE: u16 = 7;
    const PREROUTING: u32 = 0;
    const MANGLE: i32 = -150;
    message
        .name(TABLE, name)
        .name(CHAIN, name)
        .nest(HOOK, |m| {
            m.attribute(1, &PREROUTING.to_be_bytes())
                .attribute(2, &MANGLE.to_be_bytes())
        })
        .name(TYPE, "filter")
}

/// Appends a rule that puts port 1 into a register and runs `tproxy` with that register.
fn rule(message: Message, name: &str) -> Message {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    const ELEMENT: u16 = 1;
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const REGISTER: [u8; 4] = 1u32.to_be_bytes();
    const FAMILY_IPV4: [u8; 4] = 2u32.to_be_bytes();
    message
        .name(TABLE, name)
        .name(CHAIN, name)
        .nest(EXPRESSIONS, |m| {
            m.nest(ELEMENT, |m| {
                m.name(NAME, "immediate").nest(DATA, |m| {
                    // Destination register; value.
                    m.attribute(1, &REGISTER)
                        .nest(2, |m| m.attribute(1, &1u16.to_be_bytes()))
                })
            })
            .nest(ELEMENT, |m| {
                m.name(NAME, "tproxy").nest(DATA, |m| {
                    // Family; register of the port.
                    m.attribute(1, &FAMILY_IPV4).attribute(3, &REGISTER)
                })
            })
        })
}
