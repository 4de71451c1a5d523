// SPDX-License-Identifier: MIT
#include "container-hooks/sealed_program.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/fd.hpp"
#include "base/child.hpp"
#include "base/sandbox/sanitized.hpp"

namespace heddle {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr unsigned kMfdExec = 0x10;  // <linux/memfd.h> since Linux 6.3
/// Only ever looked at in a copy, which nobody but run_from_sealed_copy() starts: some runtimes
/// give a hook its image's environment.
constexpr const char* kInstalled = "HEDDLE_HOOK_INSTALLED";

bool is_sealed_copy() {
  const auto self = open_file(kSelf, O_RDONLY);
  const int seals = self ? ::fcntl(self->get(), F_GET_SEALS) : -1;
  return seals >= 0 && (seals & kSeals) == kSeals;
}

/// To the end of what execve(2) maps: debugging information, ten times as much, lies behind that.
Result<std::size_t> mapped_size(const Fd& program) {
  ElfW(Ehdr) header{};
  if (::pread(program.get(), &header, sizeof(header), 0) != sizeof(header))
    return fail_errno(kSelf, "cannot read");
  std::vector<ElfW(Phdr)> segments(header.e_phnum);
  const std::size_t bytes = segments.size() * sizeof(segments[0]);
  if (::pread(program.get(), segments.data(), bytes, static_cast<off_t>(header.e_phoff)) !=
      static_cast<ssize_t>(bytes))
    return fail_errno(kSelf, "cannot read");
  std::size_t end = header.e_phoff + bytes;
  for (const auto& segment : segments)
    if (segment.p_type != PT_NULL)
      end = std::max<std::size_t>(end, segment.p_offset + segment.p_filesz);
  return end;
}

Result<Fd> sealed_copy() {
  const auto program = open_file(kSelf, O_RDONLY);
  if (!program) return fail(program.error());
  const auto size = mapped_size(*program);
  if (!size) return fail(size.error());
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd copy(::memfd_create("fs-hook", kFlags | kMfdExec));
  if (!copy && errno == EINVAL) copy = Fd(::memfd_create("fs-hook", kFlags));
  if (!copy)
    return fail_errno("fs-hook", "cannot copy itself into memory", errno,
                      "sysctl vm.memfd_noexec must not forbid it");
  for (off_t at = 0; static_cast<std::size_t>(at) < *size;) {
    const ssize_t n =
        ::sendfile(copy.get(), program->get(), &at, *size - static_cast<std::size_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail_errno("fs-hook", "cannot copy itself into memory");
  }
  if (::fcntl(copy.get(), F_ADD_SEALS, kSeals) != 0)
    return fail_errno("fs-hook", "cannot seal its copy");
  return copy;
}

}  // namespace

Result<void> run_from_sealed_copy(char** argv) {
  // A sanitizer's runtime wants its program's file.
  if constexpr (kSanitized) return {};
  if (is_sealed_copy()) {
    (void)::prctl(PR_SET_NAME, "fs-hook");  // for the kernel it is a number in /dev/fd
    return {};
  }
  const auto installed = own_program_dir();
  if (!installed) return fail(installed.error());
  const auto copy = sealed_copy();
  if (!copy) return fail(copy.error());
  if (::setenv(kInstalled, installed->c_str(), 1) != 0)
    return fail_errno("fs-hook", "cannot start");
  (void)::syscall(SYS_execveat, copy->get(), "", argv, ::environ, AT_EMPTY_PATH);
  return fail_errno("fs-hook", "cannot start its copy in memory");
}

Result<std::string> hook_program_dir() {
  if (is_sealed_copy())
    if (const char* installed = std::getenv(kInstalled)) return std::string(installed);
  return own_program_dir();
}

}  // namespace heddle
