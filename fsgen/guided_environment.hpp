// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace heddle {

/// A list of NAME=value, as execve(2) takes it. Values are bytes.
class Environment {
 public:
  /// A copy of this process's.
  static Environment current();
  explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  std::optional<std::string> get(std::string_view name) const;
  void set(std::string_view name, std::string_view value);
  const std::vector<std::string>& entries() const noexcept { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// Ours without what the user means for his program alone, for a daemon: a preload or an auditor
/// would work there too and talk on its stderr, and one of heddle's own, of an fs-gen around us,
/// would hold that one's mount. LD_LIBRARY_PATH stays: our own libraries may need it.
std::vector<std::string> daemon_environment();

enum class LoaderKind : std::uint8_t {
  audit,        ///< rtld-audit: exact, for every kind of search path
  environment,  ///< LD_LIBRARY_PATH: where auditing cannot work; loses against DT_RPATH
};

/// The installed audit library, beside which we are installed. Fails when it cannot be read.
Result<std::string> audit_library_path();

struct Guidance {
  LoaderKind loader = LoaderKind::audit;
  std::string audit_library;
  std::string index_path;
  std::string counters_path;
  std::string learn_log;               ///< empty: nothing is learned
  std::string view_path;               ///< LoaderKind::environment: searched first
  std::uint64_t static_tls_bytes = 0;  ///< MapProgram::static_tls_bytes of APP
};

/// Adds to `environment` what guides APP and its children: an LD_AUDIT, GLIBC_TUNABLES or
/// LD_LIBRARY_PATH that is set already is kept beside ours.
void guide(Environment& environment, const Guidance& guidance);

}  // namespace heddle
