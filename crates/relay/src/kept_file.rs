//! Files that the relay keeps from one start to the next.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use taut_sys::file_lock;

/// The mode of a kept file. Other jobs and users may read it.
const MODE: u32 = 0o644;

/// Why the file has not been replaced.
#[derive(Debug)]
pub(crate) enum NotReplaced<E> {
    /// The caller refused.
    Refused(E),
    /// The file could not be written: a sentence with the path and what to do.
    Failed(String),
}

/// Replaces the file by one with this text, which is complete on disk before it gets the name. A missing
/// directory is made. `may` runs while no other process can replace the file, so the file that it reads
/// is the one that is replaced.
pub(crate) fn write<E>(
    path: &Path,
    text: &str,
    may: impl FnOnce() -> Result<(), E>,
) -> Result<(), NotReplaced<E>> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = Path::new(&new);
    let folder = path.parent().unwrap_or(Path::new("/"));
    let failed = |error: io::Error| {
        NotReplaced::Failed(format!(
            "cannot write {}: {error}; the relay's user must be able to create files in {}",
            path.display(),
            folder.display()
        ))
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let file = lock(new).map_err(failed)?;
    if let Err(refused) = may() {
        // If it cannot be removed, the next call overwrites it.
        let _ = fs::remove_file(new);
        return Err(NotReplaced::Refused(refused));
    }
    replace(path, new, file, text).map_err(failed)
}

/// Creates the file that takes the place of the former one, and locks it. It is the relay's alone until it
/// has its name: whoever can read a file can lock it, and keep the list from changing.
fn lock(new: &Path) -> io::Result<File> {
    if fs::symlink_metadata(new).is_ok_and(|left| left.mode() & 0o077 != 0) {
        // Earlier versions left such files when they were killed.
        fs::remove_file(new)?;
    }
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(new)?;
    // At a handover two processes write the file. The other one may have given the file its final
    // name between the two calls.
    file_lock::try_lock(&file)?;
    let (held, named) = (file.metadata()?, fs::symlink_metadata(new)?);
    if (held.dev(), held.ino()) != (named.dev(), named.ino()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(file)
}

fn replace(path: &Path, new: &Path, mut file: File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)?;
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
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

    fn write_always(path: &Path, text: &str) -> Result<(), String> {
        write(path, text, || Ok(())).map_err(|error: NotReplaced<()>| match error {
            NotReplaced::Failed(sentence) => sentence,
            NotReplaced::Refused(()) => unreachable!("it is always allowed"),
        })
    }

    #[test]
    fn a_list_that_another_process_has_written_meanwhile_can_refuse_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.toml");
        write_always(&path, "newer").unwrap();
        let refused = write(&path, "older", || Err(fs::read_to_string(&path).unwrap()));
        assert!(matches!(refused, Err(NotReplaced::Refused(held)) if held == "newer"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_list_replaces_the_file_and_leaves_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.toml");
        for text in ["first, and longer", "second"] {
            write_always(&path, text).unwrap();
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
        write_always(&path, "third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
    }

    #[test]
    fn a_list_that_cannot_be_written_leaves_the_former_and_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("members.toml");
        write_always(&path, "former").unwrap();
        // Another process writes at this moment.
        let new = folder.path().join("members.toml.new");
        let mut own = File::options();
        let other = own.write(true).create(true).truncate(false).mode(0o600);
        let other = other.open(&new).unwrap();
        file_lock::try_lock(&other).unwrap();
        assert!(
            write_always(&path, "later")
                .unwrap_err()
                .starts_with("cannot write")
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "former");
        drop(other);
        // A user has locked what a process left that everybody may read.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        let left = File::options().write(true).open(&new).unwrap();
        file_lock::try_lock(&left).unwrap();
        write_always(&path, "revoked").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "revoked");
        // A missing directory is made, which a file in its place prevents.
        write_always(&folder.path().join("made/members.toml"), "x").unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let nowhere = folder.path().join("file/members.toml");
        let error = write_always(&nowhere, "x").unwrap_err();
        assert!(error.contains("must be able to create files in"), "{error}");
    }
}
