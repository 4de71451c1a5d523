// SPDX-License-Identifier: MIT
#include "fuseovl/session/counters.hpp"

#include <linux/fuse.h>

namespace heddle {
namespace {

// FUSE_STATX came with Linux 6.6; the number is the protocol's and older headers lack the name.
constexpr std::uint32_t kOpcodeStatx = 52;

constexpr std::pair<const char*, std::uint32_t> kKinds[] = {
    {"lookup", FUSE_LOOKUP},
    {"getattr", FUSE_GETATTR},
    {"statx", kOpcodeStatx},
    {"open", FUSE_OPEN},
    {"read", FUSE_READ},
    {"flush", FUSE_FLUSH},
    {"release", FUSE_RELEASE},
    {"opendir", FUSE_OPENDIR},
    {"readdir", FUSE_READDIR},
    {"readdirplus", FUSE_READDIRPLUS},
    {"releasedir", FUSE_RELEASEDIR},
    {"statfs", FUSE_STATFS},
    {"access", FUSE_ACCESS},
    {"getxattr", FUSE_GETXATTR},
    {"listxattr", FUSE_LISTXATTR},
    {"lseek", FUSE_LSEEK},
    {"ioctl", FUSE_IOCTL},
    {"interrupt", FUSE_INTERRUPT},
    {"forget", FUSE_FORGET},
    {"batch_forget", FUSE_BATCH_FORGET},
    {"init", FUSE_INIT},
    {"destroy", FUSE_DESTROY},
};

}  // namespace

std::uint64_t RequestCounters::total() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& counter : by_opcode_) sum += counter.load(std::memory_order_relaxed);
  return sum;
}

std::vector<std::pair<const char*, std::uint64_t>> RequestCounters::by_kind() const {
  std::vector<std::pair<const char*, std::uint64_t>> out;
  auto other = total();
  for (const auto& [name, opcode] : kKinds) {
    out.emplace_back(name, by_opcode_[opcode].load(std::memory_order_relaxed));
    other -= std::min(other, out.back().second);
  }
  out.emplace_back("other", other);
  return out;
}

}  // namespace heddle
