// SPDX-License-Identifier: MIT
// Clients that cannot be taken must not keep a poll(2) loop awake.
#include "base/listener.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/monotonic.hpp"

namespace heddle {
namespace {

/// No descriptor is to be had, until the end.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const Fd next(::dup(STDIN_FILENO));
    const rlimit none{static_cast<rlim_t>(next.get()), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class Listening : public ::testing::Test {
 protected:
  static Fd socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }
  void SetUp() override {
    // The kernel gives it a name, in no folder (unix(7), autobind).
    address_.sun_family = AF_UNIX;
    Fd listening = socket();
    ASSERT_EQ(::bind(listening.get(), address(), sizeof(sa_family_t)), 0);
    ASSERT_EQ(::listen(listening.get(), 8), 0);
    ASSERT_EQ(
        ::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address_), &address_size_), 0);
    listener_ = Listener(std::move(listening));
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }
  Fd connect() const {
    Fd out = socket();
    EXPECT_EQ(::connect(out.get(), address(), address_size_), 0);
    return out;
  }
  /// Of one round of a loop: what poll(2) has to say at once.
  std::vector<pollfd> poll() const {
    std::vector<pollfd> polled;
    listener_.add_to(polled);
    (void)::poll(polled.data(), polled.size(), 0);
    return polled;
  }

  sockaddr_un address_{};
  socklen_t address_size_ = sizeof(address_);
  Listener listener_;
};

TEST_F(Listening, takes_each_who_waits_and_never_waits_itself) {
  EXPECT_FALSE(listener_.accept());
  const Fd one = connect();
  const Fd other = connect();
  EXPECT_TRUE(listener_.is_due(poll()));
  EXPECT_TRUE(listener_.accept());
  EXPECT_TRUE(listener_.accept());
  EXPECT_FALSE(listener_.accept());
  EXPECT_FALSE(listener_.is_due(poll()));
  EXPECT_EQ(listener_.wakes_at(), 0);
}

TEST_F(Listening, leaves_who_cannot_be_taken_alone_for_a_moment) {
  const Fd client = connect();
  {
    const NoDescriptors none;
    EXPECT_TRUE(listener_.is_due(poll()));
    EXPECT_FALSE(listener_.accept());
  }
  ASSERT_NE(listener_.wakes_at(), 0);
  const bool asks = !poll().empty() || listener_.is_due({});
  EXPECT_TRUE(!asks || monotonic_ms() >= listener_.wakes_at())
      << "poll(2) would say at once that a client waits";
  while (monotonic_ms() < listener_.wakes_at()) (void)::poll(nullptr, 0, 1);
  EXPECT_TRUE(listener_.is_due({}));
  EXPECT_TRUE(listener_.accept());
  EXPECT_EQ(listener_.wakes_at(), 0);
}

TEST_F(Listening, one_that_was_closed_wakes_nobody) {
  const Fd client = connect();
  {
    const NoDescriptors none;
    EXPECT_FALSE(listener_.accept());
  }
  listener_.reset();
  EXPECT_TRUE(poll().empty());
  EXPECT_FALSE(listener_.is_due({}));
  EXPECT_EQ(listener_.wakes_at(), 0);
  EXPECT_FALSE(listener_.accept());
}

}  // namespace
}  // namespace heddle
