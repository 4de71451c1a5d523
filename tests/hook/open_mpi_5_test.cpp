// SPDX-License-Identifier: MIT
//
// A program compiled with Debian 13's Open MPI 5 runs in that Debian, as a container, on the Open
// MPI 4 of this machine: one soname and one ABI, another set of libraries, components and data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "base/fd.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/real_mpi.hpp"
#include "tests/support/build_elf.hpp"

namespace heddle::test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class OpenMpi5Image : public RealMpiTest {
 protected:
  void SetUp() override { prepare_for("runc"); }
  void prepare_for(const std::string& runtime) {
    if (run({"ompi_info", "--version"}).out.find("Open MPI v4.") == std::string::npos)
      HEDDLE_SKIP("this machine's Open MPI is not of version 4");
    prepare(runtime, "trixie", "openmpi");
  }
  /// Sessions of Open MPI lie in /tmp, and its ranks look at each other's processes.
  Json open_config(const std::vector<std::string>& args) const {
    auto out = config(args);
    out["mounts"].back() = {
        {"destination", "/tmp"}, {"type", "bind"}, {"source", "/tmp"}, {"options", {"rbind"}}};
    out["linux"]["namespaces"] = Json::array({{{"type", "mount"}}});
    return out;
  }
  RunResult ranks(const Json& config, int count) {
    return start(config, count, {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"});
  }
};

class OpenMpi5ImageBy : public OpenMpi5Image, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { prepare_for(GetParam()); }
};

TEST_P(OpenMpi5ImageBy, its_program_runs_on_the_hosts_open_mpi_4_without_a_variable) {
  for (const int count : {1, 2}) {
    const auto ran = ranks(open_config({"/mnt/hello", "maps"}), count);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    for (int rank = 0; rank < count; ++rank)
      EXPECT_THAT(ran.out,
                  HasSubstr(std::to_string(rank) + " of " + std::to_string(count) + ", sum " +
                            std::to_string(count * (count + 1) / 2) + ", glibc 2.41, Open MPI v4."))
          << ran.err << log();
    EXPECT_THAT(ran.out, HasSubstr("/dev/heddle/libmpi.so.40\n"));
    EXPECT_EQ(ran.err.find("different size"), std::string::npos) << ran.err;
  }
  EXPECT_EQ(changed_files(), "") << "something was written into the image";
  EXPECT_THAT(log(), AllOf(HasSubstr("is older than the container's Open MPI 5."),
                           Not(HasSubstr("the image lacks the directory"))));
}

/// The image has no directory where the host's Open MPI looks for them: it looks into the mount.
TEST_F(OpenMpi5Image, the_hosts_components_are_found_in_an_image_without_their_directory) {
  auto debug = open_config({"/mnt/hello"});
  debug["process"]["env"].push_back("LD_DEBUG=files");
  const auto ran = ranks(debug, 1);
  EXPECT_EQ(ran.status, 0) << log();
  EXPECT_THAT(ran.err, HasSubstr("calling init: /dev/heddle/ompi/mca_pml_ob1.so"));
  EXPECT_THAT(ran.err, HasSubstr("calling init: /dev/heddle/ompi/mca_coll_tuned.so"));
}

/// $1: our directory, $2: the image. Of its own parameters and texts it has none then; the host has
/// the site's.
constexpr const char* kSite = R"sh(
cd "$1" && mkdir over image && mount -t tmpfs none over && mkdir over/up over/work &&
  mount -t overlay -o "lowerdir=$2,upperdir=over/up,workdir=over/work" none image &&
  rm -r image/etc/openmpi image/usr/lib/x86_64-linux-gnu/pmix2/share image/usr/share/openmpi &&
  mount --bind site /etc/openmpi &&
  mount --bind site /usr/lib/x86_64-linux-gnu/pmix2/share || exit 125
shift 2
exec "$@"
)sh";

TEST_F(OpenMpi5Image, the_hosts_libraries_read_the_sites_parameters) {
  write_text_file(dir_ / "site/openmpi-mca-params.conf", "mpi_show_mca_params = file\n");
  write_text_file(dir_ / "site/pmix-mca-params.conf", "psec_base_verbose = 10\n");
  auto config = open_config({"/mnt/hello"});
  config["root"]["path"] = dir_ / "image";
  const auto ran = start(config, 1,
                         {"unshare", "-m", "sh", "-c", kSite, "sh", dir_.path(), rootfs_,
                          "mpirun.openmpi", "--allow-run-as-root", "--mca", "btl", "self"});
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  EXPECT_THAT(ran.err, HasSubstr("(/dev/heddle/openmpi-mca-params.conf:1)"));
  std::set<std::string> verbose;
  std::istringstream lines(ran.err);
  for (std::string line; std::getline(lines, line);)
    if (line.find("registering framework psec") != line.npos)
      verbose.insert(line.substr(0, line.find(']')));
  EXPECT_EQ(verbose.size(), 2U) << "mpirun and its rank: " << ran.err;
  EXPECT_EQ(log().find("the image lacks the directory"), std::string::npos) << log();
}

TEST_P(OpenMpi5ImageBy, a_function_that_only_version_5_has_is_refused_by_its_name) {
  write_text_file(dir_ / "app/session.c",
                  "#include <mpi.h>\nint main(void) { MPI_Session s; "
                  "return MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &s); }\n");
  compile("session", "", "session.c");
  const auto ran = start(config({"/mnt/session"}));
  EXPECT_NE(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(log(), AllOf(HasSubstr("/mnt/session needs "), HasSubstr("MPI_Session_init"),
                           HasSubstr("the host's Open MPI 4."),
                           HasSubstr("the container's is Open MPI 5.")));
  for (const char* words : {"symbol lookup error", "error while loading"})
    EXPECT_EQ(ran.err.find(words), std::string::npos) << ran.err;
}

/// What belongs to the container's own MPI wants its PMIx and UCX, which are the host's then; that
/// is said. All else is as it was.
TEST_F(OpenMpi5Image, programs_that_are_not_of_its_mpi_load_as_before) {
  const std::string script =
      "for f in /usr/bin/*; do ldd -r \"$f\" 2>&1 | grep -qE 'not found|undefined' && "
      "dpkg -S \"$(readlink -f \"$f\")\"; done | sed 's|:.*||' | sort -u";
  EXPECT_EQ(shell(script, false).out, "");
  EXPECT_EQ(shell(script, true).out, "openmpi-bin\n");
  EXPECT_THAT(log(), AllOf(HasSubstr("libopen-pal.so.80 stays and needs "),
                           HasSubstr(" of libpmix.so.2, which the host's ")));
}

TEST_F(OpenMpi5Image, verify_tells_that_it_is_swapped) {
  auto bundle = config({"/mnt/hello"});
  bundle["process"]["env"].erase(0);
  write_text_file(dir_ / "config.json", bundle.dump());
  const auto verified = run(
      {staged_program("fs-hook"), "verify", "--cache", dir_ / "cache", "--bundle", dir_.path()});
  EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
  EXPECT_THAT(verified.out, AllOf(HasSubstr("\nswapped: openmpi 4."), HasSubstr("/ucx/libuct_cma."),
                                  HasSubstr("/dev/heddle/ompi/mca_pml_ob1.so")));
  EXPECT_EQ(changed_files(), "");
}

INSTANTIATE_TEST_SUITE_P(Oci, OpenMpi5ImageBy, ::testing::Values("runc", "crun"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace heddle::test
