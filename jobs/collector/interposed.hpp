// SPDX-License-Identifier: MIT
#pragma once

// Interposed functions call the next definition: libc's, or another preload's.

#define HEDDLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace heddle::jobs {

void* find_next(const char* name);

/// The next definition of an interposed function.
template <class Function>
class Next {
 public:
  explicit constexpr Next(const char* name) : name_(name) {}
  Function* get() {
    void* found = __atomic_load_n(&found_, __ATOMIC_RELAXED);
    if (!found) __atomic_store_n(&found_, found = find_next(name_), __ATOMIC_RELAXED);
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* name_;
  void* found_ = nullptr;
};

}  // namespace heddle::jobs
