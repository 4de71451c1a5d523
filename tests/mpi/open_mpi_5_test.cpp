// SPDX-License-Identifier: MIT
// fs-resolve mpi on Debian 13's Open MPI 5, inside its root file system and from outside.

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;

/// $1 the root file system, $2 the stage, $3 a work directory, $4 the commands, run in the tree in
/// a new mount namespace. heddle's programs run on the tree's glibc, with copies of this machine's
/// other libraries.
constexpr const char* kSession = R"sh(set -e
root=$1 stage=$2 work=$3
mount -t proc none "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs none "$root/tmp"
mount -t tmpfs none "$root/mnt"
mount -t tmpfs none "$root/dev"
mkdir -p "$root/dev/shm" "$root/mnt/stage" "$root/mnt/libs" "$root/mnt/work"
for device in null urandom; do
  : >"$root/dev/$device"
  mount --bind /dev/$device "$root/dev/$device"
done
mount --bind "$stage" "$root/mnt/stage"
mount --bind "$work" "$root/mnt/work"
for library in $(ldd "$stage/bin/fs-resolve" "$stage/libexec/heddle/elf-worker" |
  awk '$2 == "=>" && $3 ~ "^/" && $1 !~ /^lib(c|m|dl|rt|pthread|gcc_s|stdc[+][+])[.]so/ { print $3 }')
do
  cp "$library" "$root/mnt/libs/"
done
exec chroot "$root" sh -c "$4"
)sh";

constexpr const char* kFsResolve =
    "XDG_CACHE_HOME=/tmp LD_LIBRARY_PATH=/mnt/libs /mnt/stage/bin/fs-resolve ";

constexpr const char* kHello = R"(#include <mpi.h>
int main(int argc, char** argv) {
  int one = 1, sum;
  MPI_Init(&argc, &argv);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return MPI_Finalize();
}
)";

class OpenMpi5 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (staged_program("fs-resolve").empty()) HEDDLE_SKIP("fs-resolve is not installed");
    if (::geteuid() != 0) HEDDLE_SKIP("only root can make root file systems");
    const auto made =
        run({HEDDLE_ROOTFS, "trixie-openmpi"}, {.deadline = std::chrono::minutes(15)});
    if (made.status != 0) HEDDLE_SKIP("no image: " + made.err);
    root_ = made.out.substr(0, made.out.find('\n'));
  }
  RunResult inside(const std::string& commands) const {
    const auto stage = fs::path(staged_program("fs-resolve")).parent_path().parent_path();
    return run(
        {"unshare", "-m", "sh", "-c", kSession, "sh", root_, stage.string(), dir_.path(), commands},
        {.deadline = std::chrono::minutes(2)});
  }
  Json found_inside() const {
    const auto result = inside(std::string(kFsResolve) + "mpi --json");
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }

  TestDir dir_;
  std::string root_;
};

std::vector<std::string> paths_of(const Json& list) {
  std::vector<std::string> out;
  for (const auto& one : list) out.push_back(one["path"]);
  return out;
}

TEST_F(OpenMpi5, is_described_as_by_ompi_info) {
  const auto list = found_inside();
  ASSERT_EQ(list.size(), 1U) << list.dump(2);
  const auto& mpi = list[0];
  EXPECT_EQ(mpi["family"], "openmpi");
  EXPECT_EQ(mpi["abi"], "openmpi-40");
  EXPECT_THAT(mpi["version"].get<std::string>(), ::testing::StartsWith("5."));
  EXPECT_THAT(inside("ompi_info --version").out,
              HasSubstr("Open MPI v" + mpi["version"].get<std::string>()));
  EXPECT_EQ(mpi["missing"].size(), 0U) << mpi["missing"];
  std::vector<std::string> bindings;
  for (const auto& binding : mpi["bindings"]) bindings.push_back(binding["soname"]);
  EXPECT_THAT(bindings, Contains("libmpi_mpifh.so.40"));
  EXPECT_THAT(bindings, Contains("libmpi_usempif08.so.40"));
}

/// Its components are part of its libraries; UCX and PMIx load plugins from directories.
TEST_F(OpenMpi5, plugin_directories_hold_all_that_a_run_loads_late) {
  write_text_file(dir_ / "hello.c", kHello);
  const auto list = found_inside();
  ASSERT_EQ(list.size(), 1U);
  const auto directories = paths_of(list[0]["plugin_directories"]);
  for (const char* data : {"/usr/share/openmpi", "/etc/openmpi"})
    EXPECT_THAT(directories, Contains(data));
  const auto ran = inside(
      "mpicc.openmpi -o /mnt/hello /mnt/work/hello.c && LD_DEBUG=files /mnt/hello 2>&1 | "
      "sed -n 's|.*calling init: ||p' | while read -r f; do realpath \"$f\"; done");
  ASSERT_EQ(ran.status, 0) << ran.out << ran.err;
  std::set<std::string> late;
  std::istringstream lines(ran.out);
  for (std::string path; std::getline(lines, path);) {
    const auto directory = fs::path(path).parent_path().string();
    // Dependencies are in ld.so's default directory; libpmix is the target of a link there.
    if (directory == "/usr/lib/x86_64-linux-gnu" || path.find("/libpmix.so.") != path.npos)
      continue;
    late.insert(path);
    EXPECT_THAT(directories, Contains(directory)) << path;
  }
  EXPECT_THAT(late, Contains(HasSubstr("/ucx/lib")));
  EXPECT_THAT(late, Contains(HasSubstr("/pmix_mca_")));
}

/// Absolute links of the tree (libmpi.so by /etc/alternatives) lead to this machine's MPI, which is
/// not in the prefix.
TEST_F(OpenMpi5, prefix_in_another_root_excludes_this_machines_mpi) {
  const auto result =
      run({staged_program("fs-resolve"), "mpi", "--json", "--prefix", root_ + "/usr"},
          {.env = {"XDG_CACHE_HOME=" + dir_ / "cache", "LD_LIBRARY_PATH"}});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto list = Json::parse(result.out);
  ASSERT_EQ(list.size(), 1U) << list.dump(2);
  EXPECT_THAT(list[0]["path"].get<std::string>(), ::testing::StartsWith(root_));
  EXPECT_THAT(list[0]["version"].get<std::string>(), ::testing::StartsWith("5."));
}

}  // namespace
}  // namespace heddle::test
