// SPDX-License-Identifier: MIT
// Debian images with MPICH of three releases, and this machine's MPICH: the decision, and programs
// of the image under it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kHello = R"(#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length, rank, size, sum;
  MPI_Init(&argc, &argv);
  MPI_Get_library_version(text, &length);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d sum %d %.40s\n", rank, size, sum, text);
  MPI_Finalize();
  return 0;
})";

/// $1 the image, $2 a work directory, $3 and $4 fs-resolve and fs-mount. In a new mount namespace,
/// on an overlay of the image: compiles the program with the image's compiler ($2/flags), runs
/// $2/prepare, makes the decision ($2/decision.json), mounts all, and runs $2/commands and two
/// ranks.
constexpr const char* kSession = R"sh(set -e
image=$1 work=$2 resolve=$3 mounter=$4
mount -t tmpfs none "$work/mnt"
cd "$work/mnt"
mkdir up work root
mount -t overlay -o "lowerdir=$image,upperdir=$PWD/up,workdir=$PWD/work" none root
cp "$work/hello.c" root/tmp/
flags=
[ ! -e "$work/flags" ] || flags=$(cat "$work/flags")
chroot root mpicc.mpich $flags -o /tmp/hello /tmp/hello.c
if [ -e "$work/prepare" ]; then
  cp "$work/prepare" root/tmp/
  chroot root sh -e /tmp/prepare
fi
mkdir -p root/dev/heddle root/dev/shm
: >root/dev/null
mount --bind /dev/null root/dev/null
mount --bind /dev/shm root/dev/shm
mount -t proc none root/proc
mount --rbind /sys root/sys
cp "$work/commands" root/tmp/
"$resolve" build --into root --program /tmp/hello -o "$work/map" --json >"$work/decision.json"
"$mounter" --foreground "$work/map" root/dev/heddle &
daemon=$!
# Killed, because the daemon outlives its unmount as long as this namespace has the binds.
trap 'kill -9 $daemon' EXIT
until [ -e root/dev/heddle/.heddle/container.json ]; do
  kill -0 $daemon
  sleep 0.02
done
python3 -c '
import json, sys
for bind in json.load(sys.stdin)["binds"]: print(bind["source"], bind["target"])
' <"$work/decision.json" >binds
while read -r source target; do mount --bind "root/dev/heddle/$source" "root$target"; done <binds
chroot root sh /tmp/commands >"$work/after" 2>&1 || true
mpiexec.hydra -n 2 chroot root /tmp/hello >"$work/ranks" 2>&1 </dev/null
)sh";

class DebianImage : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fs_resolve_ = staged_program("fs-resolve");
    fs_mount_ = staged_program("fs-mount");
    if (fs_resolve_.empty() || fs_mount_.empty()) HEDDLE_SKIP("fs-resolve is not installed");
    if (::geteuid() != 0) HEDDLE_SKIP("only root may mount an image");
    if (run({"mpichversion"}).status != 0) HEDDLE_SKIP("MPICH is not installed");
    const auto made = run({HEDDLE_ROOTFS, std::string(GetParam()) + "-mpich"},
                          {.deadline = std::chrono::minutes(10)});
    if (made.status != 0) HEDDLE_SKIP("no image: " + made.err);
    image_ = made.out.substr(0, made.out.find('\n'));
    fs::create_directories(dir_ / "mnt");
    write_text_file(dir_ / "hello.c", kHello);
  }
  /// The decision. Expects a swap with which the program runs, alone and as two ranks.
  Json session(const std::string& commands) {
    write_text_file(dir_ / "commands", commands);
    const auto result = run(
        {"unshare", "-m", "sh", "-c", kSession, "sh", image_, dir_.path(), fs_resolve_, fs_mount_},
        {.env = {"XDG_CACHE_HOME=" + (dir_ / "cache"), "LD_LIBRARY_PATH"},
         .deadline = std::chrono::minutes(3)});
    EXPECT_EQ(result.status, 0) << result.out << result.err << text("after");
    const auto decision = Json::parse(text("decision.json"));
    EXPECT_EQ(decision["outcome"], "swap") << decision.dump(2);
    version_ = decision["mpi"]["version"].get<std::string>();
    EXPECT_THAT(text("after"), HasSubstr("sum 0 MPICH Version:\t" + version_));
    for (const char* rank : {"0", "1"})
      EXPECT_THAT(text("ranks"), HasSubstr("rank " + std::string(rank) +
                                           " of 2 sum 1 MPICH Version:\t" + version_));
    return decision;
  }
  std::string text(const std::string& name) const { return read_file(dir_ / name).value_or(""); }

  TestDir dir_;
  std::string image_, fs_resolve_, fs_mount_, version_;
};

constexpr const char* kPrograms = R"(/tmp/hello
env -i /bin/ls /etc/passwd; perl -e 'print 40+2, "\n"'; getent passwd root
LD_TRACE_LOADED_OBJECTS=1 /tmp/hello | perl -ne 'print "maps $1\n" if m{(?:=> |^\t)(/\S+)}'
)";

TEST_P(DebianImage, runs_its_program_on_the_hosts_mpich_and_others_as_before) {
  const auto decision = session(kPrograms);
  const bool older = std::string(GetParam()) == "bullseye";
  EXPECT_EQ(decision["glibc"]["taken"], older ? "host" : "container");
  EXPECT_THAT(run({"mpichversion"}).out, HasSubstr(version_));
  EXPECT_THAT(text("after"), HasSubstr("/etc/passwd\n42\nroot:x:0:0"));
  std::string predicted;
  for (const auto& load : decision["loads"])
    predicted += "maps " + load["path"].get<std::string>() + "\n";
  EXPECT_TRUE(text("after").ends_with("\n" + predicted)) << text("after") << predicted;
}

/// As Spack installs them: MPI and UCX, without UCX's modules, in a prefix that the program's RPATH
/// names. The host's libraries are loaded, and find their modules.
TEST_P(DebianImage, gets_an_mpi_found_by_rpath_replaced_with_its_plugins) {
  write_text_file(dir_ / "flags", "-Wl,--disable-new-dtags,-rpath,/opt/spack/lib");
  write_text_file(dir_ / "prepare", R"(mkdir -p /opt/spack/lib
cd /usr/lib/x86_64-linux-gnu
for f in libmpich.so.12* libmpi.so.12* libuc[mpst].so.0*; do
  [ ! -e $f ] && [ ! -L $f ] || mv $f /opt/spack/lib/
done
rm -rf ucx
ldconfig
)");
  session("/tmp/hello; LD_DEBUG=files /tmp/hello 2>&1 | grep -o 'calling init: .*' | sort -u\n");
  EXPECT_THAT(text("after"), HasSubstr("calling init: /dev/heddle/libucs.so.0\n"));
  EXPECT_THAT(text("after"), HasSubstr("calling init: /dev/heddle/ucx/libuct_cma.so"));
  EXPECT_THAT(text("after"), Not(HasSubstr("init: /opt/spack/lib/libucs")));
}

INSTANTIATE_TEST_SUITE_P(Suites, DebianImage, ::testing::Values("bullseye", "bookworm", "trixie"),
                         [](const auto& suite) { return std::string(suite.param); });

}  // namespace
}  // namespace heddle::test
