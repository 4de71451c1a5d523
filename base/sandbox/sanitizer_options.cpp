// SPDX-License-Identifier: MIT
// The sanitizers' default options for `./dev test --sanitize`, compiled in because container
// runtimes start hooks without the caller's environment, which would override them.

extern "C" {

/// Fuzzers detect leaks. Here daemons end by _exit(), and the checker needs a matching /proc, which
/// a hook in a container lacks.
const char* __asan_default_options() {
  return "abort_on_error=1:detect_leaks=0:verify_asan_link_order=0";
}

const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

/// Forked workers start threads. No sleep of a second at each exit.
const char* __tsan_default_options() {
  return "halt_on_error=1:die_after_fork=0:atexit_sleep_ms=0";
}
}
