//! The record of a world: everything that it creates, noted first, so that any process can remove it.
//!
//! A record is a file `/run/taut/lab/ID`, locked by its world while that exists. A record whose lock is
//! free belongs to a world whose process has ended; whichever process gets the lock removes the world.
//! Only objects that are in the record, and have its identifier in their names, are ever touched.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FlockOperation;
use taut_sys::job_dir::JobDir;
use taut_sys::netns::Netns;

use super::cpu_quota::CpuQuota;
use super::reaper;
use super::tcp_memory::TcpMemory;

/// The directory of all records.
pub(crate) const RECORDS: &str = "/run/taut/lab";
/// The only setting of the whole machine that a world may change.
const TCP_MEM: &str = "/proc/sys/net/ipv4/tcp_mem";

/// The locked record of a world.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    folder: JobDir,
    /// `None` once everything has been removed.
    file: Mutex<Option<File>>,
}

// === impl Record ===

impl Record {
    /// Creates the record of a new world, with an identifier that is unique on this machine.
    pub(crate) fn create(label: &str) -> io::Result<Self> {
        loop {
            let folder = JobDir::create(Path::new(RECORDS)).map_err(io::Error::other)?;
            let id = random_id()?;
            let file = match folder.create_new(&id) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            // Before it was locked, a sweep may have taken it for a dead world's and removed it.
            if file.metadata()?.nlink() == 0 {
                continue;
            }
            let record = Self {
                id,
                folder,
                file: Mutex::new(Some(file)),
            };
            record.noted("world", label, || Ok(()))?;
            return Ok(record);
        }
    }

    /// Takes over the record of this name. Returns `None` if its world exists or the record is gone.
    fn take_over(id: &str) -> io::Result<Option<Self>> {
        let Some(folder) = JobDir::find(Path::new(RECORDS)).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let Some(file) = folder.open_existing(id)? else {
            return Ok(None);
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            other => other?,
        }
        // Another sweep may have removed it since it was opened.
        if file.metadata()?.nlink() == 0 {
            return Ok(None);
        }
        let file = Mutex::new(Some(file));
        Ok(Some(Self {
            id: id.to_owned(),
            folder,
            file,
        }))
    }

    /// Returns the world's identifier.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the name of the namespace of this world's `part`.
    pub(crate) fn netns_name(&self, part: &str) -> String {
        format!("taut-{}-{part}", self.id)
    }

    /// Creates a namespace.
    pub(crate) fn create_netns(&self, part: &str) -> io::Result<Netns> {
        let name = self.netns_name(part);
        self.noted("netns", &name, || {
            Netns::create(&name).map_err(io::Error::other)
        })
    }

    /// Creates the world's directory for temporary files.
    pub(crate) fn create_dir(&self) -> io::Result<PathBuf> {
        let path = std::env::temp_dir().canonicalize()?.join(self.dir_name());
        let text = path
            .to_str()
            .ok_or_else(|| io::Error::other("TMPDIR is not UTF-8"))?;
        self.noted("dir", text, || DirBuilder::new().mode(0o700).create(&path))?;
        Ok(path)
    }

    /// Sets the bounds of TCP memory of this machine, in pages (`net.ipv4.tcp_mem`).
    pub(crate) fn bound_tcp_memory(&self, [low, pressure, most]: [u64; 3]) -> io::Result<()> {
        let before = fs::read_to_string(TCP_MEM)?;
        let before = before.split_whitespace().collect::<Vec<_>>().join(" ");
        self.noted("tcp_mem", &before, || {
            fs::write(TCP_MEM, format!("{low} {pressure} {most}"))
        })
    }

    /// Creates a memory cgroup for sockets. Returns `None` if this machine has none of that kind.
    pub(crate) fn create_tcp_memory(&self) -> io::Result<Option<TcpMemory>> {
        let Some(path) = TcpMemory::path_for(&self.dir_name())? else {
            return Ok(None);
        };
        self.cgroup(&path, || TcpMemory::create(&path).map(Some))
    }

    /// Creates a cgroup with a quota of CPU time. Returns `None` if this machine has none.
    pub(crate) fn create_cpu_quota(&self, cpus: f64) -> io::Result<Option<CpuQuota>> {
        let Some(path) = CpuQuota::path_for(&self.dir_name()) else {
            return Ok(None);
        };
        self.cgroup(&path, || CpuQuota::create(&path, cpus).map(Some))
    }

