// SPDX-License-Identifier: MIT
//
// The real thing once more as a user who is not root: his runtime, his own fs-resolve and fs-mount.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/real_mpi.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using namespace std::literals;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RealUser : public RealMpiTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    prepare(GetParam(), "bookworm");
    if (IsSkipped() || HasFatalFailure()) return;
    ::chmod(dir_.path().c_str(), 0755);
    for (const char* directory : {"image", "user"}) fs::create_directory(dir_ / directory);
    // What a user may not reach where it lies is bound to where he may.
    copy_mpi("app/mpi");
    compile("solver", "-Wl,-rpath,/mnt/mpi");
    ASSERT_EQ(::chown((dir_ / "user").c_str(), kUser, kUser), 0);
  }
  Json users_config(const std::vector<std::string>& args) const {
    auto out = config(args);
    out["root"]["path"] = dir_ / "image";
    out["process"]["env"].erase(0);
    auto hook = out["hooks"]["createRuntime"][0];
    hook["args"] = {"fs-hook",           "oci",   "--stage",         "createContainer", "--cache",
                    dir_ / "user/cache", "--log", dir_ / "user/log", "--always"};
    out["hooks"] = {{"createContainer", {hook}}};
    out["linux"]["namespaces"].push_back({{"type", "user"}});
    for (const char* map : {"uidMappings", "gidMappings"})
      out["linux"][map] = {{{"containerID", 0}, {"hostID", kUser}, {"size", 1}}};
    return out;
  }
  RunResult start_as_user(const Json& config) const {
    write_text_file(dir_ / "bundle/config.json", config.dump());
    auto argv = words_of({dir_ / "user", dir_ / "user", kUser, "open",
                          "mount --bind '" + rootfs_ + "' '" + (dir_ / "image") + "'"});
    argv.insert(argv.end(), {GetParam(), "--root", dir_ / "user/state"});
    if (GetParam() == "crun"s) argv.insert(argv.end(), {"--cgroup-manager", "disabled"});
    argv.insert(argv.end(), {"run", "--bundle", dir_ / "bundle", "heddle-real-user"});
    return run(argv);
  }
  std::string log() const { return read_file(dir_ / "user/log").value_or(""); }
};

TEST_P(RealUser, container_runs_on_the_hosts_mpi_bound_over_the_images) {
  const auto ran = start_as_user(users_config({"/mnt/solver", "maps"}));
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr("0 of 1, sum 1, glibc 2.36"), HasSubstr("/mnt/mpi/libmpich.so.12")))
      << ran.err;
  EXPECT_THAT(log(), HasSubstr("swapped: "));
  EXPECT_EQ(changed_files(), "");
}

INSTANTIATE_TEST_SUITE_P(Oci, RealUser, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace heddle::test
