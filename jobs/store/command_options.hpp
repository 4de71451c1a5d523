// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/command_line.hpp"
#include "jobs/store/render.hpp"
#include "jobs/store/schema.hpp"
#include "jobs/store/selection.hpp"

namespace heddle::jobs::store {

/// The command line of a sub-command that asks the store: `declare` adds its options, and then
/// `body` runs. Result: the exit status.
inline int store_command(int argc, char** argv, const char* summary,
                         const std::function<void(CLI::App&)>& declare,
                         const std::function<int(const std::string& url)>& body) {
  CLI::App app(summary, std::string("fs-job ") + argv[0]);
  set_usage(app, std::string("fs-job ") + argv[0] + " [OPTIONS] ...");
  std::string url;
  app.add_option("--db", url,
                 "The store: postgresql://..., or a file of SQLite (default: $FS_JOB_DB)")
      ->type_name("URL");
  declare(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  return body(url);
}

inline void add_format(CLI::App& app, Format& format) {
  add_choice<Format>(app, "--format", format,
                     {{"table", Format::table}, {"json", Format::json}, {"csv", Format::csv}},
                     "How to print (default: table)");
}

}  // namespace heddle::jobs::store
