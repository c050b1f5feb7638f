//! What tests that make namespaces need.

/// Fails with a reason instead of a riddle when namespaces cannot be made.
pub(crate) fn required() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes network namespaces and must run as root; `make test` does"
    );
}
