// SPDX-License-Identifier: MIT
#include "base/coder.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "base/channel.hpp"

namespace heddle {
namespace {

enum class Colour : std::uint16_t { red = 1, blue = 700 };
struct Inner {
  std::string name;
  std::optional<std::int32_t> weight;
};
struct Outer {
  Colour colour{};
  std::vector<Inner> all;
  std::array<std::uint8_t, 4> bytes{};
};
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Inner>
void fields(Coder& coder, R& r) { coder(r.name, r.weight); }
template <class Coder, class R>
requires std::same_as<std::remove_const_t<R>, Outer>
void fields(Coder& coder, R& r) { coder(r.colour, r.all, r.bytes); }

Outer sample() { return {Colour::blue, {{"a\n", 3}, {"", std::nullopt}}, {1, 2, 255, 0}}; }

TEST(Coder, round_trips_records_and_refuses_truncated_ones) {
  Encoder out;
  out(sample());
  const std::string bytes = out.take();
  Outer got;
  Decoder in(bytes);
  in(got);
  ASSERT_TRUE(in.complete());
  EXPECT_EQ(got.colour, Colour::blue);
  ASSERT_EQ(got.all.size(), 2U);
  EXPECT_EQ(got.all[0].name, "a\n");
  EXPECT_EQ(got.all[0].weight, 3);
  EXPECT_EQ(got.all[1].weight, std::nullopt);
  EXPECT_EQ(got.bytes, sample().bytes);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    Decoder cut(std::string_view(bytes).substr(0, n));
    cut(got);
    EXPECT_FALSE(cut.complete()) << n;
  }
  const std::string more = bytes + "x";
  Decoder longer(more);
  longer(got);
  EXPECT_FALSE(longer.complete());
}

TEST(Channel, passes_records_with_descriptors_and_refuses_other_packets) {
  auto pair = value_or_throw(make_socket_pair());
  const int fd = pair.one.get();
  ASSERT_TRUE(send_record(fd, sample(), {&fd, 1}));
  const auto got = receive_record<Outer>(pair.other.get(), std::chrono::seconds(5));
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->message.all.size(), 2U);
  EXPECT_EQ(got->fds.size(), 1U);
  ASSERT_TRUE(send_packet(fd, "nonsense"));
  const auto bad = receive_record<Outer>(pair.other.get(), std::chrono::seconds(5));
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), EPROTO);
  const auto late = receive_record<Outer>(pair.other.get(), std::chrono::milliseconds(1));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ETIMEDOUT);
}

TEST(Failure, arrives_with_message_errno_and_cause) {
  const auto sockets = value_or_throw(make_socket_pair());
  for (const std::size_t size : {1UL, 9000UL, 2UL * kLongestPacket}) {
    const auto error =
        Error::with_code(ENOENT, "", std::string(size, 'w'), "", std::string(size, 'h'))
            .because(Cause::unfit);
    send_failure(sockets.one.get(), error);
    const auto got = receive_fd(sockets.other.get());
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().message(), error.message().substr(0, got.error().message().size()));
    EXPECT_EQ(got.error().hint(), error.hint().substr(0, got.error().hint().size()));
    EXPECT_GE(got.error().message().size(), std::min<std::size_t>(size, 9000));
    EXPECT_EQ(got.error().code(), ENOENT);
    EXPECT_EQ(got.error().cause(), Cause::unfit);
  }
}

}  // namespace
}  // namespace heddle
