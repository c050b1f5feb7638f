//! What a world made, written down before it is made, so that it can be undone by anybody.
//!
//! A record is a file `/run/taut/lab/ID` that its world holds locked for as long as it lives. A record
//! whose lock is free belongs to a world whose process is gone; whoever gets the lock undoes it.
//! Only what is written in the record, and bears its identifier in its name, is ever touched.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, OFlags};
use taut_sys::netns::Netns;

use super::reaper;
use super::tcp_memory::TcpMemory;

/// Where records are kept.
pub(crate) const RECORDS: &str = "/run/taut/lab";
/// The one setting of the whole machine that a world may change.
const TCP_MEM: &str = "/proc/sys/net/ipv4/tcp_mem";

/// The record of a world, locked.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    path: PathBuf,
    /// `None` once everything has been undone.
    file: Mutex<Option<File>>,
}

// === impl Record ===

impl Record {
    /// Begins the record of a new world, with an identifier that no other world on this machine has.
    pub(crate) fn begin(label: &str) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(RECORDS)?;
        loop {
            let id = fresh_id()?;
            let path = Path::new(RECORDS).join(&id);
            let mut options = OpenOptions::new();
            options.read(true).append(true).create_new(true).mode(0o600);
            let file = match options.open(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // Between the two lines above a sweep may have taken the record for a dead world's.
            if file.metadata()?.nlink() == 0 {
                continue;
            }
            let record = Self {
                id,
                path,
                file: Mutex::new(Some(file)),
            };
            record.noting("world", label, || Ok(()))?;
            return Ok(record);
        }
    }

    /// Takes over the record at `path`; `None` when its world lives or it is gone.
    fn take_over(path: &Path) -> io::Result<Option<Self>> {
        let Some(id) = path.file_name().and_then(|name| name.to_str()) else {
            return Ok(None);
        };
        let mut options = OpenOptions::new();
        options.read(true).append(true);
        // A record is a file. Neither a link to one nor a pipe, which would wait for a writer.
        options.custom_flags(
            OFlags::NOFOLLOW
                .union(OFlags::NONBLOCK)
                .bits()
                .cast_signed(),
        );
        let file = match options.open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        // Another sweep may have undone it and removed it since it was opened.
        if file.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        let file = Mutex::new(Some(file));
        Ok(Some(Self {
            id: id.to_owned(),
            path: path.to_owned(),
            file,
        }))
    }

    /// The world's identifier.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// What a namespace of this world is called that is `part` in it.
    pub(crate) fn netns_name(&self, part: &str) -> String {
        format!("taut-{}-{part}", self.id)
    }

    /// Makes a namespace, noting it first.
    pub(crate) fn make_netns(&self, part: &str) -> io::Result<Netns> {
        let name = self.netns_name(part);
        self.noting("netns", &name, || {
            Netns::create(&name).map_err(io::Error::other)
        })
    }

    /// Makes the world's directory for temporary files, noting it first.
    pub(crate) fn make_dir(&self) -> io::Result<PathBuf> {
        let path = std::env::temp_dir().canonicalize()?.join(self.dir_name());
        let text = path
            .to_str()
            .ok_or_else(|| io::Error::other("TMPDIR is not UTF-8"))?;
        self.noting("dir", text, || DirBuilder::new().mode(0o700).create(&path))?;
        Ok(path)
    }

    /// Sets what TCP may hold on this machine, in pages (`net.ipv4.tcp_mem`), noting first what it is.
    pub(crate) fn bound_tcp_memory(&self, [low, pressure, most]: [u64; 3]) -> io::Result<()> {
        let before = fs::read_to_string(TCP_MEM)?;
        let before = before.split_whitespace().collect::<Vec<_>>().join(" ");
        self.noting("tcp_mem", &before, || {
            fs::write(TCP_MEM, format!("{low} {pressure} {most}"))
        })
    }

    /// Makes a memory cgroup for sockets, noting it first; `None` if this machine has none of that kind.
    pub(crate) fn make_tcp_memory(&self) -> io::Result<Option<TcpMemory>> {
        let Some(path) = TcpMemory::place(&self.dir_name())? else {
            return Ok(None);
        };
        let text = path
            .to_str()
            .ok_or_else(|| io::Error::other("the cgroup's path is not UTF-8"))?;
        self.noting("cgroup", text, || TcpMemory::make(&path).map(Some))
    }

