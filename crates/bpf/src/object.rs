//! BPF objects: opened, loaded, and their parts by name.

use libbpf_rs::{
    MapCore as _, MapHandle, MapMut, ObjectBuilder, OpenMapMut, OpenObject, OpenProgramMut,
    PrintLevel, ProgramInput, ProgramMut, RingBuffer, RingBufferBuilder,
};

use crate::{CEnum, CounterMap, Error, Map, PerCpu, Plain, kernel};

/// Bytes of an Ethernet header and what the kernel asks of a packet beside it.
const SHORTEST_PACKET: usize = 64;

/// A BPF object before it is loaded: its maps and programs can still be changed.
#[derive(Debug)]
pub struct Open(OpenObject);

/// A BPF object in the kernel. Dropped, its programs and maps go unless something else refers to them.
#[derive(Debug)]
pub struct Object(libbpf_rs::Object);

// === impl Open ===

impl Open {
    /// Opens a compiled object. From here on libbpf's messages go to the log, at the level `debug`.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the bytes are no BPF object.
    pub fn new(name: &str, object: &[u8]) -> Result<Self, Error> {
        // The verifier's account of a refusal is long, and not for the terminal.
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        })));
        let open = ObjectBuilder::default()
            .name(name)
            .and_then(|builder| builder.open_memory(object));
        open.map(Self).map_err(Error::during("open the BPF object"))
    }

    /// The map of this name.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn map(&mut self, name: &'static str) -> Result<OpenMapMut<'_>, Error> {
        let mut maps = self.0.maps_mut();
        maps.find(|map| map.name() == name)
            .ok_or(Error::Missing { kind: "map", name })
    }

    /// All programs.
    pub fn programs(&mut self) -> impl Iterator<Item = OpenProgramMut<'_>> {
        self.0.progs_mut()
    }

    /// Sets the only variable of a section of read-only data, such as `.rodata.config`.
    ///
    /// # Errors
    /// [`Error::Missing`], or [`Error::Layout`] if the variable has another size.
    pub fn set_constant<T: Plain>(
        &mut self,
        section: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let mut maps = self.0.maps_mut();
        // libbpf puts the object's name before the sections that compilers make.
        let map = maps.find(|map| map.name().to_string_lossy().ends_with(section));
        let mut map = map.ok_or(Error::Missing {
            kind: "section",
            name: section,
        })?;
        let initial = map.initial_value_mut().unwrap_or_default();
        if initial.len() != size_of::<T>() {
            return Err(Error::Layout {
                map: section,
                part: "values",
                found: initial.len() as u32,
                expected: size_of::<T>(),
            });
        }
        initial.copy_from_slice(value.as_bytes());
        Ok(())
    }

    /// Loads it into the kernel.
    ///
    /// # Errors
    /// [`Error::NoBtf`], or [`Error::Kernel`]: no privileges, or the kernel lacks what a program needs.
    pub fn load(self) -> Result<Object, Error> {
        self.0
            .load()
            .map(Object)
            .map_err(|source| match kernel::require_btf() {
                // libbpf only says ESRCH.
                Err(missing) => missing,
                Ok(()) => Error::during("load the BPF programs")(source),
            })
    }
}

// === impl Object ===

impl Object {
    /// The map of this name, with keys `K` and values `V`.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Layout`].
    pub fn map<K: Plain, V: Plain>(&self, name: &'static str) -> Result<Map<K, V>, Error> {
        Map::new(self.handle(name)?, name)
    }

    /// The per-CPU array of this name, with values `V`.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Layout`].
    pub fn per_cpu<V: Plain>(&self, name: &'static str) -> Result<PerCpu<V>, Error> {
        PerCpu::new(self.handle(name)?, name)
    }

    /// The per-CPU array of this name, with a counter for each value of the enum `E`.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Layout`].
    pub fn counters<E: CEnum>(&self, name: &'static str) -> Result<CounterMap<E>, Error> {
        self.per_cpu(name).map(CounterMap::new)
    }

    /// The map of this name, or the section of data whose name ends so.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn handle(&self, name: &'static str) -> Result<MapHandle, Error> {
        let mut maps = self.0.maps();
        let map = maps.find(|map| match name.starts_with('.') {
            true => map.name().to_string_lossy().ends_with(name),
            false => map.name() == name,
        });
        let map = map.ok_or(Error::Missing { kind: "map", name })?;
        MapHandle::try_from(&map).map_err(Error::during("open a BPF map"))
    }

    /// The map of this name, to pin it or to register its operations (struct_ops).
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn map_mut(&mut self, name: &'static str) -> Result<MapMut<'_>, Error> {
        let mut maps = self.0.maps_mut();
        let map = maps.find(|map| map.name() == name);
        map.ok_or(Error::Missing { kind: "map", name })
    }

    /// The program of this name.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, Error> {
        let mut programs = self.0.progs_mut();
        let program = programs.find(|program| program.name() == name);
        program.ok_or(Error::Missing {
            kind: "program",
            name,
        })
    }

    /// All programs.
    pub fn programs(&self) -> impl Iterator<Item = ProgramMut<'_>> {
        self.0.progs_mut()
    }

    /// Runs a program that takes packets once, with the shortest packet, and returns what it returns.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Kernel`].
    pub fn run(&self, name: &'static str) -> Result<u32, Error> {
        let input = ProgramInput {
            data_in: Some(&[0; SHORTEST_PACKET]),
            ..ProgramInput::default()
        };
        let output = self.program(name)?.test_run(input);
        let output = output.map_err(Error::during(format!("run the BPF program `{name}`")))?;
        Ok(output.return_value)
    }

    /// The ring buffer of this name; `record` takes each record.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Kernel`].
    pub fn ring(
        &self,
        name: &'static str,
        mut record: impl FnMut(&[u8]) + 'static,
    ) -> Result<RingBuffer<'static>, Error> {
        let map = self.handle(name)?;
        let mut builder = RingBufferBuilder::new();
        let each = move |bytes: &[u8]| {
            record(bytes);
            0
        };
        builder
            .add(&map, each)
            .map_err(Error::during("open a ring buffer"))?;
        builder.build().map_err(Error::during("open a ring buffer"))
    }
}
