//! Version 1 of the PROXY protocol (haproxy.org, `proxy-protocol.txt`, section 2.1): a line of text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Command, Header, ProxyError};

/// The start of every line.
pub(super) const PREFIX: &[u8] = b"PROXY ";

/// The longest line, with its CR and LF (section 2.1).
pub(super) const MAX_LINE: usize = 107;

/// Returns the header in `bytes` and its length, or `None` if the line is not complete.
///
/// # Errors
/// [`ProxyError::Text`] if the line is malformed or too long.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Header, usize)>, ProxyError> {
    let known = bytes.len().min(PREFIX.len());
    if bytes[..known] != PREFIX[..known] {
        return Err(ProxyError::Signature);
    }
    let window = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = window.windows(2).position(|two| two == b"\r\n") else {
        return match window.len() {
            MAX_LINE => Err(ProxyError::Text),
            _ => Ok(None),
        };
    };
    let addresses = addresses(&bytes[PREFIX.len().min(end)..end]).ok_or(ProxyError::Text)?;
    let header = Header {
        command: Command::Proxy,
        addresses,
        tlvs: Vec::new(),
    };
    Ok(Some((header, end + 2)))
}

/// Returns the addresses that follow the prefix; `Some(None)` if the sender does not know them.
#[allow(clippy::option_option)]
fn addresses(line: &[u8]) -> Option<Option<(SocketAddr, SocketAddr)>> {
    let line = str::from_utf8(line).ok()?;
    let (family, rest) = line.split_once(' ').unwrap_or((line, ""));
    // What follows UNKNOWN is ignored.
    if family == "UNKNOWN" {
        return Some(None);
    }
    let fields: Vec<_> = rest.split(' ').collect();
    let [from, to, from_port, to_port] = fields[..] else {
        return None;
    };
    let ip = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        "TCP6" => text.parse::<Ipv6Addr>().ok().map(|ip| ip.to_canonical()),
        _ => None,
    };
    let addr = |text, port| Some(SocketAddr::new(ip(text)?, number(port)?));
    Some(Some((addr(from, from_port)?, addr(to, to_port)?)))
}

/// Returns the line for these addresses. If their families differ, both are written as IPv6, IPv4 in its mapped
/// form.
pub(super) fn encode(addresses: Option<(SocketAddr, SocketAddr)>) -> String {
    let Some((from, to)) = addresses else {
        return "PROXY UNKNOWN\r\n".to_owned();
    };
    let ports = (from.port(), to.port());
    let line = match (from.ip().to_canonical(), to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => format!("PROXY TCP4 {from} {to}"),
        (from, to) => {
            let v6 = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            format!("PROXY TCP6 {} {}", v6(from), v6(to))
        }
    };
    format!("{line} {} {}\r\n", ports.0, ports.1)
}

/// Returns a port: decimal digits without a sign or leading zeros.
fn number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let leading = text.len() > 1 && text.starts_with('0');
    (digits && !leading).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(line: &str) -> Option<(SocketAddr, SocketAddr)> {
        let (header, len) = parse(line.as_bytes()).unwrap().unwrap();
        assert_eq!((header.command, len), (Command::Proxy, line.len()));
        assert!(header.tlvs.is_empty());
        header.addresses
    }

    #[test]
    fn the_lines_of_the_specification_are_read() {
        let v4 = known("PROXY TCP4 255.255.255.255 192.0.2.1 65535 0\r\n");
        let expected = (
            "255.255.255.255:65535".parse().unwrap(),
            "192.0.2.1:0".parse().unwrap(),
        );
        assert_eq!(v4, Some(expected));
        let long = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let v6 = known(&format!("PROXY TCP6 {long} ::1 1 2\r\n"));
        let expected = (format!("[{long}]:1"), "[::1]:2".to_owned());
        assert_eq!(
            v6.map(|(a, b)| (a.to_string(), b.to_string())),
            Some(expected)
        );
        assert_eq!(known("PROXY UNKNOWN\r\n"), None);
        let longest = format!("PROXY UNKNOWN {long} {long} 65535 65535\r\n");
        assert_eq!((longest.len(), known(&longest)), (MAX_LINE, None));
        // As everywhere, an IPv4-mapped address is one of IPv4.
        let mapped = known("PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n");
        assert!(mapped.unwrap().0.is_ipv4());
    }

    #[test]
    fn a_malformed_line_is_refused() {
        for line in [
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 \r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY unknown\r\n",
            "PROXY UNKNOWN2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\r\n",
        ] {
            assert_eq!(parse(line.as_bytes()), Err(ProxyError::Text), "{line}");
        }
        assert_eq!(parse(b"POST / "), Err(ProxyError::Signature));
        let long = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
        assert_eq!(parse(&long), Err(ProxyError::Text));
    }

    proptest! {
        #[test]
        fn a_line_is_read_at_its_last_byte(
            from: Ipv6Addr, to: Ipv6Addr, ports: (u16, u16), rest: Vec<u8>,
        ) {
            let line = format!("PROXY TCP6 {from} {to} {} {}\r\n", ports.0, ports.1);
            let stream = [line.as_bytes(), &rest].concat();
            for cut in 0..line.len() {
                prop_assert_eq!(parse(&stream[..cut]), Ok(None));
            }
            let (header, len) = parse(&stream).unwrap().unwrap();
            prop_assert_eq!(len, line.len());
            let canonical = |ip: Ipv6Addr, port| SocketAddr::new(ip.to_canonical(), port);
            let addresses = (canonical(from, ports.0), canonical(to, ports.1));
            prop_assert_eq!(header.addresses, Some(addresses));
        }

        #[test]
        fn a_written_line_is_read_as_it_was(
            from: std::net::IpAddr, to: std::net::IpAddr, ports: (u16, u16),
        ) {
            let canonical = |ip: IpAddr, port| SocketAddr::new(ip.to_canonical(), port);
            let addresses = Some((canonical(from, ports.0), canonical(to, ports.1)));
            let line = encode(addresses);
            prop_assert!(line.len() <= MAX_LINE, "{line}");
            prop_assert_eq!(known(&line), addresses);
            prop_assert_eq!(known(&encode(None)), None);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = parse(&[PREFIX, &bytes].concat());
            let _ = parse(&bytes);
        }
    }
}
