// SPDX-License-Identifier: MIT
#include "fuseovl/session/counters.hpp"

#include <linux/fuse.h>

#include <algorithm>

namespace heddle {
namespace {

// FUSE_STATX came with Linux 6.6; the number is the protocol's and older headers lack the name.
constexpr std::uint32_t kOpcodeStatx = 52;

constexpr RequestCounters::Kind kKinds[] = {
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

bool is_told_apart(std::uint32_t opcode) {
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const auto& kind) { return kind.opcode == opcode; });
}

}  // namespace

std::span<const RequestCounters::Kind> RequestCounters::kinds() { return kKinds; }

void RequestCounters::add(std::uint32_t opcode, std::uint64_t requests) noexcept {
  auto& counter = opcode < kOpcodes && is_told_apart(opcode) ? by_opcode_[opcode] : other_;
  counter.fetch_add(requests, std::memory_order_relaxed);
}

std::uint64_t RequestCounters::of(std::uint32_t opcode) const noexcept {
  return opcode < kOpcodes ? by_opcode_[opcode].load(std::memory_order_relaxed) : 0;
}

std::uint64_t RequestCounters::total() const noexcept {
  std::uint64_t sum = other();
  for (const auto& counter : by_opcode_) sum += counter.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace heddle
