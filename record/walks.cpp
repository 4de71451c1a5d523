// SPDX-License-Identifier: MIT
#include "record/walks.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/fd.hpp"
#include "record/loopback/loopback.hpp"

namespace heddle {
namespace {

using trace::Op;
constexpr std::size_t kMostWalks = 4096;

}  // namespace

Walks::Walks() : can_tell_(loopback::kernel_tells_calls()) {}

std::string Walks::destination(std::string_view link, std::string_view target) {
  std::string out(target.starts_with('/') ? std::string_view() : link.substr(0, link.rfind('/')));
  while (!target.empty()) {
    const auto end = std::min(target.find('/'), target.size());
    const auto part = target.substr(0, end);
    target.remove_prefix(std::min(end + 1, target.size()));
    if (part == "..") {
      out.resize(out.empty() ? 0 : out.rfind('/'));
    } else if (!part.empty() && part != ".") {
      out += '/';
      out += part;
    }
  }
  return out.empty() ? "/" : out;
}

/// readlink(2) reads a link without walking on; what the thread asks for next is another matter.
bool Walks::is_walking(std::int32_t tid) const {
  if (!can_tell_) return false;
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/syscall", tid);
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof(text) - 1) : -1;
  if (n <= 0) return false;
  text[n] = '\0';
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (end == text) return false;
#ifdef SYS_readlink
  if (number == SYS_readlink) return false;
#endif
  return number != SYS_readlinkat;
}

bool Walks::asked_path(const trace::Event& event, std::string& asked) {
  if (event.op == Op::readlink && event.error == 0 && is_walking(event.tid)) {
    const std::lock_guard lock(mutex_);
    if (walks_.size() > kMostWalks) walks_.clear();
    Walk& walk = walks_[event.tid];
    if (!walk.end.empty()) walk = {};
    walk.steps.push_back({std::string(event.path), destination(event.path, event.target)});
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto at = walks_.find(event.tid);
  if (at == walks_.end()) return false;
  Walk& walk = at->second;
  const bool goes_on = event.op == Op::lookup && event.error == 0;
  if (!walk.end.empty() && (event.op == Op::lookup || walk.end != event.path)) {
    walks_.erase(at);
    return false;
  }
  if (goes_on) return false;
  if (event.op == Op::read || event.op == Op::write || event.op == Op::close) return false;
  walk.end = event.path;
  asked = event.path;
  bool changed = false;
  for (auto step = walk.steps.rbegin(); step != walk.steps.rend(); ++step) {
    const auto& target = step->target;
    const bool below = asked.size() > target.size() && asked.starts_with(target) &&
                       (asked[target.size()] == '/' || target == "/");
    if (asked != target && !below) continue;
    asked = step->link + (target == "/" ? asked : asked.substr(target.size()));
    changed = true;
  }
  return changed;
}

}  // namespace heddle
