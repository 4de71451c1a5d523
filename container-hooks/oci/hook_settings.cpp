// SPDX-License-Identifier: MIT
#include "container-hooks/oci/hook_settings.hpp"

#include <algorithm>

namespace heddle::hook {

Result<SwapRequest> annotated(SwapRequest request,
                              const std::map<std::string, std::string>& annotations) {
  constexpr const char* kCannot = "cannot follow it";
  const auto mpi = annotations.find("heddle.mpi");
  if (mpi != annotations.end()) {
    if (mpi->second != "host" && mpi->second != "off")
      return fail(mpi->first, kCannot, "it is '" + mpi->second + "'", "host or off");
    request.host_mpi = mpi->second == "host";
  }
  if (!request.host_mpi) return request;
  for (const auto& [name, value] : annotations) {
    if (name == "heddle.mpi" || !name.starts_with("heddle.")) continue;
    if (name == "heddle.policy") {
      if (value != "warn" && value != "enforce")
        return fail(name, kCannot, "it is '" + value + "'", "enforce or warn");
      request.on_failure = value == "warn" ? OnFailure::warn : OnFailure::enforce;
    } else if (name == "heddle.program") {
      if (!value.starts_with('/') || value.find('\0') != std::string::npos)
        return fail(name, kCannot, "'" + value + "' is not an absolute path");
      request.program = value;
    } else if (name == "heddle.rpath") {
      if (value != "bind")
        return fail(name, kCannot, "it is '" + value + "'",
                    "bind is the only way: leave the annotation out");
    } else {  // a misspelt one is an error too
      return fail(name, kCannot, "there is no such annotation",
                  "heddle.mpi, heddle.policy, heddle.program, heddle.rpath");
    }
  }
  return request;
}

bool asks_by_annotation(const std::map<std::string, std::string>& annotations) {
  return std::any_of(annotations.begin(), annotations.end(), [](const auto& entry) {
    return entry.first.starts_with("heddle.") &&
           !(entry.first == "heddle.mpi" && entry.second == "off");
  });
}

}  // namespace heddle::hook
