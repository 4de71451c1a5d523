// SPDX-License-Identifier: MIT
// What the sanitizers' runtimes go by in every process, for `./dev test --sanitize`: a runtime
// starts its hooks without the caller's environment. What that says counts for more.

extern "C" {

/// Leaks are the fuzzers' to find: daemons end by _exit(), and the checker wants the /proc of its
/// own process ids, which a hook inside a container has not.
const char* __asan_default_options() {
  return "abort_on_error=1:detect_leaks=0:verify_asan_link_order=0";
}

const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

/// Workers are forked, and go on with threads of their own. No second's sleep at each end.
const char* __tsan_default_options() {
  return "halt_on_error=1:die_after_fork=0:atexit_sleep_ms=0";
}
}