    fn cgroup<T>(&self, path: &Path, create: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let text = path.to_str();
        let text = text.ok_or_else(|| io::Error::other("the cgroup's path is not UTF-8"))?;
        self.noted("cgroup", text, create)
    }

    fn dir_name(&self) -> String {
        format!("taut-lab-{}", self.id)
    }

    /// Writes the line `kind what`, then runs `create`. The mutex stays locked in between, so that another
    /// thread (a signal's) cannot undo the record and miss what is about to be created.
    fn noted<T>(
        &self,
        kind: &str,
        what: &str,
        create: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        // A line break would forge another line.
        if what.contains('\n') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || io::Error::other("the world has been torn down");
        file.as_mut()
            .ok_or_else(gone)?
            .write_all(format!("{kind} {what}\n").as_bytes())?;
        create()
    }

    /// Undoes everything in the record: kills the processes in its namespaces, removes the namespaces and
    /// the directory, and last the record. What is gone already is no error. After a failure the rest is
    /// still undone; the record then stays for the next sweep, and the first failure is returned.
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
                // The world's name, or a line that a kill cut short, before anything was created for it.
                _ => Ok(()),
            };
            first = first.and(undone);
        }
        first?;
        self.folder.remove(&self.id)?;
        *held = None;
        Ok(())
    }

    /// Removes a cgroup. Only an empty one can be removed; its threads were those of the world's process and
    /// of the processes in its namespaces.
    fn undo_cgroup(&self, path: &Path) -> io::Result<()> {
        if path.file_name().and_then(|name| name.to_str()) != Some(&self.dir_name()) {
            return Ok(());
        }
        ok_if_missing(fs::remove_dir(path))
    }

    /// Removes the world's directory.
    fn undo_dir(&self, path: &Path) -> io::Result<()> {
        if path.file_name().and_then(|name| name.to_str()) != Some(&self.dir_name()) {
            return Ok(());
        }
        // Renamed first: when a signal tears the world down, other threads may still create files in it by
        // its name.
        let gone = path.with_file_name(format!("{}.gone", self.dir_name()));
        ok_if_missing(fs::rename(path, &gone))?;
        ok_if_missing(fs::remove_dir_all(&gone))
    }
}

/// Turns `NotFound` into success: the object is gone already.
fn ok_if_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Restores the bounds of TCP memory. A line that a kill cut short has fewer figures; the bounds were not
/// changed then.
fn undo_tcp_memory(bounds: &str) -> io::Result<()> {
    let figures = bounds.split(' ').filter(|word| word.parse::<u64>().is_ok());
    match figures.count() {
        3 => fs::write(TCP_MEM, bounds),
        _ => Ok(()),
    }
}

/// Kills the processes of a namespace and removes it.
fn undo_netns(name: &str) -> io::Result<()> {
    match Netns::open(name) {
        Ok(netns) => reaper::kill_all_in(&netns)?,
        Err(e) if e.io_error().kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io::Error::other(e)),
    }
    Netns::delete(name).map_err(io::Error::other)
}

/// Removes the worlds whose processes have ended. Returns their identifiers.
pub(crate) fn sweep() -> io::Result<Vec<String>> {
    let Some(folder) = JobDir::find(Path::new(RECORDS)).map_err(io::Error::other)? else {
        return Ok(Vec::new());
    };
    let mut swept = Vec::new();
    for name in folder.names()? {
        let record = match Record::take_over(&name) {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            // A stray file must not keep worlds from being built.
            Err(e) => {
                tracing::warn!("{RECORDS}/{name}: cannot take over this record of a world: {e}");
                continue;
            }
        };
        match record.undo() {
            Ok(()) => swept.push(record.id),
            Err(e) => tracing::warn!("dead world {}: cannot remove it: {e}", record.id),
        }
    }
    Ok(swept)
}

/// Returns a random identifier of 30 bits: six characters, so that names of namespaces stay readable.
fn random_id() -> io::Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut random = [0_u8; 6];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(random
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(byte % 32)]))
        .collect())
}
