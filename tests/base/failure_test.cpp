// SPDX-License-Identifier: MIT
// Errors on their way from one process to another.
#include <gtest/gtest.h>

#include "base/socket_pair.hpp"

namespace heddle {
namespace {

Error sent(const Error& error, FailureCode code) {
  const auto sockets = value_or_throw(make_socket_pair());
  send_failure(sockets.one.get(), error, code);
  return receive_fd(sockets.other.get()).error();
}

TEST(Failure, arrives_with_its_words_and_its_errno) {
  const auto error = Error::from_errno("/x", "cannot open", ENOENT, "make it");
  const auto whole = sent(error, FailureCode::sent);
  EXPECT_EQ(whole.message(), error.message());
  EXPECT_EQ(whole.hint(), "make it");
  EXPECT_EQ(whole.code(), ENOENT);
  EXPECT_EQ(sent(error, FailureCode::left_out).code(), 0);
}

TEST(Failure, keeps_its_errno_however_long_its_words_are) {
  for (const std::size_t size : {4000UL, 4080UL, 4085UL, 4090UL, 4096UL, 9000UL})
    for (const std::size_t hint : {0UL, 3UL, 5000UL})
      for (const int code : {ESTALE, std::numeric_limits<int>::max()}) {
        const std::string words(size, 'w');
        const auto error =
            sent(Error::with_code(code, {}, words, {}, std::string(hint, 'h')), FailureCode::sent);
        EXPECT_EQ(error.code(), code) << size << " and " << hint;
        EXPECT_EQ(error.message(), words.substr(0, error.message().size()));
        EXPECT_GT(error.message().size(), 3900U);
        EXPECT_EQ(error.hint().find_first_not_of('h'), std::string::npos);
      }
}

}  // namespace
}  // namespace heddle
