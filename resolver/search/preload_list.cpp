// SPDX-License-Identifier: MIT
#include "resolver/search/preload_list.hpp"

#include <linux/limits.h>

#include <algorithm>

namespace heddle {

std::vector<std::string> split_preload_variable(std::string_view text, bool secure) {
  std::vector<std::string> names;
  for (std::size_t start = 0; start < text.size();) {
    const auto end = std::min(text.find_first_of(" :", start), text.size());
    const auto name = text.substr(start, end - start);
    start = end + 1;
    if (name.empty() || name.size() >= PATH_MAX) continue;
    if (secure && (name.size() >= NAME_MAX || name.find('/') != name.npos)) continue;
    names.emplace_back(name);
  }
  return names;
}

std::vector<std::string> split_preload_file(std::string text) {
  // dl_main looks for each '#' from the file's start again but over fewer and fewer bytes, so that
  // a second comment may stay and be read as names. Copied on purpose: it decides what is loaded.
  for (std::size_t rest = text.size(); rest > 0;) {
    const auto at = std::string_view(text).substr(0, rest).find('#');
    if (at == text.npos) break;
    rest -= at;
    auto i = at;
    do text[i] = ' ';
    while (--rest > 0 && text[++i] != '\n');
  }
  std::vector<std::string> names;
  for (std::size_t start = 0; start < text.size();) {
    const auto end =
        std::min(text.find_first_of(std::string_view(": \t\n\0", 5), start), text.size());
    if (end > start) names.push_back(text.substr(start, end - start));
    if (end < text.size() && text[end] == '\0') break;
    start = end + 1;
  }
  return names;
}

}  // namespace heddle
