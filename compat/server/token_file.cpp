// SPDX-License-Identifier: MIT
#include "compat/server/token_file.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/fd.hpp"
#include "base/output_file.hpp"
#include "base/try.hpp"

namespace heddle::compat {
namespace {

constexpr std::size_t kShortest = 16;
constexpr std::size_t kLongest = 4096;

std::string absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value == '/' ? value : "";
}

/// The file appears whole. When two processes make it, the first one's is used.
Result<void> make_token(const std::string& path) {
  std::array<unsigned char, 32> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return fail_errno("getrandom", "failed");
  const auto directory = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  std::filesystem::create_directories(directory.parent_path(), ignored);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno(directory.string(), "cannot be made");
  auto file = TRY(AtomicFile::create(path, 0600));
  TRY(file.write(fmt::format("{:02x}\n", fmt::join(bytes, ""))));
  TRY(file.commit_new(std::filesystem::path(path).filename()));
  return {};
}

Result<std::string> read_open_token(int fd, const std::string& path) {
  auto token = TRY(read_all(fd, path, kLongest));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < kShortest)
    return fail(path, "the token is too short", "", "16 characters or more");
  // It is sent as the value of an HTTP header.
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c <= '~'; }))
    return fail(path, "is no token", "it has spaces, several lines or letters beyond ASCII",
                "one line of printable characters");
  return token;
}

}  // namespace

std::string default_token_file() {
  if (const auto directory = absolute_variable("RUNTIME_DIRECTORY"); !directory.empty())
    return directory + "/token";
  if (::geteuid() == 0) return "/run/heddle/compat-server.token";
  if (const auto directory = absolute_variable("XDG_RUNTIME_DIR"); !directory.empty())
    return directory + "/heddle/compat-server.token";
  const auto home = absolute_variable("HOME");
  return home.empty() ? home : home + "/.cache/heddle/compat-server.token";
}

Result<std::string> read_token(const std::string& path) {
  return read_open_token(TRY(open_file(path, O_RDONLY | O_NONBLOCK)).get(), path);
}

Result<std::string> read_or_make_token(const std::string& path) {
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW;
  auto file = open_file(path, kFlags);
  if (!file && file.error().code() == ENOENT) {
    TRY(make_token(path));
    file = open_file(path, kFlags);
  }
  if (!file) return fail(file.error());
  struct stat st {};
  if (::fstat(file->get(), &st) != 0) return fail_errno(path, "cannot be read");
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 077) != 0)
    return fail_errno(path, "is readable by others", EPERM,
                      "it must be a file of this user with mode 0600: remove it, or --token-file");
  return read_open_token(file->get(), path);
}

bool is_local(const std::string& address) {
  if (address.starts_with("unix:")) return true;
  const auto host = address.substr(0, address.rfind(':'));
  in_addr number{};
  return host == "localhost" || host == "[::1]" ||
         (::inet_pton(AF_INET, host.c_str(), &number) == 1 &&
          (ntohl(number.s_addr) >> 24) == 127);  // a name may begin with 127. as well
}

}  // namespace heddle::compat
