// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <concepts>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tl/expected.hpp>

namespace heddle {

/// The reason of a failure that a caller, also in another process, acts on.
enum class Cause : std::uint8_t {
  other,   ///< the failure is only reported
  unfit,   ///< the map does not fit this node: no other way to mount it helps
  silent,  ///< a file system, or a child that waits for one, does not answer
  lost,    ///< the other process cannot be reached, has ended or does not answer
  exec,    ///< the program to run cannot be executed; code() says why
  tree,    ///< a directory tree of the map cannot be put in its place
};

/// One failure, printed as `path: what: reason` and a `hint:` line if there is a remedy. It is the
/// error type of Result and, for set-up and tools, the only exception type.
class Error : public std::exception {
 public:
  /// `where` is a path or a name (shown escaped when it holds control characters), may be empty.
  Error(std::string_view where, std::string_view what, std::string_view reason = {},
        std::string_view hint = {});
  /// With the text of `error_number` as the reason; code() returns it.
  static Error from_errno(std::string_view where, std::string_view what, int error_number = errno,
                          std::string_view hint = {});

  /// As the constructor, with `error_number` as code().
  static Error with_code(int error_number, std::string_view where, std::string_view what,
                         std::string_view reason = {}, std::string_view hint = {});
  /// Empty, for decoding a record.
  Error() = default;
  /// The same failure, with this cause.
  Error because(Cause cause) && {
    cause_ = cause;
    return std::move(*this);
  }

  /// `where: what: reason`, one line without a newline.
  const std::string& message() const noexcept { return message_; }
  /// The remedy, or empty.
  const std::string& hint() const noexcept { return hint_; }
  /// The errno behind the failure, 0 when there is none.
  int code() const noexcept { return code_; }
  Cause cause() const noexcept { return cause_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
  std::string hint_;
  int code_ = 0;
  Cause cause_ = Cause::other;

  template <class Coder, class E>  // a record of base/coder.hpp
  requires std::same_as<std::remove_const_t<E>, Error>
  friend void fields(Coder& coder, E& e) { coder(e.cause_, e.code_, e.message_, e.hint_); }
};

template <class T>
using Result = tl::expected<T, Error>;

/// For `return fail(...)` in a function that returns a Result.
template <class... Args>
tl::unexpected<Error> fail(Args&&... args) {
  return tl::unexpected<Error>(Error(std::forward<Args>(args)...));
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> fail_errno(std::string_view where, std::string_view what,
                                        int error_number = errno, std::string_view hint = {}) {
  return tl::unexpected<Error>(Error::from_errno(where, what, error_number, hint));
}

/// The value, or the error thrown: for set-up code and tools.
template <class T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::move(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace heddle
