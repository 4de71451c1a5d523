// SPDX-License-Identifier: MIT
#include "record/trace/event.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <charconv>

namespace heddle::trace {
namespace {

#define HEDDLE_TEXT(...) #__VA_ARGS__
#define HEDDLE_TEXT_OF(...) HEDDLE_TEXT(__VA_ARGS__)
constexpr std::string_view kAllOps = HEDDLE_TEXT_OF(HEDDLE_TRACE_OPS);

constexpr auto kOpNames = [] {
  std::array<std::string_view, kOpCount> names;
  std::string_view rest = kAllOps;
  for (auto& name : names) {
    name = rest.substr(0, rest.find(", "));
    rest.remove_prefix(std::min(name.size() + 2, rest.size()));
  }
  return names;
}();

static_assert(std::count(kAllOps.begin(), kAllOps.end(), ',') + 1 == kOpCount);

constexpr std::string_view kAccess[] = {"O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"};
struct FlagName {
  std::int64_t bits;
  std::string_view name;
};
// O_SYNC and O_TMPFILE contain O_DSYNC and O_DIRECTORY and must precede them. The kernel's
// O_LARGEFILE is 0100000 (asm-generic/fcntl.h), but 0 in this ABI's headers.
constexpr FlagName kFlags[] = {{O_SYNC, "O_SYNC"},         {O_DSYNC, "O_DSYNC"},
                               {O_TMPFILE, "O_TMPFILE"},   {O_DIRECTORY, "O_DIRECTORY"},
                               {O_CREAT, "O_CREAT"},       {O_EXCL, "O_EXCL"},
                               {O_NOCTTY, "O_NOCTTY"},     {O_TRUNC, "O_TRUNC"},
                               {O_APPEND, "O_APPEND"},     {O_NONBLOCK, "O_NONBLOCK"},
                               {O_DIRECT, "O_DIRECT"},     {0100000, "O_LARGEFILE"},
                               {O_NOFOLLOW, "O_NOFOLLOW"}, {O_NOATIME, "O_NOATIME"},
                               {O_CLOEXEC, "O_CLOEXEC"},   {O_PATH, "O_PATH"}};

}  // namespace

std::string_view op_name(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }

std::optional<Op> op_from_name(std::string_view name) {
  const auto* const at = std::find(kOpNames.begin(), kOpNames.end(), name);
  return at == kOpNames.end() ? std::nullopt
                              : std::optional(static_cast<Op>(at - kOpNames.begin()));
}

std::string op_names() { return std::string(kAllOps); }

std::string_view result_name(int error, std::array<char, 16>& scratch) {
  if (error == 0) return "OK";
  if (const char* name = strerrorname_np(error)) return name;
  scratch[0] = 'E';
  const auto end = std::to_chars(scratch.data() + 1, scratch.data() + scratch.size(), error).ptr;
  return {scratch.data(), static_cast<std::size_t>(end - scratch.data())};
}

std::optional<int> result_from_name(std::string_view name) {
  if (name == "OK") return 0;
  if (name == "ENOENT") return ENOENT;  // nearly all failures of a search
  for (int error = 1; error < 256; ++error)
    if (const char* known = strerrorname_np(error); known && name == known) return error;
  int number = 0;
  if (!name.starts_with('E') || !parse_number(name.substr(1), number) || number == 0)
    return std::nullopt;
  return number;
}

std::string open_flags_text(std::int64_t flags) {
  std::string text(kAccess[flags & O_ACCMODE]);
  flags &= ~std::int64_t{O_ACCMODE};
  for (const auto& [bits, name] : kFlags) {
    if ((flags & bits) != bits) continue;
    text += '|';
    text += name;
    flags &= ~bits;
  }
  if (flags != 0) text += fmt::format("|{:#x}", flags);
  return text;
}

std::optional<std::int64_t> open_flags_from_text(std::string_view text) {
  std::int64_t flags = 0;
  while (true) {
    const std::string_view word = text.substr(0, text.find('|'));
    const auto is_word = [&](const auto& flag) { return flag.name == word; };
    if (word.starts_with("0x")) {
      std::int64_t bits = 0;
      if (!parse_number(word.substr(2), bits, 16)) return std::nullopt;
      flags |= bits;
    } else if (const auto* mode = std::find(std::begin(kAccess), std::end(kAccess), word);
               mode != std::end(kAccess)) {
      flags |= mode - kAccess;
    } else {
      const auto* flag = std::find_if(std::begin(kFlags), std::end(kFlags), is_word);
      if (flag == std::end(kFlags)) return std::nullopt;
      flags |= flag->bits;
    }
    if (word.size() == text.size()) return flags;
    text.remove_prefix(word.size() + 1);
  }
}

std::string_view format_name(Format format) {
  static constexpr std::string_view kNames[] = {"heddle", "heddle JSON lines", "compat-lib"};
  return kNames[static_cast<std::size_t>(format)];
}

std::string utc_time_text(std::uint64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  tm utc{};
  gmtime_r(&seconds, &utc);
  char date[32];
  const std::size_t n = strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:09}Z", std::string_view(date, n), unix_ns % 1'000'000'000);
}

}  // namespace heddle::trace
