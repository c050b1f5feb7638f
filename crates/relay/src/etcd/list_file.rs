//! The last good list of members on disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use taut_mesh::identity::PublicKey;
use taut_mesh::members::{MAX_SIGNED, Members};

/// Returns the list in the file; `None` if the file does not exist or has no signed list.
pub(super) fn read(path: &Path, keys: &[PublicKey]) -> Option<Members> {
    let len = fs::metadata(path).ok()?.len();
    if len > MAX_SIGNED as u64 {
        return None;
    }
    Members::parse_signed(&fs::read_to_string(path).ok()?, keys).ok()
}

/// Replaces the file by one with this list, which is complete on disk before it has the name.
///
/// # Errors
/// A sentence with the path and what to do.
pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = Path::new(&new);
    replace(path, new, text).map_err(|error| {
        let folder = path.parent().unwrap_or(Path::new("/"));
        format!(
            "cannot write {}: {error}; the relay's user must be able to create files in {}",
            path.display(),
            folder.display()
        )
    })
}

fn replace(path: &Path, new: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(new)?;
    // At a handover two processes follow the list. The other one may have given the file its final name
    // between the two calls.
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (held, named) = (file.metadata()?, fs::symlink_metadata(new)?);
    if (held.dev(), held.ino()) != (named.dev(), named.ino()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    file.set_len(0)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)?;
    match path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_replaces_the_file_and_leaves_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.toml");
        for text in ["first, and longer", "second"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        // What a killed process has left is overwritten.
        fs::write(
            folder.path().join("members.toml.new"),
            "half of a very long li",
        )
        .unwrap();
        write(&path, "third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
    }

    #[test]
    fn a_list_that_cannot_be_written_leaves_the_former_and_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.toml");
        write(&path, "former").unwrap();
        // Another process writes at this moment.
        let other = File::create(folder.path().join("members.toml.new")).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        assert!(
            write(&path, "later")
                .unwrap_err()
                .starts_with("cannot write")
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "former");
        let nowhere = folder.path().join("missing/members.toml");
        let error = write(&nowhere, "x").unwrap_err();
        assert!(error.contains("must be able to create files in"), "{error}");
    }
}
