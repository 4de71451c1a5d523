// SPDX-License-Identifier: MIT
#include "base/run_main.hpp"

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/result.hpp"
#include "base/standard_fds.hpp"

namespace heddle {

int run_guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

int run_main(const char* program, const std::function<int()>& body) {
  set_program_name(program);
  reserve_standard_fds();
  return run_guarded(body);
}

}  // namespace heddle
