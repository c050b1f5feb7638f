//! Files with a private key or a password.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use zeroize::Zeroizing;

use super::failure::Failure;

/// The largest accepted size of such a file, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Reads a file that other users must not be able to read.
pub(super) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let file = File::open(path).map_err(|e| Failure::file(path, e))?;
    let meta = file.metadata().map_err(|e| Failure::file(path, e))?;
    if meta.mode() & 0o007 != 0 {
        let mode = meta.mode() & 0o7777;
        let problem = format!(
            "other users can read or write it (mode {mode:04o}); run `chmod o= {}`",
            path.display()
        );
        return Err(Failure::file(path, problem));
    }
    // Full capacity at once: a growing buffer leaves copies in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize));
    file.take(MAX_FILE)
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::file(path, e))?;
    Ok(bytes)
}

/// Reads a password: the first line of a file.
pub(super) fn read_password(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let bytes = read_secret(path)?;
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    let text = str::from_utf8(line).map_err(|_| Failure::file(path, "is not UTF-8"))?;
    let text = text.trim_end_matches('\r');
    match text.is_empty() {
        true => Err(Failure::file(
            path,
            "is empty; write the password into its first line",
        )),
        false => Ok(Zeroizing::new(text.to_owned())),
    }
}
