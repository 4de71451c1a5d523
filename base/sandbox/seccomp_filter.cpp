// SPDX-License-Identifier: MIT
#include "base/sandbox/seccomp_filter.hpp"

#include <cerrno>

namespace heddle {

SeccompFilter::SeccompFilter(Denied denied)
    : filter_(
          ::seccomp_init(denied == Denied::kill ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_ERRNO(EPERM)),
          &::seccomp_release) {
  if (!filter_)
    status_ = -ENOMEM;
  else if (denied == Denied::fail)
    // A kernel older than Linux 4.14 cannot log.
    (void)::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_LOG, 1);
}

SeccompFilter& SeccompFilter::allow(std::initializer_list<int> calls) {
  for (const int call : calls) allow_if(call);
  return *this;
}

SeccompFilter& SeccompFilter::refuse(int call, int error_number) {
  if (status_ == 0)
    status_ = ::seccomp_rule_add(filter_.get(),
                                 SCMP_ACT_ERRNO(static_cast<std::uint32_t>(error_number)), call, 0);
  return *this;
}

Result<void> SeccompFilter::load(std::string_view who) {
  if (status_ == 0) (void)::seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  if (status_ == 0) status_ = ::seccomp_load(filter_.get());
  if (status_ != 0)
    return fail_errno(who, "cannot enter its sandbox (seccomp)", -status_,
                      "the kernel or the container around must allow seccomp filters");
  return {};
}

}  // namespace heddle
