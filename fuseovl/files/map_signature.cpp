// SPDX-License-Identifier: MIT
#include "fuseovl/files/map_signature.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <vector>

#include "base/open_regular.hpp"
#include "base/run_program.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

/// Found by no variable: root runs it.
constexpr const char* kProgram = "/usr/bin/ssh-keygen";
constexpr std::size_t kMostSignature = 64 << 10;
/// In the child.
constexpr int kSignature = 3;
constexpr const char* kSignaturePath = "/proc/self/fd/3";

Result<Output> run_ssh_keygen(const std::vector<std::string>& words, int signature, int input) {
  std::vector<std::string> argv = {kProgram, "-Y"};
  argv.insert(argv.end(), words.begin(), words.end());
  return run_and_read(kProgram, argv,
                      {.limit = std::chrono::seconds(30),
                       .most_bytes = kMostSignature,
                       .messages = Messages::dropped,
                       .fds = {{input, STDIN_FILENO}, {signature, kSignature}},
                       .environment = std::vector<std::string>()});
}

}  // namespace

Result<void> check_signature(const std::string& map, const ContentHash& id,
                             const std::string& signers) {
  const auto keys = std::filesystem::absolute(signers).string();
  if (is_systems_root()) TRY(check_trusted_file(keys));
  TRY(open_regular(keys));
  // A copy, as others may own the file, which may be of any type.
  const Fd file = TRY(open_regular(map + ".sig"));
  const auto bytes = TRY(read_all(file.get(), map + ".sig", kMostSignature));
  const Fd signature = TRY(memory_file(bytes));
  const Fd text = TRY(memory_file(id.hex() + "\n"));
  auto found = TRY(run_ssh_keygen({"find-principals", "-s", kSignaturePath, "-f", keys},
                                  signature.get(), text.get()));
  const auto principal = found.out.substr(0, found.out.find('\n'));
  const auto refused = [&](const char* why) {
    return fail(
        Error::with_code(EPERM, map, "root does not use this map", why,
                         "echo ID | ssh-keygen -Y sign -n heddle -f KEY > " + map + ".sig"));
  };
  if (found.status != 0 || principal.empty()) return refused("no key of --signers has signed it");
  const auto good = TRY(
      run_ssh_keygen({"verify", "-n", "heddle", "-I", principal, "-s", kSignaturePath, "-f", keys},
                     signature.get(), text.get()));
  if (good.status != 0) return refused("its signature is another one's");
  return {};
}

}  // namespace heddle
