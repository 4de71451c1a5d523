// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace heddle {

inline constexpr const char* kMpiAnnotation = "heddle.mpi";
inline constexpr const char* kPolicyAnnotation = "heddle.policy";
inline constexpr const char* kProgramAnnotation = "heddle.program";

inline constexpr const char* kRpathAnnotation = "heddle.rpath";

enum class OnFailure : std::uint8_t {
  enforce,  ///< no container
  warn,     ///< the container as it is, and a line in the log
};

/// What the container's owner asked for.
struct SwapRequest {
  bool host_mpi = false;
  OnFailure on_failure = OnFailure::enforce;
  std::string program;  ///< empty: the container's own first word
};

/// `request` with what annotations change of it; a value that is none of those documented is an
/// error, not a guess.
Result<SwapRequest> annotated(SwapRequest request,
                              const std::map<std::string, std::string>& annotations);

/// Whether there is an annotation of ours that says more than "off".
bool asks_by_annotation(const std::map<std::string, std::string>& annotations);

}  // namespace heddle
