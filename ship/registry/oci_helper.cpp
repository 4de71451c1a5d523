// SPDX-License-Identifier: MIT
#include "ship/registry/oci_helper.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/child.hpp"
#include "base/exit_code.hpp"
#include "base/run_program.hpp"
#include "base/try.hpp"

namespace heddle {

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
  const auto c_argv = to_c_array(argv);
  // It ends with this process, and downloads nothing in vain.
  auto child = TRY(fork_child({}, [&]() -> int {
    if (::dup2(content.get(), STDIN_FILENO) >= 0 && ::dup2(out, STDOUT_FILENO) >= 0)
      ::execv(client.c_str(), c_argv.data());
    throw Error::from_errno(client, "cannot start");
  }));
  const int status = TRY(child.wait());
  // Killed by a signal.
  if (status != exit_done && status != exit_usage && status != exit_failure)
    return fail("oci-client", "ended unexpectedly", fmt::format("exit status {}", status));
  return status;
}

}  // namespace heddle
