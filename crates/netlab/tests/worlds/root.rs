//! The check for root of tests that create namespaces.

/// Fails with a clear reason if the test does not run as root.
pub(crate) fn required() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test makes network namespaces and must run as root; `make test` does"
    );
}
