//! What Taut uses of the kernel and the machine, feature by feature.

use super::cell;
use crate::doctor::{FEATURES, Severity};

const HEAD: &str = "\
# Kernel features

Every feature of the kernel and of the machine that `taut doctor` probes. It tries each, because distributions build kernels without some
of them and bring others to older versions; `taut doctor --all` shows what this machine has. [Kernels](../kernels.md) sums up what each job
needs. `since` is the version of Linux that brought the feature; 6.1, the first that Taut is made for, also stands for all before it. `if it is
missing` is what doctor says; `slows` and `blocks` are its verdict then. This page is written from the code (`make reference`).
";

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut group = None;
    for feature in FEATURES {
        if group.replace(feature.group) != Some(feature.group) {
            page += &format!("\n## {}\n\n", feature.group.title());
            page += "| feature | ID in JSON | since | used for | if it is missing |\n|---|---|---|---|---|\n";
        }
        let verdict = match feature.absence {
            Severity::Fine => "",
            Severity::Slows => " (slows)",
            Severity::Blocks => " (blocks)",
        };
        page += &format!(
            "| {} | `{}` | {} | {} | {}{verdict} |\n",
            cell(feature.name),
            feature.id,
            feature.since,
            cell(feature.used_for),
            cell(feature.if_missing)
        );
    }
    page
}
