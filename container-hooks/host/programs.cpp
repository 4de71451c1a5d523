// SPDX-License-Identifier: MIT
#include "container-hooks/host/programs.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/fd.hpp"
#include "base/mount_calls.hpp"
#include "base/paths.hpp"
#include "base/sandbox/sanitized.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"

namespace heddle::hook {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr unsigned kMfdExec = 0x10;  // <linux/memfd.h> since Linux 6.3
/// Trusted only in a sealed program, which run_sealed() has started: some runtimes pass the image's
/// environment to hooks.
constexpr const char* kInstalled = "HEDDLE_HOOK_INSTALLED";

/// Only a file of a detached mount has the path "/".
bool is_sealed() {
  char path[2];
  if (::readlink(kSelf, path, sizeof(path)) == 1) return true;
  const auto self = open_file(kSelf, O_RDONLY);
  const int seals = self ? ::fcntl(self->get(), F_GET_SEALS) : -1;
  return seals >= 0 && (seals & kSeals) == kSeals;
}

/// The program's file on a detached read-only mount, which /proc/PID/exe then leads to. 4 ms less
/// than a copy; for root, since Linux 5.12.
Result<Fd> read_only_mount() {
  Fd file = TRY(copy_mount(AT_FDCWD, kSelf, kRecursive));
  TRY(make_inert(file.get(), kSelf, Reach::mount));
  return file;
}

Result<Fd> sealed_copy() {
  const auto program = TRY(open_file(kSelf, O_RDONLY));
  struct stat status {};
  if (::fstat(program.get(), &status) != 0) return fail_errno(kSelf, "cannot read");
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd copy(::memfd_create("fs-hook", kFlags | kMfdExec));
  if (!copy && errno == EINVAL) copy = Fd(::memfd_create("fs-hook", kFlags));
  if (!copy)
    return fail_errno("fs-hook", "cannot copy itself into memory", errno,
                      "sysctl vm.memfd_noexec must not forbid it");
  for (off_t at = 0; at < status.st_size;) {
    const ssize_t n =
        ::sendfile(copy.get(), program.get(), &at, static_cast<std::size_t>(status.st_size - at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail_errno("fs-hook", "cannot copy itself into memory");
  }
  if (::fcntl(copy.get(), F_ADD_SEALS, kSeals) != 0)
    return fail_errno("fs-hook", "cannot seal its copy");
  return copy;
}

/// The directory of the installed programs.
Result<std::string> programs() {
  if (is_sealed())
    if (const char* installed = std::getenv(kInstalled)) return std::string(installed);
  return own_program_dir();
}

/// The static fs-mount starts in half the time: without ld.so's 1.2 ms (measured).
std::string path_of(const std::string& programs, const std::string& name) {
  const auto as_one_file = directory_of(programs) + "/libexec/heddle/" + name + "-static";
  if (name == "fs-mount" && ::access(as_one_file.c_str(), X_OK) == 0) return as_one_file;
  return programs + "/" + name;
}

struct Command {
  std::string path;
  std::vector<std::string> argv;
  // Some runtimes pass the image's LD_PRELOAD, LD_AUDIT and PATH to the hook.
  std::vector<std::string> environment = {"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C"};
};

Result<Command> command_of(const HelperRequest& request) {
  Command out{path_of(TRY(programs()), request.name), {request.name}};
  out.argv.insert(out.argv.end(), request.arguments.begin(), request.arguments.end());
  out.environment.insert(out.environment.end(), request.environment.begin(),
                         request.environment.end());
  return out;
}

}  // namespace

Result<void> run_sealed(char** argv) {
  // A sanitizer's runtime opens its program's file.
  if constexpr (kSanitized) return {};
  if (is_sealed()) {
    (void)::prctl(PR_SET_NAME, "fs-hook");  // execveat(2) sets a number
    return {};
  }
  const auto installed = TRY(own_program_dir());
  Result<Fd> program = read_only_mount();
  if (!program) program = TRY(sealed_copy());
  if (::setenv(kInstalled, installed.c_str(), 1) != 0) return fail_errno("fs-hook", "cannot start");
  (void)::syscall(SYS_execveat, program->get(), "", argv, ::environ, AT_EMPTY_PATH);
  return fail_errno("fs-hook", "cannot restart");
}

Result<std::string> trusted_hook() {
  const auto bin = TRY(programs());
  const auto libexec = directory_of(bin) + "/libexec/heddle";
  for (const auto& directory : {bin, libexec}) TRY(check_trusted_directory(directory));
  for (const char* name : {"/fs-hook", "/fs-mount", "/fs-resolve"})
    TRY(check_trusted_file(bin + name));
  for (const char* name : {"/elf-worker", "/fs-mount-static"})
    TRY(check_trusted_file(libexec + name));
  return bin + "/fs-hook";
}

Result<Child> start_helper(const HelperRequest& request) {
  const auto command = TRY(command_of(request));
  return spawn(command.path, command.argv,
               {.fds = request.fds, .environment = command.environment});
}

Result<Output> run_helper(const HelperRequest& request, std::size_t most_bytes) {
  const auto command = TRY(command_of(request));
  return run_and_read(command.path, command.argv,
                      {.limit = kNoLimit,
                       .most_bytes = most_bytes,
                       .messages = Messages::collected,
                       .fds = request.fds,
                       .environment = command.environment,
                       .reader = request.reader});
}

std::string one_line(const std::string& name, const std::string& messages) {
  std::string out;
  for (std::size_t at = 0; at < messages.size();) {
    const auto end = std::min(messages.find('\n', at), messages.size());
    std::string line = messages.substr(at, end - at);
    at = end + 1;
    if (line.starts_with(name + ": ")) line.erase(0, name.size() + 2);
    if (line.empty()) continue;
    if (line.starts_with("hint: ")) line = "(" + line.substr(6) + ")";
    out += (out.empty() ? "" : line.starts_with('(') ? " " : "; ") + line;
  }
  return out;
}

}  // namespace heddle::hook
