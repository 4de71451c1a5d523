// SPDX-License-Identifier: MIT
#include "launch/pmix/server_address.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/elf_file.hpp"
#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"

namespace heddle::pmix {
namespace {

constexpr std::size_t kLongestUri = 4096;
constexpr const char* kUriHint =
    "NAMESPACE.RANK;tcp4://ADDRESS:PORT, or a file with it: prterun --report-uri FILE";

tl::unexpected<Error> refuse(const std::string& what) {
  return fail(what, "mpirun of Open MPI 4 ends its job when a PMIx tool connects: not connected",
              "", "fs-launch --hold and session need no PMIx");
}

/// Whether DT_NEEDED of an ELF file has Open MPI 4's run-time library.
bool needs_open_rte(const std::string& program) {
  const auto file = open_regular(program);
  if (!file) return false;
  const auto bytes = file_bytes(file->get());
  const auto elf = ElfFile::read(bytes);
  const auto entries = elf ? elf->dynamic_entries() : fail(elf.error());
  if (!entries) return false;
  const auto table = std::ranges::find(*entries, DT_STRTAB, &Elf64_Dyn::d_tag);
  if (table == entries->end()) return false;
  for (const auto& entry : *entries) {
    if (entry.d_tag != DT_NEEDED) continue;
    constexpr std::string_view kName = "libopen-rte.so.";
    const auto place = elf->place(table->d_un.d_ptr + entry.d_un.d_val);
    if (place && bytes.text(place->offset, std::min<std::uint64_t>(place->left, kName.size())) ==
                     std::string(kName))
      return true;
  }
  return false;
}

std::optional<std::uint16_t> port_of(std::string_view uri) {
  const auto colon = uri.rfind(':');
  if (colon == uri.npos) return std::nullopt;
  const auto digits = uri.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || port == 0) return std::nullopt;
  return port;
}

/// The inodes of sockets that listen on `port` (proc(5), /proc/net/tcp: local_address, st, inode).
std::vector<std::string> listeners(std::uint16_t port) {
  std::vector<std::string> out;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    const auto file = open_file(table, O_RDONLY);
    const auto text = file ? read_all(file->get(), table, 64U << 20).value_or("") : std::string();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, skipped, inode;
      fields >> slot >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      if (state == "0A" && local.ends_with(fmt::format(":{:04X}", port))) out.push_back(inode);
    }
  }
  return out;
}

/// The programs of this user's processes that listen on `port` of this node, whatever address.
std::vector<std::string> programs_on(std::uint16_t port) {
  const auto sockets = listeners(port);
  std::vector<std::string> out;
  if (sockets.empty()) return out;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const auto path = process.path();
    if (path.filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code denied;
    for (std::filesystem::directory_iterator fd(path / "fd", denied), end; fd != end && !denied;
         fd.increment(denied)) {
      std::error_code closed;
      const auto target = std::filesystem::read_symlink(fd->path(), closed).string();
      if (std::ranges::none_of(
              sockets, [&](const auto& inode) { return target == "socket:[" + inode + "]"; }))
        continue;
      out.push_back(path / "exe");
      break;
    }
  }
  return out;
}

Result<std::string> read_uri(const std::string& path) {
  const auto file = TRY(open_regular(path));
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) return fail_errno(path, "cannot be read");
  if (st.st_uid != ::geteuid())
    return fail(path, "belongs to another user", "", "name a file that your own launcher has made");
  const auto text = TRY(read_all(file.get(), path, 1U << 16));
  return text.substr(0, text.find('\n'));
}

}  // namespace

Result<void> refuse_open_mpi_4(const std::string& program) {
  if (needs_open_rte(program)) return refuse(program);
  return {};
}

Result<std::string> server_uri(const std::string& text) {
  std::string uri = text;
  if (text.starts_with("file:"))
    uri = TRY(read_uri(text.substr(5)));
  else if (text.find("://") == text.npos)
    uri = TRY(read_uri(text));
  const auto semicolon = uri.find(';');
  const auto name = uri.substr(0, semicolon);
  const auto dot = name.rfind('.');
  const auto port = port_of(uri);
  const bool plain = std::ranges::all_of(uri, [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (semicolon == uri.npos || dot == 0 || dot == name.npos || !port || !plain ||
      uri.size() > kLongestUri || uri.compare(semicolon + 1, 3, "tcp") != 0)
    return fail(text, "is no address of a PMIx server", "", kUriHint);
  // PRRTE's are prterun-HOST-PID@N, Slurm's slurm.pmix.J.S; ORTE's is its job number.
  if (name.substr(0, dot).find_first_not_of("0123456789") == std::string::npos) return refuse(text);
  for (const auto& program : programs_on(*port))
    if (needs_open_rte(program)) return refuse(text);
  return uri;
}

}  // namespace heddle::pmix
