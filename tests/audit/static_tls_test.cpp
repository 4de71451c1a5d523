// SPDX-License-Identifier: MIT
#include "resolver/map/static_tls.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fuseovl/audit/process.hpp"
#include "resolver/map/tls_formula.hpp"

namespace heddle {
namespace {

TEST(StaticTls, ordinary_programs_need_nothing) {
  EXPECT_EQ(static_tls_need({}).optional_static_tls, 0u);
  EXPECT_EQ(static_tls_need({{144, 8, true}, {32, 8, true}}).optional_static_tls, 0u);  // C++
  EXPECT_FALSE(static_tls_need({{144, 64, true}}).over_aligned);
}

TEST(StaticTls, a_start_under_the_auditor_gets_the_room_of_a_plain_start) {
  // A plain start: the libraries' blocks and 1664 bytes more.
  const auto need = static_tls_need({{144, 8, true}, {8192, 8, false}});
  const std::uint64_t bytes = 144 + 7 + 8192 + 7;
  EXPECT_EQ(tls::surplus(5, need.optional_static_tls), bytes + 1664);
}

TEST(StaticTls, overalignment_is_detected) {
  EXPECT_TRUE(static_tls_need({{8, 128, true}}).over_aligned);
  EXPECT_FALSE(static_tls_need({{8, 128, true}}, 128).over_aligned);
  EXPECT_FALSE(static_tls_need({{8, 128, false}}).over_aligned);
}

TEST(StaticTls, merging_keeps_the_user_s_tunables) {
  const std::string ours = "glibc.rtld.optional_static_tls=";
  EXPECT_EQ(merge_tunables("", 0), "");
  EXPECT_EQ(merge_tunables("a=1", 0), "a=1");
  EXPECT_EQ(merge_tunables("", 700), ours + "700");
  EXPECT_EQ(merge_tunables("glibc.malloc.check=3:x", 700),
            "glibc.malloc.check=3:x:" + ours + "700");
  EXPECT_EQ(merge_tunables(ours + "600:glibc.malloc.check=3", 700),
            "glibc.malloc.check=3:" + ours + "700");
  EXPECT_EQ(merge_tunables(ours + "0x1000", 700), ours + "4096");
  EXPECT_EQ(merge_tunables(ours + "010:" + ours + "9000", 700), ours + "9000");
  EXPECT_EQ(merge_tunables(ours + "9000:" + ours + "010", 700), ours + "700");  // the last counts
  EXPECT_EQ(merge_tunables(":::", 700), ours + "700");
  EXPECT_EQ(merge_tunables(ours, 700), ours + "700");
  EXPECT_EQ(merge_tunables("glibc.rtld.optional_static_tls", 700),
            "glibc.rtld.optional_static_tls:" + ours + "700");
  EXPECT_EQ(merge_tunables(ours + "99999999999999999999999", 1), ours + "18446744073709551615");
}

TEST(StaticTls, settings_are_read_as_glibc_reads_them) {
  const auto read = [](const std::string& text) {
    return tls::read_settings(text.data(), text.size());
  };
  EXPECT_EQ(read("").optional, 512u);
  EXPECT_EQ(read("glibc.rtld.nns=2:glibc.rtld.optional_static_tls=7k").optional, 7u);
  EXPECT_EQ(read("glibc.rtld.nns=2").namespaces, 2u);
  EXPECT_EQ(read("glibc.rtld.nns=17").namespaces, 4u);
  EXPECT_EQ(read("glibc.rtld.nns=0").namespaces, 4u);
}

/// An argument block as the kernel lays it out.
class Stack {
 public:
  explicit Stack(std::vector<std::string> env) : text_(std::move(env)) {
    words_.push_back(name_);
    words_.push_back(nullptr);
    for (std::string& entry : text_) words_.push_back(entry.data());
    words_.insert(words_.end(), {nullptr, nullptr, nullptr});  // and an empty auxiliary vector
  }
  audit::StartBlock block() { return {1, words_.data(), words_.data() + 2}; }
  std::vector<std::string> env() {
    std::vector<std::string> out;
    for (char** entry = words_.data() + 2; *entry; ++entry) out.emplace_back(*entry);
    return out;
  }

 private:
  char name_[4] = "app";
  std::vector<std::string> text_;
  std::vector<char*> words_;
};

using Env = std::vector<std::string>;

TEST(StaticTls, the_program_sees_the_environment_it_was_given) {
  const auto restored = [](Env env) {
    Stack stack(std::move(env));
    auto block = stack.block();
    audit::restore_environment(block);
    return stack.env();
  };
  EXPECT_EQ(restored({"A=1", "GLIBC_TUNABLES=x=2", "B=3"}),
            (Env{"A=1", "GLIBC_TUNABLES=x=2", "B=3"}));
  EXPECT_EQ(
      restored({"A=1", "GLIBC_TUNABLES=x=2:y=3", "HEDDLE_TUNABLES=GLIBC_TUNABLES=x=2", "B=3"}),
      (Env{"A=1", "GLIBC_TUNABLES=x=2", "B=3"}));
  EXPECT_EQ(restored({"HEDDLE_TUNABLES=", "GLIBC_TUNABLES=y=3", "B=3"}), (Env{"B=3"}));
  EXPECT_EQ(restored({"HEDDLE_TUNABLES=GLIBC_TUNABLES=", "GLIBC_TUNABLES=y=3"}),
            (Env{"GLIBC_TUNABLES="}));
  EXPECT_EQ(restored({}), Env{});
  EXPECT_EQ(restored({"GLIBC_TUNABLESX=1", "HEDDLE_TUNABLESX="}),
            (Env{"GLIBC_TUNABLESX=1", "HEDDLE_TUNABLESX="}));
}

}  // namespace
}  // namespace heddle
