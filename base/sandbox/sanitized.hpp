// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// Whether this is a build with AddressSanitizer or ThreadSanitizer, whose runtimes exceed memory
/// limits and make system calls that the filters deny.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace heddle
