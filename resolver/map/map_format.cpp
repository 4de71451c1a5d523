// SPDX-License-Identifier: MIT
#include "resolver/map/map_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "base/escape.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle::map_format {
namespace {

constexpr std::size_t kMaxGeneratedName = 255;

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

bool is_absolute(std::string_view path) { return path.starts_with('/') && !has_nul(path); }

bool is_key_path(std::string_view path) { return is_absolute(path) && path.size() <= kMaxText; }

/// A name that a directory tree can show: no empty, "." or ".." component, no NUL.
bool is_relative_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxText || has_nul(name)) return false;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return false;
    start = end + 1;
  }
  return true;
}

tl::unexpected<Error> broken(std::string_view what, std::string_view name, std::string_view why) {
  return fail("", fmt::format("{} '{}' {}", what, escape_for_terminal(name), why));
}

template <class List, class Name>
Result<void> check_order(std::string_view what, const List& list, Name name) {
  const auto at = std::ranges::adjacent_find(list, std::ranges::greater_equal{}, name);
  if (at == list.end()) return {};
  return broken(what, std::invoke(name, *std::next(at)), "is out of order or double");
}

using Entry = std::pair<std::string, ObjectId>;

template <class Valid>
Result<void> check_list(std::string_view what, const std::vector<Entry>& list, std::size_t objects,
                        Valid valid) {
  for (const auto& [text, object] : list) {
    if (!valid(text)) return broken(what, text, "is not allowed");
    if (object >= objects) return broken(what, text, "leads to no object");
  }
  return check_order(what, list, &Entry::first);
}

Result<void> check_view(const MapView& view, std::size_t objects) {
  if (!is_relative_name(view.name) || view.name.find('/') != std::string::npos)
    return broken("view name", view.name, "is not allowed");
  TRY(check_list("name", view.names, objects, is_relative_name));
  // A name cannot be a file and the directory of others.
  std::unordered_set<std::string_view> directories;
  for (const auto& [name, object] : view.names)
    for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      directories.insert(std::string_view(name).substr(0, slash));
  for (const auto& [name, object] : view.names)
    if (directories.contains(name)) return broken("name", name, "is a file and a directory");
  return {};
}

Result<void> check_program(const MapProgram& program, const MapContent& content) {
  const auto is_object = [&](ObjectId id) { return id < content.objects.size(); };
  if (!is_absolute(program.path)) return broken("program", program.path, "has no absolute path");
  if (!is_object(program.object)) return broken("program", program.path, "is no object");
  if (program.view >= content.views.size()) return broken("program", program.path, "has no view");
  if (!std::ranges::all_of(program.libraries, is_object, &MapLibrary::object))
    return broken("program", program.path, "has a library that is no object");
  return check_list("guided name", program.guided, content.objects.size(),
                    [](std::string_view name) { return !name.empty() && !has_nul(name); });
}

}  // namespace

Result<void> check_rules(const MapContent& content) {
  // Also keeps every number within the 32 bits of its record.
  if (content.objects.size() >= UINT32_MAX) return fail("", "too many objects");
  for (const MapObject& object : content.objects)
    if (!is_absolute(object.path)) return broken("object", object.path, "has no absolute path");
  TRY(check_order("object", content.objects, &MapObject::path));
  for (const MapView& view : content.views) TRY(check_view(view, content.objects.size()));
  TRY(check_order("view", content.views, &MapView::name));
  for (const MapProgram& program : content.programs) TRY(check_program(program, content));
  TRY(check_order("program", content.programs, &MapProgram::path));
  for (const auto& [name, bytes] : content.generated) {
    // These three the daemon makes itself.
    const bool is_own = name.starts_with(kOwnPrefix);
    const auto file = std::string_view(name).substr(is_own ? kOwnPrefix.size() : 0);
    const bool taken = is_own && (file == "index" || file == "map" || file == "stats");
    if (taken || !is_relative_name(file) || file.find('/') != file.npos ||
        file.size() > kMaxGeneratedName)
      return broken("generated file", name, "is not allowed");
  }
  TRY(check_order("generated file", content.generated,
                  &std::pair<std::string, std::string>::first));
  if (content.generated.size() > kMaxGenerated) return fail("", "too many generated files");
  return check_list("path", content.paths, content.objects.size(), is_key_path);
}

std::string with_trailer(std::string pages) {
  Encoder coder;
  coder(kMapVersion, std::uint32_t{0}, std::uint64_t{pages.size()});
  pages.append(kMapMagic).append(coder.take());
  const Checksum hash = checksum_of(pages);
  return pages.append(hash.bytes.begin(), hash.bytes.end());
}

std::string number_key(std::uint32_t number) {
  std::string key;
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(number >> shift);
  return key;
}

std::optional<std::uint32_t> number_of_key(std::string_view key) {
  if (key.size() != 4) return {};
  std::uint32_t number = 0;
  for (const char byte : key) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

}  // namespace heddle::map_format
