// SPDX-License-Identifier: MIT
#pragma once

#include <seccomp.h>

#include <cerrno>
#include <initializer_list>
#include <memory>
#include <string_view>

#include "base/result.hpp"

namespace heddle {

/// A list of allowed system calls, by libseccomp. Rules are added, then load() applies the filter
/// irrevocably to all threads. The first rule that cannot be added makes load() fail.
class SeccompFilter {
 public:
  enum class Denied : std::uint8_t {
    kill,  ///< the process dies of SIGSYS
    fail,  ///< the call fails with EPERM and is logged by the kernel
  };
  explicit SeccompFilter(Denied denied);

  SeccompFilter& allow(std::initializer_list<int> calls);
  /// With conditions on the arguments, all of which must hold (SCMP_A0() and the like).
  template <class... Compare>
  SeccompFilter& allow_if(int call, Compare... compare) {
    if (status_ == 0)
      status_ =
          ::seccomp_rule_add(filter_.get(), SCMP_ACT_ALLOW, call, sizeof...(compare), compare...);
    if (status_ == -EEXIST) status_ = 0;  // it is allowed already
    return *this;
  }
  /// Makes a call fail with `error_number` without a log entry: for calls that libraries only try.
  SeccompFilter& refuse(int call, int error_number);

  /// `who` begins the error's message. Requires no_new_privs or CAP_SYS_ADMIN.
  Result<void> load(std::string_view who);

 private:
  std::unique_ptr<void, decltype(&::seccomp_release)> filter_;
  int status_ = 0;
};

}  // namespace heddle
