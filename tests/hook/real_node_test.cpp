// SPDX-License-Identifier: MIT
//
// As real_mpi_test.cpp, on a node where fs-mount --node runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/hook/node_service.hpp"
#include "tests/hook/real_mpi.hpp"

namespace heddle::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RealNode : public RealMpiTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { prepare(GetParam(), "bookworm"); }
};

TEST_P(RealNode, ranks_in_containers_of_their_own_read_the_hosts_files_once) {
  NodeService service(staged_program("fs-mount"), dir_ / "node");
  auto config = this->config({"/mnt/hello"});
  for (const auto& word : {std::string("--node"), dir_ / "node"})
    config["hooks"]["createRuntime"][0]["args"].push_back(word);
  const auto bytes_read = [&] {
    const auto maps = service.maps();
    if (maps.size() != 1U) throw Error("the node", "has not one mount");
    const auto text = value_or_throw(read_stats_text(maps[0]));
    return nlohmann::json::parse(text).at("bytes_read").get<double>();
  };
  const auto one = start(config, 1);
  expect_right_sums(one, 1, "2.36");
  const double once = bytes_read();
  EXPECT_GT(once, 1e6) << "libmpich is of 40 MB";
  const auto four = start(config, 4);
  EXPECT_EQ(four.status, 0) << four.err << log();
  expect_right_sums(four, 4, "2.36");
  // Four ranks touch a little more than one did: code for peers.
  EXPECT_LT(bytes_read(), 1.5 * once);
  EXPECT_THAT(log(), HasSubstr("by the node's mount"));
  EXPECT_THAT(log(), Not(HasSubstr("a mount of its own")));
  EXPECT_EQ(service.end(SIGTERM), 0);
}

INSTANTIATE_TEST_SUITE_P(Oci, RealNode, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace heddle::test
