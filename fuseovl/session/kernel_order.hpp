// SPDX-License-Identifier: MIT
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace heddle {

// What one thread did before it answered a request is over before the kernel sends a request that
// follows from the answer (all after INIT, RELEASE after the last FSYNC), to whichever thread.
// ThreadSanitizer does not see that order: here it is told. In other builds this is nothing.

#if defined(__SANITIZE_THREAD__)
inline char kernel_order = 0;
inline void before_answer() { __tsan_release(&kernel_order); }
inline void after_request() { __tsan_acquire(&kernel_order); }
#else
inline void before_answer() {}
inline void after_request() {}
#endif

}  // namespace heddle
