//! The directory that a job of root's keeps its files in: locks, records, sockets.
//!
//! Other users must not be able to choose what root reads, truncates or removes there. So each
//! directory on the way is opened on its own, without following a link of another user's, and must
//! belong to root or to the process's user and be writable to nobody else. Files are opened relative
//! to the last one, so that none of the names is looked up a second time.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

use crate::scm_rights::effective_uid;
use crate::{Errno, file_lock};

/// The bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// The sticky bit: in such a directory only the owner of a file may remove or rename it.
const STICKY: u32 = 0o1000;
/// The maximum number of symbolic links on the way to a directory.
const LINKS: u32 = 8;
/// What the name of a file ends with that is being written.
const NEW: &str = ".new";

/// The reason why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JobDirError {
    /// A call failed.
    #[error("directory {path}: cannot {what}: {source}{}", denied(source), path = path.display())]
    Call {
        /// The directory.
        path: PathBuf,
        /// The call, as an infinitive.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can change it, or a directory above it, or have made a link on the way.
    #[error(
        "{path}: it belongs to user {owner} with mode {mode:o}, so others than root choose what is there; see who made it \
         (`ls -ld {path}`), and remove it",
        path = path.display()
    )]
    Foreign {
        /// The directory, or one above it, or a link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// The path has too many symbolic links, or a part that is neither directory nor link.
    #[error("directory {path}: it is no directory", path = .0.display())]
    NotADirectory(PathBuf),
}

/// Returns what to add to an error of a call on a job's directory or socket.
pub(crate) fn denied(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; only root or its owner may",
        _ => "",
    }
}

/// An open directory that only root and this process's user can write to.
#[derive(Debug)]
pub struct JobDir {
    fd: OwnedFd,
    path: PathBuf,
}

// === impl JobDir ===

impl JobDir {
    /// Opens the directory. What is missing of the path is created: the last directory with mode
    /// 0700, those above it with 0755.
    ///
    /// # Errors
    /// [`JobDirError`].
    pub fn create(path: &Path) -> Result<Self, JobDirError> {
        Walk::new(path, true).run()
    }

    /// Opens the directory; `None` if it does not exist.
    ///
    /// # Errors
    /// [`JobDirError`].
    pub fn find(path: &Path) -> Result<Option<Self>, JobDirError> {
        match Walk::new(path, false).run() {
            Err(JobDirError::Call { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Returns the path that the directory was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading and appending. A missing one is created with mode 0600.
    ///
    /// # Errors
    /// The system's, and `PermissionDenied` if it is no regular file of root or this user that
    /// nobody else can write to.
    pub fn open(&self, name: &str) -> io::Result<File> {
        self.open_with(name, OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)
    }

    /// Opens a new file for reading and appending, with mode 0600.
    ///
    /// # Errors
    /// The system's: `AlreadyExists`.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        self.open_with(name, flags)
    }

    /// Opens a file that exists for reading and appending; `None` if there is none.
    ///
    /// # Errors
    /// As [`JobDir::open`].
    pub fn open_existing(&self, name: &str) -> io::Result<Option<File>> {
        match self.open_with(name, OFlags::RDWR | OFlags::APPEND) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Waits for the lock of a file, which is created if it is missing. It is released when the file
    /// is closed.
    ///
    /// # Errors
    /// As [`JobDir::open`].
    pub fn lock(&self, name: &str) -> io::Result<File> {
        self.locked(name, |file| file_lock::lock(file))
    }

    /// Takes the lock of a file, which is created if it is missing.
    ///
    /// # Errors
    /// As [`JobDir::open`], and `WouldBlock` if another process holds it.
    pub fn try_lock(&self, name: &str) -> io::Result<File> {
        self.locked(name, |file| file_lock::try_lock(file))
    }

    /// Returns whether another process holds the lock of a file. Never keeps one from taking it.
    ///
    /// # Errors
    /// As [`JobDir::open`].
    pub fn is_held(&self, name: &str) -> io::Result<bool> {
        let Some(file) = self.open_existing(name)? else {
            return Ok(false);
        };
        file_lock::is_locked(&file)
    }

    /// Reads a file of at most `longest` bytes; `None` if there is none.
    ///
    /// # Errors
    /// As [`JobDir::open`], and `FileTooLarge`.
    pub fn read(&self, name: &str, longest: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open_with(name, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(longest + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 <= longest {
            true => Ok(Some(bytes)),
            false => Err(io::ErrorKind::FileTooLarge.into()),
        }
    }

    /// Replaces a file by one with these bytes, which is complete before it gets the name.
    ///
    /// # Errors
    /// The system's.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = format!("{name}{NEW}");
        // Left by a process that was killed while it wrote.
        self.remove(&new)?;
        self.create_new(&new)?.write_all(bytes)?;
        rustix::fs::renameat(&self.fd, &new, &self.fd, name)?;
        Ok(())
    }

    /// Removes a file, link or socket. Returns whether there was one.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    /// Returns the names in the directory that are UTF-8, in no order.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            names.extend(
                name.filter(|&name| name != "." && name != "..")
                    .map(str::to_owned),
            );
        }
        Ok(names)
    }

    fn locked(&self, name: &str, lock: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
        loop {
            let file = self.open(name)?;
            lock(&file)?;
            // Its former holder may have removed it between the two calls; the next process would lock
            // another file of this name.
            if rustix::fs::fstat(&file)?.st_nlink > 0 {
                return Ok(file);
            }
        }
    }

    fn open_with(&self, name: &str, flags: OFlags) -> io::Result<File> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Opening a pipe of another user's would block.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::LOOP | Errno::NXIO) => return Err(foreign_file(name)),
            other => other?,
        };
        let found = rustix::fs::fstat(&fd)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || !is_trusted(&found) || found.st_mode & OTHERS_WRITE != 0 {
            return Err(foreign_file(name));
        }
        Ok(fd.into())
    }
}

