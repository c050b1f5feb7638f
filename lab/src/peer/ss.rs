//! ss, which shows a host's TCP connections.

use std::io::{self, Read};
use std::process::Stdio;

use super::program;
use taut_netlab::world::Host;

/// Returns the receive windows that the peers of `host`'s established connections currently
/// advertise, in bytes (`tcpi_snd_wnd` of TCP_INFO).
///
/// # Errors
/// The system's error, or that `ss` failed.
pub fn windows_of_peers(host: &Host) -> io::Result<Vec<u64>> {
    let mut command = program::SS.command();
    command
        .args(["-t", "-i", "-n", "-H", "state", "established"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = host.spawn(command)?;
    let mut said = String::new();
    if let Some(mut out) = child.pipes().stdout.take() {
        out.read_to_string(&mut said)?;
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("ss: {status}")));
    }
    Ok(windows(&said))
}

/// Returns the values of `snd_wnd:` in the output of `ss -i`.
fn windows(said: &str) -> Vec<u64> {
    said.split_whitespace()
        .filter_map(|word| word.strip_prefix("snd_wnd:")?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_and_other_figures_are_not() {
        let said = "0 0 10.0.0.1:80 10.0.0.2:5000\n\t cubic rto:240 cwnd:10 rcv_wnd:7 snd_wnd:65535 \n\
                    0 0 10.0.0.1:80 10.0.0.2:5001\n\t cubic rto:240 snd_wnd:1000\n";
        assert_eq!(windows(said), [65_535, 1_000]);
        assert!(windows("").is_empty());
    }
}
