// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::trace {

/// What a program asked of the file system. The names in op_name() are the trace's.
enum class Op : std::uint8_t {
  lookup,
  open,
  create,
  read,
  write,
  readlink,
  opendir,
  stat,
  access,
  exec,
  rename,
  unlink,
  mkdir,
  close,
  link,
  symlink,
  rmdir,
  mknod,
  truncate,
  chmod,
  chown,
  utimens,
  setxattr
};
inline constexpr std::size_t kOpCount = 23;

std::string_view op_name(Op op);
std::optional<Op> op_from_name(std::string_view name);
/// All names, for who has used another: "lookup, open, ...".
std::string op_names();

/// "OK" for 0, else the errno's name ("ENOENT"), else "E<number>".
std::string_view result_name(int error, std::array<char, 16>& scratch);
/// The reverse; nullopt for what result_name() never gives.
std::optional<int> result_from_name(std::string_view name);

/// One event. The views belong to whoever made it: a writer copies at once, a reader's are valid
/// until the sink returns. Bytes are the file system's own, unescaped.
struct Event {
  std::uint64_t ns = 0;  ///< since the run's start
  std::int32_t pid = 0;  ///< 0: the format has none
  std::int32_t tid = 0;
  Op op = Op::lookup;
  int error = 0;  ///< 0 or an errno
  std::string_view path;
  std::string_view exe;       ///< executable of pid; empty: unknown
  std::string_view resolved;  ///< path after symlinks, where it differs
  std::string_view target;    ///< of readlink and symlink; the new name of rename and link
  std::int64_t flags = -1;    ///< open(2) flags; -1: not said
  std::int64_t mode = -1;     ///< permission bits; -1: not said
  std::int64_t handle = -1;   ///< one number an open, the same on its read, write and close
  std::int64_t count = -1;    ///< reads or writes summed up in this event
  std::int64_t bytes = -1;    ///< what they moved
  std::int64_t offset = -1;   ///< of a single read or write

  bool operator==(const Event&) const = default;
};

/// `O_RDWR|O_APPEND`; bits without a name as one hex number. And back.
std::string open_flags_text(std::int64_t flags);
std::optional<std::int64_t> open_flags_from_text(std::string_view text);

}  // namespace heddle::trace
