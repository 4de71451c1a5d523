// SPDX-License-Identifier: MIT
//
// A host whose Open MPI is of version 5: Debian 13's tree as the root of a mount namespace, in
// which the runtime, the hook and fs-resolve run. Programs of version 4 are this machine's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/fd.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/real_mpi.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// $1 the tree, $2 our stage, $3 our directory (/mnt/work there), and what is to be run. Our
/// programs and the runtime run on that glibc, with the libraries of this machine that it may lack.
/// The root is exchanged, not only changed: who enters another mount namespace leaves a chroot.
constexpr const char* kHost = R"sh(set -e
tree=$1 stage=$2 work=$3
shift 3
cd "$work"
mkdir -p over host
mount -t tmpfs none over
mkdir over/up over/work
mount -t overlay -o "lowerdir=$tree,upperdir=over/up,workdir=over/work" none host
cd host
mount -t proc none proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs none tmp
mount -t tmpfs none mnt
mkdir mnt/stage mnt/work mnt/libs mnt/image mnt/old
mount --bind "$stage" mnt/stage
mount --bind "$work" mnt/work
mount --bind "$tree" mnt/image
cp "$(command -v runc)" mnt/runc
for library in $(ldd "$stage/bin/fs-resolve" "$stage/libexec/heddle/elf-worker" mnt/runc |
  awk '$2 == "=>" && $3 ~ "^/" && $1 !~ /^lib(c|m|dl|rt|pthread|gcc_s|stdc[+][+])[.]so/ { print $3 }')
do
  cp "$library" mnt/libs/
done
echo /mnt/libs >etc/ld.so.conf.d/zz-heddle-test.conf
chroot . ldconfig
pivot_root . mnt/old
exec chroot . sh -c 'umount -l /mnt/old; exec "$@"' sh "$@"
)sh";

class OpenMpi5Host : public RealMpiTest {
 protected:
  void SetUp() override {
    if (run({"ompi_info", "--version"}).out.find("Open MPI v4.") == std::string::npos)
      HEDDLE_SKIP("this machine's Open MPI is not of version 4");
    prepare("runc", "trixie", "openmpi");
  }
  /// With the compiler and MPI of this machine: version 4.
  void compile_here(const std::string& wrapper, const std::string& name,
                    const std::string& source) {
    run_checked({wrapper, "-o", dir_ / ("app/" + name), dir_ / ("app/" + source)});
  }
  RunResult start_there(const std::string& program) {
    auto config = oci_config("/mnt/image", {program, "maps"});
    for (const char* path : {"/dev/null", "/dev/urandom", "/dev/shm", "/sys"})
      config["mounts"].push_back(oci_bind(path, path, "rw"));
    config["mounts"].push_back(oci_bind("/mnt/work/app", "/mnt", "rw"));
    config["mounts"].push_back(oci_tmpfs("/tmp"));
    config["linux"]["namespaces"] = Json::array({{{"type", "mount"}}});
    config["hooks"]["createRuntime"] = Json::array({oci_hook_entry(
        "/mnt/stage/bin/fs-hook", {"--cache", "/tmp/cache", "--log", "/mnt/work/log"})});
    write_text_file(dir_ / "bundle/config.json", config.dump());
    const auto stage = fs::path(staged_program("fs-hook")).parent_path().parent_path().string();
    return run({"unshare", "-m", "sh", "-c", kHost, "sh", rootfs_, stage, dir_.path(), "/mnt/runc",
                "--root", "/tmp/state", "run", "--bundle", "/mnt/work/bundle",
                "heddle-host-5-" + std::to_string(::getpid())});
  }
};

TEST_F(OpenMpi5Host, runs_programs_of_version_5_and_of_version_4) {
  compile_here("mpicc.openmpi", "hello4", "hello.c");
  for (const char* program : {"/mnt/hello", "/mnt/hello4"}) {
    const auto ran = start_there(program);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    EXPECT_THAT(ran.out, AllOf(HasSubstr("0 of 1, sum 1, glibc 2.41, Open MPI v5."),
                               HasSubstr("/dev/heddle/libmpi.so.40\n")))
        << ran.err << log();
    EXPECT_THAT(ran.err, Not(HasSubstr("different size")));
  }
}

TEST_F(OpenMpi5Host, refuses_what_version_5_has_no_longer_by_its_name) {
  write_text_file(dir_ / "app/ext.c",
                  "#include <mpi.h>\n#include <mpi-ext.h>\nint main(void) { MPI_Request r;\n"
                  "return MPIX_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &r); }\n");
  compile_here("mpicc.openmpi", "ext", "ext.c");
  EXPECT_NE(start_there("/mnt/ext").status, 0);
  EXPECT_THAT(log(),
              AllOf(HasSubstr("/mnt/ext needs MPIX_Barrier_init, which the host's Open MPI 5."),
                    Not(HasSubstr("swapped"))));
}

}  // namespace
}  // namespace heddle::test
