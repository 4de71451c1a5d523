// SPDX-License-Identifier: MIT
#include "tests/support/build_elf.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {
namespace {

std::string compile(const ElfBuild& build, const std::vector<std::string>& kind) {
  if (const auto directory = std::filesystem::path(build.output).parent_path(); !directory.empty())
    std::filesystem::create_directories(directory);
  std::vector<std::string> argv = {build.language == "c++" ? "c++" : "cc", "-O1", "-x",
                                   build.language, "-"};
  // -x applies to all later files; "none" lets the compiler recognise libraries again.
  argv.insert(argv.end(), {"-x", "none", "-o", build.output});
  argv.insert(argv.end(), kind.begin(), kind.end());
  argv.insert(argv.end(), build.flags.begin(), build.flags.end());
  run_checked(argv, {.env = {}, .cwd = {}, .input = build.source + "\n"});
  return build.output;
}

}  // namespace

std::string build_library(const ElfBuild& build) { return compile(build, {"-shared", "-fPIC"}); }

std::string build_program(const ElfBuild& build) { return compile(build, {"-fPIE", "-pie"}); }

std::string write_text_file(const std::string& path, const std::string& content, unsigned mode) {
  if (const auto directory = std::filesystem::path(path).parent_path(); !directory.empty())
    std::filesystem::create_directories(directory);
  const Fd fd = value_or_throw(open_file(path, O_WRONLY | O_CREAT | O_TRUNC));
  value_or_throw(write_all(fd.get(), content, path));
  if (::fchmod(fd.get(), mode) != 0) throw Error::from_errno(path, "cannot set its mode");
  return path;
}

}  // namespace heddle::test
