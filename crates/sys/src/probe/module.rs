//! Kernel modules: which a probe may touch without making the kernel load them.
//!
//! Asking for a qdisc, a link type or a congestion control that is a module loads it, and nothing
//! takes it out again. So before a try it is looked up what the try would load.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Answer, kernel_release};

/// The inode of the first PID namespace (`PROC_PID_INIT_INO`, linux/proc_ns.h).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Runs `probe` unless that would make the kernel load one of `modules`.
pub(super) fn unless_it_loads(modules: &[&str], probe: impl FnOnce() -> Answer) -> Answer {
    match Modules::of_this_kernel() {
        Modules::NoneCanLoad => probe(),
        Modules::Hidden => match modules.iter().find(|m| !is_present(m)) {
            Some(module) => Answer::Unknown(format!(
                "might load module {module}, and the host's modules are out of sight here"
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
    /// The kernel was built without modules, or there is none on disk, or loading is switched off.
    NoneCanLoad,
    /// The text of modules.dep.
    Listed(String),
    /// This is a container, and the kernel would load modules from the host's file system.
    Hidden,
}

impl Modules {
    fn of_this_kernel() -> Self {
        let off = fs::read_to_string("/proc/sys/kernel/modules_disabled");
        if !Path::new("/proc/modules").exists() || off.is_ok_and(|v| v.trim() == "1") {
            return Self::NoneCanLoad;
        }
        // modprobe is started by the kernel in the first process's view of the file system.
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

/// Loaded already, or built in (built-in code shows here only if it has parameters or a version).
fn is_present(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

/// Whether modules.dep (`kernel/net/sched/sch_fq.ko.xz: ...`) has `module`. File names may have a
/// dash where the module's name has an underscore.
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
    use super::lists;

    const INDEX: &str = "kernel/net/sched/sch_fq_codel.ko.xz:\n\
                         kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko\n\
                         kernel/net/netfilter/nft-tproxy.ko.zst: kernel/x.ko.zst\n";

    #[test]
    fn a_module_is_found_by_its_whole_name_only() {
        assert!(lists(INDEX, "sch_fq_codel"));
        assert!(!lists(INDEX, "sch_fq"));
        assert!(lists(INDEX, "bridge"));
    }

    #[test]
    fn what_a_module_needs_is_not_the_module() {
        assert!(!lists(INDEX, "stp"));
    }

    #[test]
    fn a_dash_in_the_file_is_an_underscore_in_the_name() {
        assert!(lists(INDEX, "nft_tproxy"));
    }
}