impl AsFd for JobDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn foreign_file(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "`{name}` is not a file that only root can write to; see who made it and remove it"
        ),
    )
}

fn is_trusted(found: &Stat) -> bool {
    found.st_uid == 0 || found.st_uid == effective_uid()
}

/// Opens the directories of a path one after the other.
struct Walk<'a> {
    path: &'a Path,
    creates: bool,
    /// The parts that are still to be opened, the next one last.
    rest: Vec<PathBuf>,
    links: u32,
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(path: &'a Path, creates: bool) -> Self {
        Self {
            path,
            creates,
            rest: parts(path).rev().collect(),
            links: 0,
        }
    }

    fn run(mut self) -> Result<JobDir, JobDirError> {
        let (mut fd, mut at) = self.start()?;
        while let Some(part) = self.rest.pop() {
            if part.has_root() {
                // A link to an absolute path.
                (fd, at) = self.open(CWD, &part, part.clone())?;
                continue;
            }
            let next = at.join(&part);
            let found = match rustix::fs::statat(&fd, &part, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) if self.creates => {
                    self.make(&fd, &part)?;
                    None
                }
                other => Some(other.map_err(self.call("look at it"))?),
            };
            match found {
                Some(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {
                    self.follow(&fd, &part, &found, next)?;
                }
                _ => (fd, at) = self.open(fd.as_fd(), &part, next)?,
            }
        }
        Ok(JobDir {
            fd,
            path: self.path.to_owned(),
        })
    }

    fn start(&mut self) -> Result<(OwnedFd, PathBuf), JobDirError> {
        match self.rest.pop() {
            Some(root) if root.has_root() => self.open(CWD, &root, root.clone()),
            first => {
                self.rest.extend(first);
                self.open(CWD, Path::new("."), PathBuf::new())
            }
        }
    }

    fn make(&self, fd: &OwnedFd, part: &Path) -> Result<(), JobDirError> {
        let mode = if self.rest.is_empty() { 0o700 } else { 0o755 };
        match rustix::fs::mkdirat(fd, part, Mode::from_raw_mode(mode)) {
            // Another process was faster.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(self.call("create it")(error)),
        }
    }

    /// Puts the target of a link before the parts that are still to be opened.
    fn follow(
        &mut self,
        fd: &OwnedFd,
        part: &Path,
        found: &Stat,
        path: PathBuf,
    ) -> Result<(), JobDirError> {
        self.links += 1;
        if self.links > LINKS {
            return Err(JobDirError::NotADirectory(self.path.to_owned()));
        }
        if !is_trusted(found) {
            return Err(foreign(path, found));
        }
        let target = rustix::fs::readlinkat(fd, part, Vec::new());
        let target = target.map_err(self.call("read a link"))?;
        let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
        self.rest.extend(parts(&target).rev());
        Ok(())
    }

    fn open(
        &self,
        fd: BorrowedFd<'_>,
        part: &Path,
        path: PathBuf,
    ) -> Result<(OwnedFd, PathBuf), JobDirError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat(fd, part, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(JobDirError::NotADirectory(path)),
            other => other.map_err(self.call("open it"))?,
        };
        let found = rustix::fs::fstat(&opened).map_err(self.call("look at it"))?;
        // Above the last one, it is enough that the next one cannot be replaced.
        let is_safe = found.st_mode & OTHERS_WRITE == 0
            || (found.st_mode & STICKY != 0 && !self.rest.is_empty());
        match is_trusted(&found) && is_safe {
            true => Ok((opened, path)),
            false => Err(foreign(path, &found)),
        }
    }

    fn call(&self, what: &'static str) -> impl FnOnce(Errno) -> JobDirError {
        let path = self.path.to_owned();
        move |error| JobDirError::Call {
            path,
            what,
            source: error.into(),
        }
    }
}

