// SPDX-License-Identifier: MIT
// The sanitizers' default options for `./dev test --sanitize`, compiled in because container
// runtimes start hooks without the caller's environment, which would override them.

#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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

[[gnu::weak]] void __ubsan_get_current_report_data(const char** kind, const char** message,
                                                   const char** file, unsigned* line,
                                                   unsigned* column, char** address);

/// With AddressSanitizer beside it, gcc's libubsan ignores log_path and writes to standard error,
/// which a test may drop. So the report goes into the file here.
void __ubsan_on_report() {
  const char* const options = std::getenv("UBSAN_OPTIONS");
  const char* const path = options ? std::strstr(options, "log_path=") : nullptr;
  if (!path) return;
  const char *kind = nullptr, *message = nullptr, *file = nullptr;
  unsigned line = 0, column = 0;
  char* address = nullptr;
  __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
  const auto* const start = path + std::strlen("log_path=");
  char name[4096];
  std::snprintf(name, sizeof name, "%.*s.ubsan.%d", static_cast<int>(std::strcspn(start, ":")),
                start, ::getpid());
  if (FILE* const report = std::fopen(name, "ae")) {
    std::fprintf(report, "%s: %s: %s:%u\n", kind, message, file, line);
    std::fclose(report);
  }
}
}
