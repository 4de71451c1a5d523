// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "resolver/store/databases.hpp"

namespace heddle::store {
namespace {

class Store : public ::testing::Test {
 protected:
  static std::string written(const Databases& databases) {
    return value_or_throw(write_databases(databases));
  }
  static int code_of(std::string_view file) {
    const auto read = read_databases(file);
    return read ? 0 : read.error().code();
  }
};

/// Three levels of pages, values within and beyond a page, an empty database.
struct Sample {
  std::vector<std::string> texts;
  Databases databases;
  Sample() {
    texts.reserve(7000);
    auto& many = databases["many"];
    for (int i = 0; i < 3000; ++i) {
      texts.push_back(std::string(100, 'k') + std::to_string(10000 + i));
      const std::string_view key = texts.back();
      texts.push_back(std::string(static_cast<std::size_t>(i) % 700, 'v'));
      many.emplace_back(key, texts.back());
    }
    texts.emplace_back(100'000, 'l');
    databases["long"] = {{"a", texts.back()}, {std::string_view("b\0c", 3), ""}, {"\xff", "z"}};
    databases["none"];
  }
};

TEST_F(Store, round_trips_its_databases) {
  const Sample sample;
  const auto file = written(sample.databases);
  const auto read = value_or_throw(read_databases(file));
  EXPECT_EQ(read, sample.databases);
  const auto& many = read.at("many");
  EXPECT_EQ(find(many, many[1234].first), many[1234].second);
  EXPECT_EQ(find(many, "k"), std::nullopt);
  EXPECT_EQ(find(read.at("none"), ""), std::nullopt);
}

TEST_F(Store, round_trips_no_databases) {
  EXPECT_EQ(value_or_throw(read_databases(written({}))), Databases{});
}

TEST_F(Store, writer_refuses_invalid_keys) {
  const std::string too_long(kMaxKey + 1, 'k');
  EXPECT_EQ(write_databases({{"d", {{too_long, "v"}}}}).error().code(), EINVAL);
  EXPECT_EQ(write_databases({{"d", {{"", "v"}}}}).error().code(), EINVAL);
  EXPECT_EQ(write_databases({{"d", {{"b", "v"}, {"a", "v"}}}}).error().code(), EEXIST);
}

TEST_F(Store, reader_refuses_other_files) {
  for (const std::size_t size : {0, 1, 100, 4096, 8192, 12288}) {
    EXPECT_EQ(code_of(std::string(size, 'x')), EBADMSG);
    EXPECT_EQ(code_of(std::string(size, '\0')), EBADMSG);
  }
}

TEST_F(Store, reader_refuses_a_loop_of_pages) {
  const Sample sample;
  auto file = written(sample.databases);
  // Every branch page becomes its own child.
  std::size_t branches = 0;
  for (std::size_t page = 2; page < file.size() / 4096; ++page) {
    auto* bytes = file.data() + page * 4096;
    std::uint16_t flags, lower;
    std::memcpy(&flags, bytes + 10, 2);
    std::memcpy(&lower, bytes + 12, 2);
    if ((flags & 1) == 0 || (flags & 4) != 0) continue;
    ++branches;
    for (std::size_t at = 16; at < lower; at += 2) {
      std::uint16_t node;
      std::memcpy(&node, bytes + at, 2);
      const auto self = static_cast<std::uint16_t>(page);
      std::memcpy(bytes + node, &self, 2);
    }
  }
  ASSERT_GT(branches, 1U);
  EXPECT_EQ(code_of(file), EBADMSG);
}

}  // namespace
}  // namespace heddle::store