fn foreign(path: PathBuf, found: &Stat) -> JobDirError {
    JobDirError::Foreign {
        path,
        owner: found.st_uid,
        mode: found.st_mode & 0o7777,
    }
}

/// Returns the parts of a path: the root, names and `..`.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = PathBuf> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| PathBuf::from(part.as_os_str()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::{fs, os::unix::fs::chown};

    use super::*;

    /// A user that is neither root nor whoever runs the tests.
    const STRANGER: u32 = 54_321;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A directory of root's in a temporary one.
    fn folder() -> tempfile::TempDir {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test gives files to another user and must run as root; `make test` does"
        );
        tempfile::tempdir().unwrap()
    }

    fn give(path: &Path) {
        chown(path, Some(STRANGER), None).unwrap();
    }

    fn is_foreign(result: Result<JobDir, JobDirError>, named: &Path) {
        match result {
            Err(JobDirError::Foreign { path, .. }) => assert_eq!(path, named),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_missing_is_made_for_its_owner_alone() {
        let top = folder();
        let path = top.path().join("taut/guest");
        assert!(JobDir::find(&path).unwrap().is_none());
        let dir = JobDir::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(
            fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777,
            0o755
        );
        dir.replace("record", b"one").unwrap();
        dir.replace("record", b"two").unwrap();
        assert_eq!(dir.read("record", 3).unwrap().unwrap(), b"two");
        assert!(dir.read("record", 2).is_err());
        assert_eq!(
            fs::metadata(path.join("record")).unwrap().mode() & 0o777,
            0o600
        );
        assert_eq!(dir.names().unwrap(), ["record"]);
        let held = dir.lock("lock").unwrap();
        let busy = JobDir::find(&path).unwrap().unwrap().try_lock("lock");
        assert_eq!(busy.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        dir.try_lock("lock").unwrap();
        assert!(dir.remove("record").unwrap());
        assert!(!dir.remove("record").unwrap());
        assert!(dir.read("record", 3).unwrap().is_none());
    }

    #[test]
    fn a_directory_that_another_user_has_or_can_change_is_not_used() {
        let top = folder();
        let path = top.path().join("taut/guest");
        JobDir::create(&path).unwrap();
        mode(&path, 0o777);
        is_foreign(JobDir::create(&path), &path);
        // In a sticky directory others may place files that are missing.
        mode(&path, 0o1777);
        is_foreign(JobDir::create(&path), &path);
        mode(&path, 0o700);
        give(&path);
        is_foreign(JobDir::create(&path), &path);
        // Whoever has the directory above can replace this one.
        chown(&path, Some(0), None).unwrap();
        let above = path.parent().unwrap();
        give(above);
        is_foreign(JobDir::create(&path), above);
        is_foreign(JobDir::find(&path).map(Option::unwrap), above);
    }

    #[test]
    fn links_are_followed_if_only_root_can_have_made_them() {
        let top = folder();
        let (path, link) = (top.path().join("real/guest"), top.path().join("link"));
        JobDir::create(&path)
            .unwrap()
            .replace("record", b"x")
            .unwrap();
        for target in [Path::new("real"), &top.path().join("real")] {
            symlink(target, &link).unwrap();
            let dir = JobDir::find(&link.join("guest")).unwrap().unwrap();
            assert_eq!(dir.read("record", 1).unwrap().unwrap(), b"x");
            fs::remove_file(&link).unwrap();
        }
        symlink("real", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
        is_foreign(JobDir::create(&link.join("guest")), &link);
        let round = top.path().join("round");
        symlink("round", &round).unwrap();
        let said = JobDir::create(&round.join("guest")).unwrap_err();
        assert!(matches!(said, JobDirError::NotADirectory(_)), "{said}");
    }

    #[test]
    fn what_another_user_has_put_there_is_neither_read_nor_emptied() {
        let top = folder();
        let dir = JobDir::create(&top.path().join("guest")).unwrap();
        let precious = top.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let path = dir.path().join("file");
        let refused = |dir: &JobDir| {
            for result in [
                dir.open("file").map(drop),
                dir.try_lock("file").map(drop),
                dir.open_existing("file").map(drop),
                dir.read("file", 100).map(drop),
            ] {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            }
        };
        symlink(&precious, &path).unwrap();
        refused(&dir);
        // A file that takes the name is a new one.
        dir.replace("file", b"ours").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        give(&path);
        refused(&dir);
        dir.remove("file").unwrap();
        let pipe = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused(&dir);
        dir.remove("file").unwrap();
        dir.open("file").unwrap();
        mode(&path, 0o666);
        refused(&dir);
        for name in ["", ".", "..", "../precious", "/etc/passwd"] {
            let error = dir.open(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
