// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "fuseovl/session/succession.hpp"
#include "record/event_ring.hpp"
#include "record/loopback/request_slots.hpp"
#include "record/native_folders.hpp"
#include "record/walks.hpp"

namespace heddle {
namespace {

using loopback::RequestSlots;

trace::Event event_at(std::string_view path) {
  trace::Event event;
  event.path = path;
  return event;
}

TEST(EventRing, an_event_that_was_noted_is_not_told_again) {
  const auto ring = value_or_throw(EventRing::create());
  std::atomic<std::uint64_t> note = 0;
  ring->add(event_at("/one"), {&note, 1});
  ring->add(event_at("/two"), {&note, 2});
  EXPECT_EQ(ring->told(note), 2U);
  // Killed between the note and the event.
  const std::uint64_t ahead = (3ULL << 8U) | 3U;
  EXPECT_EQ(ring->told(ahead), 2U);
  note = ring->told(ahead);
  ring->take_over();
  for (unsigned number = 1; number <= 3; ++number) ring->add(event_at("/again"), {&note, number});
  std::vector<std::string> got;
  ring->drain([&](const trace::Event& event) { got.emplace_back(event.path); });
  EXPECT_EQ(got, (std::vector<std::string>{"/one", "/two", "/again"}));
  EXPECT_TRUE(ring->empty());
}

TEST(EventRing, who_puts_in_waits_for_who_takes_out) {
  const auto ring = value_or_throw(EventRing::create());
  constexpr std::size_t kMany = 5 * EventRing::kEvents;
  std::jthread putting([&] {
    for (std::size_t i = 0; i < kMany; ++i)
      ring->add(event_at(std::string(i % 997, 'p') + std::to_string(i)), {});
  });
  std::size_t got = 0, wrong = 0;
  while (got < kMany)
    ring->drain([&](const trace::Event& event) {
      wrong += event.path != std::string(got % 997, 'p') + std::to_string(got);
      ++got;
    });
  EXPECT_EQ(wrong, 0U);
}

/// As the kernel writes a request into a slot that was made ready for it.
void put_request(const RequestSlots& slots, std::size_t slot, std::uint64_t unique,
                 std::uint32_t opcode = FUSE_MKDIR) {
  slots.before_read(slot);
  fuse_in_header header{};
  header.len = sizeof(header);
  header.opcode = opcode;
  header.unique = unique;
  std::memcpy(slots.buffer(slot), &header, sizeof(header));
}

TEST(RequestSlots, a_request_that_comes_again_goes_on_where_it_was) {
  using Stage = loopback::RequestProgress::Stage;
  const RequestSlots slots;
  put_request(slots, 0, 10);
  slots.after_read(0);
  slots.progress(0).stage = Stage::made;
  put_request(slots, 1, 12);  // killed before it was looked at
  put_request(slots, 2, 14, FUSE_FORGET);
  std::vector<std::size_t> seen;
  slots.take_over([&](std::size_t slot) { seen.push_back(slot); });
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1, 2}));
  slots.take_over([](std::size_t) { ADD_FAILURE() << "each request is seen to once"; });
  put_request(slots, 3, 10 | kResentUnique);
  slots.after_read(3);
  EXPECT_EQ(slots.progress(3).stage, Stage::made);
  put_request(slots, 4, 12 | kResentUnique);
  slots.after_read(4);
  EXPECT_EQ(slots.progress(4).stage, Stage::taken);
  put_request(slots, 5, 18 | kResentUnique);
  slots.after_read(5);
  EXPECT_EQ(slots.progress(5).stage, Stage::acting) << "nobody knows: its effect decides";
}

TEST(RequestSlots, what_was_answered_is_dropped_once_new_requests_come) {
  using Stage = loopback::RequestProgress::Stage;
  const RequestSlots slots;
  put_request(slots, 0, 10);
  slots.after_read(0);
  slots.progress(0).stage = Stage::done;
  slots.take_over([](std::size_t) {});
  put_request(slots, 0, 16);
  slots.after_read(0);
  EXPECT_EQ(slots.progress(0).stage, Stage::taken);
  slots.take_over([](std::size_t) {});
  put_request(slots, 0, 10 | kResentUnique);
  slots.after_read(0);
  EXPECT_EQ(slots.progress(0).stage, Stage::acting);
}

TEST(Succession, workers_that_do_nothing_are_not_followed_for_ever) {
  Succession succession;
  int followed = 0;
  for (; followed < 1000; ++followed) {
    succession.starts(5);
    if (!succession.died(5)) break;
  }
  EXPECT_GE(followed, 9);
  EXPECT_LT(followed, 1000);
  for (std::uint64_t answers = 0; answers < 100; ++answers) {
    succession.starts(answers);
    EXPECT_TRUE(succession.died(answers + 1));
    EXPECT_EQ(succession.pause(), std::chrono::milliseconds(0));
  }
}

TEST(Walks, destinations_are_absolute_and_plain) {
  EXPECT_EQ(Walks::destination("/lib", "usr/lib"), "/usr/lib");
  EXPECT_EQ(Walks::destination("/a/b/c", "../x/./y"), "/a/x/y");
  EXPECT_EQ(Walks::destination("/a/b", "/c//d/"), "/c/d");
  EXPECT_EQ(Walks::destination("/a", "../.."), "/");
}

TEST(NativeFolders, only_sockets_that_answer_count) {
  const std::string text =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000: 00000002 00000000 00010000 0001 01 100 /run/dbus/socket\n"
      "0000: 00000003 00000000 00000000 0001 03 101 /run/dbus/client\n"
      "0000: 00000002 00000000 00000000 0002 01 102 /dev/log with space\n"
      "0000: 00000002 00000000 00010000 0001 01 103 @/abstract/name\n"
      "0000: 00000002 00000000 00010000 0001 01 104\n";
  EXPECT_EQ(served_sockets(text),
            (std::vector<std::string>{"/run/dbus/socket", "/dev/log with space"}));
}

}  // namespace
}  // namespace heddle
