//! What the running kernel's own types (BTF) say of it.

use std::path::Path;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{FuncProto, Ptr, Struct};

use crate::Error;

/// Where the kernel exports its types.
pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Fails if the kernel does not export its types, which a program needs that refers to them (CO-RE).
///
/// # Errors
/// [`Error::NoBtf`].
pub fn require_btf() -> Result<(), Error> {
    match Path::new(VMLINUX).exists() {
        true => Ok(()),
        false => Err(Error::NoBtf),
    }
}

/// How many arguments the kernel passes to `cong_control` of a congestion control: 2, and 4 since Linux
/// 6.10. `None` if its types do not tell.
pub fn cong_control_arguments(vmlinux: &Btf<'_>) -> Option<usize> {
    let operations = vmlinux.type_by_name::<Struct<'_>>("tcp_congestion_ops")?;
    let mut members = operations.iter();
    let control = members.find(|member| member.name.is_some_and(|name| name == "cong_control"))?;
    let pointer = vmlinux.type_by_id::<Ptr<'_>>(control.ty)?;
    Some(FuncProto::try_from(pointer.next_type()?).ok()?.len())
}
