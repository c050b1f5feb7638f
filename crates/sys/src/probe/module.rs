//! Kernel modules that a probe would make the kernel load.
//!
//! The first use of a qdisc, link type or congestion control in a module loads the module, which
//! then stays loaded. Before such a probe runs, this module looks up whether it would load one.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Answer, kernel_release};

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Runs `probe` unless it would make the kernel load one of `modules`.
pub(super) fn unless_it_loads(modules: &[&str], probe: impl FnOnce() -> Answer) -> Answer {
    unless_one_loads(Modules::of_this_kernel(), modules, probe)
}

fn unless_one_loads(
    of_kernel: Modules,
    modules: &[&str],
    probe: impl FnOnce() -> Answer,
) -> Answer {
    match of_kernel {
        Modules::NoneCanLoad => probe(),
        Modules::Hidden => match modules.iter().find(|m| !is_present(m)) {
            Some(module) => Answer::Unknown(format!(
                "the probe might load module {module}; the host's modules are not visible here"
            )),
            None => probe(),
        },
        Modules::Listed(index) => {
            match modules.iter().find(|m| !is_present(m) && lists(&index, m)) {
                Some(module) => Answer::NotLoaded {
                    module: (*module).to_owned(),
                },
                None => probe(),
            }
        }
    }
}

enum Modules {
    /// The kernel has no module support, no modules are installed, or loading is disabled.
    NoneCanLoad,
    /// The content of modules.dep.
    Listed(String),
    /// This process runs in a container: the kernel loads modules from the host's file system,
    /// which is not visible.
    Hidden,
}

impl Modules {
    fn of_this_kernel() -> Self {
        let off = fs::read_to_string("/proc/sys/kernel/modules_disabled");
        if !Path::new("/proc/modules").exists() || off.is_ok_and(|v| v.trim() == "1") {
            return Self::NoneCanLoad;
        }
        // The kernel starts modprobe with the init process's view of the file system.
        let on_host =
            fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns == Path::new(FIRST_PID_NAMESPACE));
        let name = PathBuf::from("lib/modules")
            .join(kernel_release())
            .join("modules.dep");
        let roots: &[&str] = if on_host {
            &["/proc/1/root", "/"]
        } else {
            &["/"]
        };
        for root in roots {
            if let Ok(index) = fs::read_to_string(Path::new(root).join(&name)) {
                return Self::Listed(index);
            }
        }
        if on_host {
            Self::NoneCanLoad
        } else {
            Self::Hidden
        }
    }
}

/// Returns whether the module is loaded or built in. Built-in code is found only if it has
/// parameters or a version.
fn is_present(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

/// Returns whether modules.dep (`kernel/net/sched/sch_fq.ko.xz: ...`) lists `module`. A file name
/// may contain a dash where the module name contains an underscore.
fn lists(index: &str, module: &str) -> bool {
    index.lines().any(|line| {
        let file = line.split(':').next().unwrap_or_default();
        let base = file.rsplit('/').next().unwrap_or_default();
        let name = base.split(".ko").next().unwrap_or_default();
        name.len() == module.len()
            && name
                .bytes()
                .zip(module.bytes())
                .all(|(a, b)| a == b || (a == b'-' && b == b'_'))
    })
}

#[cfg(test)]
mod tests {
    use super::{Answer, Modules, lists, unless_one_loads};

    const INDEX: &str = "kernel/net/sched/sch_fq_codel.ko.xz:\n\
                         kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko\n\
                         kernel/net/netfilter/nft-tproxy.ko.zst: kernel/x.ko.zst\n";

    #[test]
    fn a_probe_that_would_load_a_module_does_not_run() {
        let of = |kernel, probe: fn() -> Answer| unless_one_loads(kernel, &["taut_none"], probe);
        let listed = || Modules::Listed("kernel/taut-none.ko.xz:\n".to_owned());
        let ran = || -> Answer { panic!("the module would be loaded") };
        assert!(matches!(of(listed(), ran), Answer::NotLoaded { module } if module == "taut_none"));
        assert!(matches!(of(Modules::Hidden, ran), Answer::Unknown(_)));
        let other = Modules::Listed(INDEX.to_owned());
        for without in [other, Modules::NoneCanLoad] {
            assert!(matches!(of(without, || Answer::Yes), Answer::Yes));
        }
    }

    #[test]
    fn a_module_is_found_by_its_whole_name_only() {
        assert!(lists(INDEX, "sch_fq_codel"));
        assert!(!lists(INDEX, "sch_fq"));
        assert!(lists(INDEX, "bridge"));
    }

    #[test]
    fn a_dependency_of_a_module_is_not_the_module() {
        assert!(!lists(INDEX, "stp"));
    }

    #[test]
    fn a_dash_in_the_file_name_is_an_underscore_in_the_module_name() {
        assert!(lists(INDEX, "nft_tproxy"));
    }
}