    fn dir_name(&self) -> String {
        format!("taut-lab-{}", self.id)
    }

    /// Writes down `kind what`, then makes it. The record stays locked against an undoing by another
    /// thread (a signal's) in between, which would miss what is about to be made.
    fn noting<T>(
        &self,
        kind: &str,
        what: &str,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        // A line break would make two notes of one.
        if what.contains('\n') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || io::Error::other("the world has already been torn down");
        held.as_mut()
            .ok_or_else(gone)?
            .write_all(format!("{kind} {what}\n").as_bytes())?;
        make()
    }

    /// Undoes everything in the record: kills the processes in its namespaces, takes the namespaces
    /// and the directory away, and last the record. What has been undone already is no error, and
    /// one failure does not keep the rest from being undone; the record then stays for the next
    /// sweep, and the first failure is returned.
    pub(crate) fn undo(&self) -> io::Result<()> {
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = held.as_mut() else {
            return Ok(());
        };
        let mut text = String::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_string(&mut text)?;

        let mut first = Ok(());
        for line in text.lines() {
            let undone = match line.split_once(' ') {
                Some(("netns", name)) if name.starts_with(&self.netns_name("")) => undo_netns(name),
                Some(("dir", path)) => self.undo_dir(Path::new(path)),
                Some(("cgroup", path)) => self.undo_cgroup(Path::new(path)),
                Some(("tcp_mem", bounds)) => undo_tcp_memory(bounds),
                // Only a name; or cut short by a kill, and then nothing was made for it.
                _ => Ok(()),
            };
            first = first.and(undone);
        }
        first?;
        fs::remove_file(&self.path)?;
        *held = None;
        Ok(())
    }

    /// Only an empty one can be removed, and its threads are this process's own.
    fn undo_cgroup(&self, path: &Path) -> io::Result<()> {
        if path.file_name().and_then(|name| name.to_str()) != Some(&self.dir_name()) {
            return Ok(());
        }
        forgiving(fs::remove_dir(path))
    }

    fn undo_dir(&self, path: &Path) -> io::Result<()> {
        if path.file_name().and_then(|name| name.to_str()) != Some(&self.dir_name()) {
            return Ok(());
        }
        // Renamed first: another thread of a world that is being torn down by a signal may still be
        // writing files into it by its name.
        let gone = path.with_file_name(format!("{}.gone", self.dir_name()));
        forgiving(fs::rename(path, &gone))?;
        forgiving(fs::remove_dir_all(&gone))
    }
}

/// What is not there need not be undone.
fn forgiving(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A line that was cut short by a kill has fewer figures, and nothing was set for it.
fn undo_tcp_memory(bounds: &str) -> io::Result<()> {
    let figures = bounds.split(' ').filter(|word| word.parse::<u64>().is_ok());
    match figures.count() {
        3 => fs::write(TCP_MEM, bounds),
        _ => Ok(()),
    }
}

fn undo_netns(name: &str) -> io::Result<()> {
    match Netns::open(name) {
        Ok(netns) => reaper::kill_all_in(&netns)?,
        Err(e) if e.io_error().kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io::Error::other(e)),
    }
    Netns::delete(name).map_err(io::Error::other)
}

/// Undoes what worlds whose process is gone have left. Returns the identifiers of those worlds.
pub(crate) fn sweep() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(RECORDS) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut swept = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let record = match Record::take_over(&path) {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            // Whatever it is, it is no reason to build no world.
            Err(e) => {
                tracing::warn!("{} is no record of a world: {e}", path.display());
                continue;
            }
        };
        match record.undo() {
            Ok(()) => swept.push(record.id),
            Err(e) => tracing::warn!("the dead world {} could not be undone: {e}", record.id),
        }
    }
    Ok(swept)
}

/// Six characters, so that names of devices and namespaces stay readable; 30 bits.
fn fresh_id() -> io::Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut random = [0_u8; 6];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(byte % 32)]))
        .collect())
}
