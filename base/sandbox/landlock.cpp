// SPDX-License-Identifier: MIT
#include "base/sandbox/landlock.hpp"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "base/try.hpp"

namespace heddle {
namespace {

/// struct landlock_ruleset_attr of Linux 6.12; Debian 12's header has only the first member. Older
/// kernels accept the longer struct if unknown members are zero.
struct RulesetAttributes {
  std::uint64_t files = 0;
  std::uint64_t net = 0;
  std::uint64_t scoped = 0;
};

constexpr std::uint64_t kAllNet = 3;        // bind and connect of TCP; version 4
constexpr std::uint64_t kAbstractUnix = 1;  // of another domain; version 6

/// All file rights that version `abi` of the kernel's interface can deny.
std::uint64_t all_file_rights(long abi) {
  const unsigned rights = abi >= 5 ? 16 : abi >= 3 ? 15 : abi >= 2 ? 14 : 13;
  return (std::uint64_t{1} << rights) - 1;
}

bool add_rule(int rules, int place, std::uint64_t rights) {
  landlock_path_beneath_attr rule{};
  rule.allowed_access = rights;
  rule.parent_fd = place;
  return ::syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
}

}  // namespace

Landlock::Landlock() {
  const long abi =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (abi < 1) return;
  RulesetAttributes attributes;
  attributes.files = all_file_rights(abi);
  if (abi >= 4) attributes.net = kAllNet;
  if (abi >= 6) attributes.scoped = kAbstractUnix;
  rules_ = Fd(
      static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attributes, sizeof(attributes), 0)));
}

Result<void> Landlock::allow_reading(const std::string& path) {
  if (!rules_) return {};
  const Fd place = TRY(open_file(path, O_PATH));
  struct stat status {};
  if (::fstat(place.get(), &status) != 0) return fail_errno(path, "cannot stat");
  const std::uint64_t listing = S_ISDIR(status.st_mode) ? LANDLOCK_ACCESS_FS_READ_DIR : 0;
  if (!add_rule(rules_.get(), place.get(), LANDLOCK_ACCESS_FS_READ_FILE | listing))
    return fail_errno(path, "cannot be allowed for");
  return {};
}

Result<void> Landlock::allow_reading_below(int directory) {
  if (rules_ && !add_rule(rules_.get(), directory, LANDLOCK_ACCESS_FS_READ_FILE))
    return fail_errno("", "a directory cannot be allowed for");
  return {};
}

Result<void> Landlock::restrict_thread(std::string_view who) const {
  if (rules_ && ::syscall(SYS_landlock_restrict_self, rules_.get(), 0) != 0)
    return fail_errno(who, "cannot enter its sandbox (Landlock)");
  return {};
}

}  // namespace heddle
