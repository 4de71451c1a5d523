// SPDX-License-Identifier: MIT
//
// A judge that was taken over can send compat-server any descriptor that it has.
#include "compat/server/judge_protocol.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using compat::Answer;
using compat::receive_large;

class HostileJudge : public ::testing::Test {
 protected:
  /// The errno of what compat-server makes of this descriptor; 0: it is an answer.
  int received(const Fd& file, std::size_t most = std::size_t{1} << 20) const {
    value_or_throw(send_fd(sockets_.one.get(), file.get()));
    const auto answer = receive_large<Answer>(sockets_.other.get(), most);
    return answer ? 0 : answer.error().code();
  }
  static std::string good() {
    Answer answer;
    answer.error = "no artifact";
    Encoder coder;
    coder(answer);
    return coder.take();
  }
  static Fd memory(std::string_view text) {
    Fd out(::memfd_create("answer", MFD_CLOEXEC));
    value_or_throw(write_all(out.get(), text, "memfd"));
    return out;
  }

  SocketPair sockets_ = value_or_throw(make_socket_pair());
  TestDir dir_;
};

TEST_F(HostileJudge, message_that_is_no_memory_file_is_refused_without_waiting) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd empty_pipe(ends[0]), writer(ends[1]);
  EXPECT_EQ(received(empty_pipe), EPROTO);
  EXPECT_EQ(received(value_or_throw(open_file("/dev/zero", O_RDONLY))), EPROTO);
  // Of a file system that may hang, for example.
  const auto file = value_or_throw(open_file(write_text_file(dir_ / "answer", good()), O_RDONLY));
  if (::fcntl(file.get(), F_GET_SEALS) >= 0) HEDDLE_SKIP("the test's directory is in memory");
  EXPECT_EQ(received(file), EPROTO);
}

TEST_F(HostileJudge, message_that_is_too_long_cut_or_followed_by_more_is_refused) {
  const auto text = good();
  EXPECT_EQ(received(memory(text)), 0);
  EXPECT_EQ(received(memory(text), text.size() - 1), EPROTO);
  EXPECT_EQ(received(memory(text.substr(0, text.size() - 1))), EPROTO);
  EXPECT_EQ(received(memory(text + "x")), EPROTO);
  EXPECT_EQ(received(memory("")), EPROTO);
  const auto hole = memory("");
  ASSERT_EQ(::ftruncate(hole.get(), off_t{1} << 40), 0);
  EXPECT_EQ(received(hole), EPROTO);
}

}  // namespace
}  // namespace heddle::test
