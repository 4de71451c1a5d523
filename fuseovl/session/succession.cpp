// SPDX-License-Identifier: MIT
#include "fuseovl/session/succession.hpp"

#include <linux/fuse.h>
#include <unistd.h>

#include <cerrno>

#include "base/insist.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLived{50};
constexpr int kHopeless = 10;
constexpr int kNotifyResend = 7;  // FUSE_NOTIFY_RESEND of Linux 6.9

}  // namespace

void Succession::starts(std::uint64_t answers) {
  started_ = std::chrono::steady_clock::now();
  answers_ = answers;
}

bool Succession::died(std::uint64_t answers) {
  const bool worked = std::chrono::steady_clock::now() - started_ >= kLived || answers != answers_;
  hopeless_ = worked ? 0 : hopeless_ + 1;
  return hopeless_ < kHopeless;
}

milliseconds Succession::pause() const {
  return std::min(milliseconds(hopeless_ == 0 ? 0 : 10 << hopeless_), kLongestPause);
}

bool may_pass(int error) {
  return error != ENOENT && error != ENODEV && error != EINVAL && error != EBADF;
}

Result<void> ask_to_resend(int device) {
  fuse_out_header resend{};
  resend.len = sizeof(resend);
  resend.error = kNotifyResend;
  if (insist([&] { return ::write(device, &resend, sizeof(resend)); }, may_pass) < 0)
    return fail_errno("FUSE session", "cannot be taken over");
  return {};
}

}  // namespace heddle
