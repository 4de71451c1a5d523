// SPDX-License-Identifier: MIT
#include "resolver/map/static_tls.hpp"

#include <gtest/gtest.h>

#include <string>

#include "resolver/map/tls_formula.hpp"

namespace heddle {
namespace {

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

TEST(StaticTls, more_blocks_than_glibc_has_places_for_are_too_many) {
  std::vector<TlsBlock> blocks(tls::kMostBlocks, TlsBlock{8, 8, false});
  blocks.push_back({0, 1, false});  // no TLS
  EXPECT_FALSE(static_tls_need(blocks).too_many);
  blocks.push_back({8, 8, false});
  EXPECT_TRUE(static_tls_need(blocks).too_many);
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

}  // namespace
}  // namespace heddle
