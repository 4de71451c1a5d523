// SPDX-License-Identifier: MIT
#include "base/oci_helper.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/child.hpp"
#include "base/exit_code.hpp"

extern char** environ;

namespace heddle {

Result<int> run_oci_client(const char* program, const std::vector<std::string>& arguments,
                           std::string_view input, int out) {
  const auto directory = own_program_dir();
  if (!directory) return fail(directory.error());
  const Fd memory(::memfd_create("content", MFD_CLOEXEC));
  if (!memory) return fail_errno("memfd", "cannot be made");
  if (auto done = write_all(memory.get(), input, "memfd"); !done) return fail(done.error());
  if (::lseek(memory.get(), 0, SEEK_SET) != 0) return fail_errno("memfd", "cannot be rewound");
  SpawnOptions options;
  options.fds = {{memory.get(), STDIN_FILENO}, {out, STDOUT_FILENO}};
  options.environment.emplace();
  for (char** variable = environ; *variable != nullptr; ++variable)
    options.environment->emplace_back(*variable);
  options.environment->push_back(std::string("HEDDLE_PROGRAM=") + program);
  std::vector<std::string> argv = {"oci-client"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto child = spawn(*directory + "/../libexec/heddle/oci-client", argv, options);
  if (!child) return fail(std::move(child.error()));
  const auto status = child->wait();
  // It was killed, then: by a signal, or for want of memory.
  if (status && *status != exit_done && *status != exit_usage && *status != exit_failure)
    return fail("oci-client", "ended unexpectedly", fmt::format("exit status {}", *status));
  return status;
}

}  // namespace heddle
