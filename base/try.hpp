// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <utility>

#include "base/result.hpp"

namespace heddle::detail {

/// The value of a result that has one, moved out; nothing for Result<void>.
template <class R>
typename std::remove_reference_t<R>::value_type take_value(R&& result) {
  if constexpr (!std::is_void_v<typename std::remove_reference_t<R>::value_type>)
    return std::move(*result);
}

}  // namespace heddle::detail

/// The value of a Result; on failure the enclosing function returns the error:
///     const std::string text = TRY(read_file(path));
///     TRY(write_all(fd, text, path));
/// Works for any tl::expected whose error type the function also returns. Use it only as a whole
/// right-hand side or statement: a return from within a larger expression may leak temporaries (GCC
/// manual, "Statement Exprs").
#define TRY(...)                                                                      \
  (__extension__({                                                                    \
    auto heddle_tried = (__VA_ARGS__);                                                \
    if (!heddle_tried) return ::tl::make_unexpected(std::move(heddle_tried).error()); \
    ::heddle::detail::take_value(std::move(heddle_tried));                            \
  }))
