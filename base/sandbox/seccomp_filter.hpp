// SPDX-License-Identifier: MIT
#pragma once

#include <seccomp.h>

#include <cerrno>
#include <initializer_list>
#include <memory>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// The system calls that a process is left with; libseccomp behind it. Rules are added, then
/// load() closes the filter around all threads of the process, for ever. The first rule that cannot
/// be added makes load() fail.
class SeccompFilter {
 public:
  enum class Denied : std::uint8_t {
    kill,  ///< the process dies of SIGSYS
    fail,  ///< the call fails with EPERM, and the kernel's log says so
  };
  explicit SeccompFilter(Denied denied);

  SeccompFilter& allow(std::initializer_list<int> calls);
  /// With conditions on its arguments, all of which must hold (SCMP_A0() and the like).
  template <class... Compare>
  SeccompFilter& allow_if(int call, Compare... compare) {
    if (status_ == 0)
      status_ =
          ::seccomp_rule_add(filter_.get(), SCMP_ACT_ALLOW, call, sizeof...(compare), compare...);
    if (status_ == -EEXIST) status_ = 0;  // it is allowed already
    return *this;
  }
  /// Fails with `error_number` and without a word: what a library tries and can do without.
  SeccompFilter& refuse(int call, int error_number);

  /// `who` begins the error's message. Needs no new privileges or CAP_SYS_ADMIN.
  Result<void> load(std::string_view who);

 private:
  std::unique_ptr<void, decltype(&::seccomp_release)> filter_;
  int status_ = 0;
};

}  // namespace heddle
