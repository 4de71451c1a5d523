// SPDX-License-Identifier: MIT
#include "container-hooks/hook_progress.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

namespace heddle {

/// A reader comes when the writers have gone, or have waited for long: no lock.
struct HookProgress::Page {
  std::atomic<pid_t> placed_by{0};
  char step[4000] = "";
};

HookProgress::Page* HookProgress::current_ = nullptr;

Result<HookProgress> HookProgress::share() {
  void* memory =
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail_errno("fs-hook", "cannot share memory");
  current_ = new (memory) Page;
  return HookProgress(current_);
}

HookProgress::HookProgress(HookProgress&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)) {}

HookProgress::~HookProgress() {
  if (!page_) return;
  current_ = nullptr;
  ::munmap(page_, sizeof(Page));
}

std::string HookProgress::step() const {
  return {page_->step, ::strnlen(page_->step, sizeof(page_->step))};
}

void note_step(std::string_view doing, std::string_view what) {
  if (!HookProgress::current_) return;
  auto& step = HookProgress::current_->step;
  std::size_t at = 0;
  for (const auto part : {doing, std::string_view(" "), what})
    at += part.copy(step + at, sizeof(step) - 1 - at);
  step[at] = '\0';
}

void note_placed(bool placed) {
  if (HookProgress::current_) HookProgress::current_->placed_by = placed ? ::getpid() : 0;
}

pid_t placed_by() { return HookProgress::current_ ? HookProgress::current_->placed_by.load() : 0; }

}  // namespace heddle
