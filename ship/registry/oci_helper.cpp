// SPDX-License-Identifier: MIT
#include "ship/registry/oci_helper.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/try.hpp"

namespace heddle {

Result<Fd> memory_file(std::string_view text) {
  Fd file(::memfd_create("content", MFD_CLOEXEC));
  if (!file) return fail_errno("memfd", "cannot be made");
  TRY(write_all(file.get(), text, "memfd"));
  if (::lseek(file.get(), 0, SEEK_SET) != 0) return fail_errno("memfd", "cannot be rewound");
  return file;
}

Result<int> run_oci_client(const char* program, const std::vector<std::string>& arguments,
                           std::string_view input, int out) {
  const auto client = TRY(own_program_dir()) + "/../libexec/heddle/oci-client";
  if (::access(client.c_str(), F_OK) != 0)
    return fail("oci-client", "is not installed", "it is apart, because it needs libcurl",
                "install the package heddle-server, or build heddle from its sources");
  const Fd content = TRY(memory_file(input));
  std::vector<std::string> argv = {"oci-client"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  ::setenv("HEDDLE_PROGRAM", program, 1);
  auto child =
      TRY(spawn(client, argv, {.fds = {{content.get(), STDIN_FILENO}, {out, STDOUT_FILENO}}}));
  const int status = TRY(child.wait());
  // Killed by a signal.
  if (status != exit_done && status != exit_usage && status != exit_failure)
    return fail("oci-client", "ended unexpectedly", fmt::format("exit status {}", status));
  return status;
}

}  // namespace heddle
