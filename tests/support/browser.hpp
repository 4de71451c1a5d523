// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <string>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// The path of Chromium; empty when it is not installed.
inline std::string browser() {
  for (const char* program : {"/usr/bin/chromium", "/usr/bin/chromium-browser"})
    if (::access(program, X_OK) == 0) return program;
  return {};
}

/// The document of the page in `file` after its scripts have run. `profile`: a directory for the
/// browser's files. Throws heddle::Error when it fails.
inline std::string drawn_page(const std::string& file, const std::string& profile) {
  return run_checked(
             {browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
              "--no-first-run", "--disable-background-networking", "--disable-component-update",
              "--disable-sync", "--user-data-dir=" + profile, "--dump-dom", "file://" + file},
             {.deadline = std::chrono::seconds(120)})
      .out;
}

}  // namespace heddle::test

#define HEDDLE_NEEDS_BROWSER()           \
  if (::heddle::test::browser().empty()) \
  HEDDLE_SKIP("no chromium installed: the page was not drawn by a browser")
