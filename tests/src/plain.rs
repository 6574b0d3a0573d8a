//! Plain mode: the tests against a bind mount of the backing directory, to test the tests.

/// Whether `FOREBAY_TEST_PLAIN` asks for it.
pub fn on() -> bool {
    std::env::var_os("FOREBAY_TEST_PLAIN").is_some_and(|value| value != "0" && !value.is_empty())
}
