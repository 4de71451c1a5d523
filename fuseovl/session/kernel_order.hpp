// SPDX-License-Identifier: MIT
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace heddle {

// A thread's work before its answer happens before the kernel sends requests that follow from the
// answer (all after INIT, RELEASE after the last FSYNC) to any thread. ThreadSanitizer does not see
// that order without these.

#if defined(__SANITIZE_THREAD__)
inline char kernel_order = 0;
inline void before_answer() { __tsan_release(&kernel_order); }
inline void after_request() { __tsan_acquire(&kernel_order); }
#else
inline void before_answer() {}
inline void after_request() {}
#endif

}  // namespace heddle
