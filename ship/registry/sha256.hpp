// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.hpp"

struct evp_md_ctx_st;

namespace heddle::registry {

/// A SHA-256 made piece by piece.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view data);
  /// "sha256:<64 hex digits>" of all that was added. To be called once.
  std::string digest();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// The same of `data`.
std::string sha256_digest(std::string_view data);
/// The same of a whole file, read by pread: its offset stays.
Result<std::string> sha256_of_file(int fd, const std::string& name);

}  // namespace heddle::registry
