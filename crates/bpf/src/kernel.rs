//! What the running kernel's own types (BTF) say of it.

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{FuncProto, Ptr, Struct};

use taut_sys::probe::{self, Answer};

use crate::Error;

/// Fails if the kernel does not export its types, which a program needs that refers to them (CO-RE).
///
/// # Errors
/// [`Error::NoBtf`].
pub fn require_btf() -> Result<(), Error> {
    match probe::bpf::btf() {
        Answer::No(_) => Err(Error::NoBtf),
        _ => Ok(()),
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
