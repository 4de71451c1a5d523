// SPDX-License-Identifier: MIT
#pragma once

// The little of <cstring> that the audit library needs.

namespace heddle::audit {

inline unsigned long length(const char* text) {
  unsigned long n = 0;
  while (text[n]) ++n;
  return n;
}

inline bool equal(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

/// Behind `prefix` in `text`, or nullptr.
inline const char* behind(const char* text, const char* prefix) {
  while (*prefix)
    if (*text++ != *prefix++) return nullptr;
  return text;
}

/// Writes `text` with its NUL to `out`; returns where the NUL stands.
inline char* copy(char* out, const char* text) {
  while ((*out = *text)) ++out, ++text;
  return out;
}

}  // namespace heddle::audit
