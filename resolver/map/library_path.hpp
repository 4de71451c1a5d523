// SPDX-License-Identifier: MIT
#pragma once

// LD_LIBRARY_PATH as a map records it and a process compares it: with each relative element made
// absolute, since "lib" means another directory after a chdir(2). Freestanding: the audit library
// hashes the same bytes before libc exists.

#include <cstddef>

namespace heddle::library_path {

/// One element of the list. dl-load.c, _dl_init_paths, splits at both separators; an empty element
/// is the current directory.
struct Element {
  const char* text;
  std::size_t size;

  bool starts_with(const char* prefix) const {
    std::size_t i = 0;
    while (prefix[i] && i < size && text[i] == prefix[i]) ++i;
    return !prefix[i];
  }
  /// Whether its meaning depends on the current directory.
  bool is_relative() const {
    return !starts_with("/") && !starts_with("$ORIGIN") && !starts_with("${ORIGIN}");
  }
};

/// Calls `take(element)` for each element of `value`; an empty value has none (ld.so ignores it).
template <class Take>
void each_element(const char* value, std::size_t length, Take take) {
  for (std::size_t start = 0; length != 0 && start <= length;) {
    std::size_t end = start;
    while (end < length && value[end] != ':' && value[end] != ';') ++end;
    take(Element{value + start, end - start});
    start = end + 1;
  }
}

/// Calls `put(bytes, size)` with the parts of the element's absolute form, in order; the current
/// directory is `cwd`.
template <class Put>
void put_absolute(const Element& element, const char* cwd, Put put) {
  if (element.is_relative()) {
    std::size_t size = 0;
    while (cwd[size]) ++size;
    put(cwd, size);
    if (element.size != 0) put("/", 1);
  }
  put(element.text, element.size);
}

/// Calls `put` with the absolute form of the list: elements joined by ':'.
template <class Put>
void put_absolute(const char* value, std::size_t length, const char* cwd, Put put) {
  bool first = true;
  each_element(value, length, [&](const Element& element) {
    if (!first) put(":", 1);
    first = false;
    put_absolute(element, cwd, put);
  });
}

}  // namespace heddle::library_path
