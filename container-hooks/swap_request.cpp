// SPDX-License-Identifier: MIT
#include "container-hooks/swap_request.hpp"

#include <algorithm>
#include <array>

namespace heddle {
namespace {

constexpr std::array<std::string_view, 4> kKnown{kMpiAnnotation, kPolicyAnnotation,
                                                 kProgramAnnotation, kRpathAnnotation};

}  // namespace

Result<SwapRequest> annotated(SwapRequest request,
                              const std::map<std::string, std::string>& annotations) {
  const auto value = [&](const char* name) -> std::optional<std::string> {
    const auto found = annotations.find(name);
    return found == annotations.end() ? std::nullopt : std::optional(found->second);
  };
  if (const auto mpi = value(kMpiAnnotation)) {
    if (*mpi != "host" && *mpi != "off")
      return fail(kMpiAnnotation, "cannot follow it", "it is '" + *mpi + "'", "host or off");
    request.host_mpi = *mpi == "host";
  }
  if (!request.host_mpi) return request;
  // One that is misspelt is to be refused, not passed over.
  for (const auto& [name, text] : annotations)
    if (name.starts_with("heddle.") &&
        std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end())
      return fail(name, "cannot follow it", "there is no such annotation",
                  "heddle.mpi, heddle.policy, heddle.program, heddle.rpath");
  if (const auto policy = value(kPolicyAnnotation)) {
    if (*policy != "warn" && *policy != "enforce")
      return fail(kPolicyAnnotation, "cannot follow it", "it is '" + *policy + "'",
                  "enforce or warn");
    request.on_failure = *policy == "warn" ? OnFailure::warn : OnFailure::enforce;
  }
  if (const auto rpath = value(kRpathAnnotation)) {
    if (*rpath != "bind")
      return fail(kRpathAnnotation, "cannot follow it", "it is '" + *rpath + "'",
                  "bind is the only way: leave the annotation out");
  }
  if (const auto program = value(kProgramAnnotation)) {
    if (!program->starts_with('/') || program->find('\0') != std::string::npos)
      return fail(kProgramAnnotation, "cannot follow it", "'" + *program + "' is no absolute path");
    request.program = *program;
  }
  return request;
}

bool asks_by_annotation(const std::map<std::string, std::string>& annotations) {
  return std::any_of(annotations.begin(), annotations.end(), [](const auto& entry) {
    return entry.first.starts_with("heddle.") &&
           !(entry.first == kMpiAnnotation && entry.second == "off");
  });
}

}  // namespace heddle
