// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "record/diff/levenshtein.hpp"
#include "record/trace/event.hpp"

namespace heddle::diff {

/// What two runs' events are compared by: operation, result, path.
struct TokenText {
  trace::Op op = trace::Op::lookup;
  int error = 0;
  std::string_view path;  ///< bytes, not escaped
};

/// Numbers for token texts, dense from 0. One hash and usually one probe a lookup; each text is
/// kept once. One thread at a time.
class TokenTable {
 public:
  TokenTable();
  Token intern(const TokenText& text);
  /// The view stands until the next intern().
  TokenText text(Token token) const;
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint64_t path_at;
    std::uint32_t path_size;
    std::int16_t error;
    trace::Op op;
  };
  void rehash(std::size_t slots);
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  ///< index into entries_ plus one; 0: free
  std::string paths_;
};

/// `open ENOENT /usr/lib/libx.so.1`, `open /etc/passwd`: one line, escaped for a terminal.
std::string token_label(const TokenText& text);

}  // namespace heddle::diff
