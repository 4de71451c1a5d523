// SPDX-License-Identifier: MIT
#include "launch/pmix_command.hpp"

#include "base/child.hpp"
#include "base/launch/app_process.hpp"
#include "fsgen/doctor.hpp"
#include "fsgen/guided_environment.hpp"

namespace heddle::launch {

void become_pmix(int argc, const char* const* argv) {
  const auto program = value_or_throw(own_program_dir()) + "/../libexec/heddle/heddle-pmix";
  (void)value_or_throw(pmix_version());
  const int error = execute({program, {argv, argv + argc}, Environment().entries()});
  throw Error::from_errno(program, "cannot be executed", error);
}

}  // namespace heddle::launch
