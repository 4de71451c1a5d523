// SPDX-License-Identifier: MIT
#include "resolver/map/map_format.hpp"

#include <fmt/format.h>

#include <string_view>
#include <unordered_set>

#include "base/escape.hpp"
#include "resolver/map/served_names.hpp"

namespace heddle::map_format {
namespace {

constexpr std::size_t kMaxGeneratedName = 255;

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

bool is_absolute(std::string_view path) {
  return !path.empty() && path.front() == '/' && !has_nul(path);
}

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

/// "" or what is wrong with a list of (text, object): order, doubles, object numbers, texts.
template <class Valid>
std::string broken_list(std::string_view what,
                        const std::vector<std::pair<std::string, ObjectId>>& list,
                        std::size_t objects, Valid valid) {
  const std::string* previous = nullptr;
  for (const auto& [text, object] : list) {
    const auto say = [&, &shown = text](std::string_view why) {
      return fmt::format("{} '{}' {}", what, escape_for_terminal(shown), why);
    };
    if (!valid(text)) return say("is not allowed");
    if (previous && *previous >= text) return say("is out of order or double");
    if (object >= objects) return say("leads to no object");
    previous = &text;
  }
  return {};
}

std::string broken_view(const MapView& view, std::size_t objects) {
  if (!is_relative_name(view.name) || view.name.find('/') != std::string::npos)
    return fmt::format("view name '{}' is not allowed", escape_for_terminal(view.name));
  if (auto why = broken_list("name", view.names, objects, is_relative_name); !why.empty())
    return why;
  // A name cannot be a file and the directory of others.
  std::unordered_set<std::string_view> directories;
  for (const auto& [name, object] : view.names)
    for (auto slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
      directories.insert(std::string_view(name).substr(0, slash));
  for (const auto& [name, object] : view.names)
    if (directories.contains(name))
      return fmt::format("name '{}' is a file and a directory", escape_for_terminal(name));
  return {};
}

std::string broken_program(const MapProgram& program, const MapContent& content) {
  const auto say = [&](std::string_view why) {
    return fmt::format("program '{}' {}", escape_for_terminal(program.path), why);
  };
  if (!is_absolute(program.path)) return say("has no absolute path");
  if (program.object >= content.objects.size()) return say("is no object");
  if (program.view >= content.views.size()) return say("has no view");
  for (const MapLibrary& library : program.libraries)
    if (library.object >= content.objects.size()) return say("has a library that is no object");
  return broken_list("guided name", program.guided, content.objects.size(),
                     [](std::string_view name) { return !name.empty() && !has_nul(name); });
}

}  // namespace

std::string broken_rule(const MapContent& content) {
  // Also keeps every number within the 32 bits of its record.
  if (content.objects.size() >= UINT32_MAX) return "too many objects";
  const MapObject* before = nullptr;
  for (const MapObject& object : content.objects) {
    const bool ordered = !before || before->path < object.path;
    if (!is_absolute(object.path) || !ordered)
      return fmt::format("object '{}' {}", escape_for_terminal(object.path),
                         ordered ? "has no absolute path" : "is out of order or double");
    before = &object;
  }
  const std::string* previous = nullptr;
  for (const MapView& view : content.views) {
    if (auto why = broken_view(view, content.objects.size()); !why.empty()) return why;
    if (previous && *previous >= view.name)
      return fmt::format("view '{}' is out of order or double", escape_for_terminal(view.name));
    previous = &view.name;
  }
  previous = nullptr;
  for (const MapProgram& program : content.programs) {
    if (auto why = broken_program(program, content); !why.empty()) return why;
    if (previous && *previous >= program.path)
      return fmt::format("program '{}' is out of order or double",
                         escape_for_terminal(program.path));
    previous = &program.path;
  }
  previous = nullptr;
  for (const auto& [name, bytes] : content.generated) {
    // These three the daemon makes itself.
    const bool is_own = name.starts_with(kOwnPrefix);
    const auto file = std::string_view(name).substr(is_own ? kOwnPrefix.size() : 0);
    const bool taken = is_own && (file == "index" || file == "map" || file == "stats");
    if (taken || !is_relative_name(file) || file.find('/') != file.npos ||
        file.size() > kMaxGeneratedName)
      return fmt::format("generated file '{}' is not allowed", escape_for_terminal(name));
    if (previous && *previous >= name)
      return fmt::format("generated file '{}' is out of order or double",
                         escape_for_terminal(name));
    previous = &name;
  }
  if (content.generated.size() > kMaxGenerated) return "too many generated files";
  return broken_list("path", content.paths, content.objects.size(), is_key_path);
}

std::string encode_trailer(const Trailer& trailer) {
  Encoder coder;
  coder(trailer.version, std::uint32_t{0}, trailer.length, trailer.hash.bytes);
  return std::string(kMapMagic) + coder.take();
}

std::optional<Trailer> decode_trailer(std::string_view bytes) {
  if (bytes.size() != kTrailerSize || bytes.substr(0, kMapMagic.size()) != kMapMagic) return {};
  Trailer trailer;
  std::uint32_t reserved = 0;
  Decoder coder(bytes.substr(kMapMagic.size()));
  coder(trailer.version, reserved, trailer.length, trailer.hash.bytes);
  return trailer;
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
