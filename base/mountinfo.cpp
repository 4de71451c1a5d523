// SPDX-License-Identifier: MIT
#include "base/mountinfo.hpp"

#include <sys/sysmacros.h>

#include <charconv>

#include "base/fd.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// Space, tab, newline and backslash are written as \ooo.
std::string decode_octal(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// Cuts the first part, up to `end`, off `rest`.
std::string_view take_until(std::string_view& rest, char end) {
  const auto at = rest.find(end);
  const auto part = rest.substr(0, at);
  rest.remove_prefix(at == rest.npos ? rest.size() : at + 1);
  return part;
}

unsigned number_in(std::string_view text) {
  unsigned out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

/// 36 35 98:0 /root /mount/point options optional... - type source super-options
MountEntry parse_line(std::string_view line) {
  MountEntry out;
  out.id = static_cast<int>(number_in(take_until(line, ' ')));
  take_until(line, ' ');  // the parent's id
  const auto major = number_in(take_until(line, ':'));
  out.device = ::makedev(major, number_in(take_until(line, ' ')));
  out.root = decode_octal(take_until(line, ' '));
  out.point = decode_octal(take_until(line, ' '));
  take_until(line, ' ');  // the mount's own options
  for (auto field = take_until(line, ' '); !field.empty() && field != "-";
       field = take_until(line, ' '))
    out.shared = out.shared || field.starts_with("shared:");
  out.type = take_until(line, ' ');
  out.source = decode_octal(take_until(line, ' '));
  out.options = line;
  return out;
}

}  // namespace

bool MountEntry::has_option(std::string_view option) const {
  for (std::string_view rest = options; !rest.empty();)
    if (take_until(rest, ',') == option) return true;
  return false;
}

std::vector<MountEntry> parse_mountinfo(std::string_view text) {
  std::vector<MountEntry> out;
  while (!text.empty()) out.push_back(parse_line(take_until(text, '\n')));
  return out;
}

Result<std::vector<MountEntry>> list_mounts(const std::string& process) {
  const std::string text = TRY(read_file(process + "/mountinfo"));
  return parse_mountinfo(text);
}

Result<std::optional<MountEntry>> find_mount(const std::string& path) {
  auto mounts = TRY(list_mounts());
  std::optional<MountEntry> found;
  for (auto& mount : mounts)
    if (mount.point == path) found = std::move(mount);
  return found;
}

}  // namespace heddle
