// SPDX-License-Identifier: MIT
//
// Programs compiled with each Debian's MPICH run in a container of that Debian on this machine's
// MPICH, started by this machine's mpiexec. Programs compiled with Debian 13's Open MPI 5 run on
// this machine's Open MPI 4, which has the same soname and ABI but other libraries, components and
// data. Nothing is faked.
#include <sys/mount.h>

#include <regex>
#include <set>

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/hook/real_mpi.hpp"
#include "tests/hook/started_container.hpp"
#include "tests/support/oci_config.hpp"

namespace heddle::test {
namespace {

using ::testing::ContainsRegex;

struct Debian {
  const char* suite;
  const char* glibc;  ///< the version that its program runs on
};

class RealMpi : public RealMpiTest,
                public ::testing::WithParamInterface<std::tuple<const char*, Debian>> {
 protected:
  void SetUp() override { prepare(runtime(), suite()); }
  std::string runtime() const { return std::get<0>(GetParam()); }
  std::string suite() const { return std::get<1>(GetParam()).suite; }
  std::string glibc() const { return std::get<1>(GetParam()).glibc; }
};

/// Cases that do not depend on the runtime.
class RealMpiEverything : public RealMpi {};
/// Nor on the distribution. This one's glibc is the only one that is replaced.
class RealMpiOfBullseye : public RealMpi {};

TEST_P(RealMpi, ranks_print_the_hosts_version_and_the_right_sum) {
  auto plain = config({"/mnt/hello"});
  plain.erase("hooks");
  const auto before = start(plain);
  ASSERT_EQ(before.status, 0) << before.err;
  for (const int ranks : {0, 1, 2, 4}) {
    const auto ran = start(config({"/mnt/hello"}), ranks);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    expect_right_sums(ran, ranks, glibc());
  }
  EXPECT_EQ(changed_files(), "") << "something was written into the image";
  const bool is_newer = suite() == "trixie";
  EXPECT_EQ(
      log().find("MPICH 4.0.2 is older than the container's MPICH 4.2.1") != std::string::npos,
      is_newer)
      << log();
}

TEST_P(RealMpiOfBullseye, programs_in_usr_bin_still_load) {
  const std::string script =
      "for f in /usr/bin/*; do ldd -r \"$f\" 2>&1 | grep -E 'not found|undefined' | "
      "sed \"s|^|$f: |;s|(.*||\"; done";
  EXPECT_EQ(shell(script, true).out, shell(script, false).out);
}

/// As Spack installs them: MPI and UCX, without UCX's modules, in a prefix that the program's RPATH
/// names.
TEST_P(RealMpiEverything, mpi_found_by_rpath_is_replaced_with_its_plugins) {
  const auto directory = "/usr/lib/x86_64-linux-gnu"s;
  fs::create_directory(dir_ / "app/spack");
  run_checked({"sh", "-c", "cp -L libmpi*.so.12 libuc[mpst].so.0 \"$0\"; ls \"$0\"/libmpich.so.12",
               dir_ / "app/spack"},
              {.cwd = rootfs_ + directory});
  compile("spack_app", "-Wl,--disable-new-dtags,-rpath,/mnt/spack");
  auto spack = config({"/mnt/spack_app"});
  spack["process"]["env"].push_back("LD_DEBUG=files");
  if (fs::exists(rootfs_ + directory + "/ucx"))
    spack["mounts"].push_back(oci_tmpfs(directory + "/ucx"));
  const auto ran = start(spack);
  expect_right_sums(ran, 0, glibc());
  EXPECT_THAT(ran.err, HasSubstr("calling init: /dev/heddle/libucs.so.0\n"));
  EXPECT_THAT(ran.err, HasSubstr("calling init: /dev/heddle/ucx/libuct_cma.so"));
  EXPECT_THAT(ran.err, Not(HasSubstr("init: /mnt/spack/libucs")));
}

/// Minimal images have none, and in a read-only one none can be made.
TEST_P(RealMpiEverything, image_without_ld_so_cache_is_swapped) {
  auto bare = config({"/mnt/hello"});
  bare["mounts"].push_back({{"destination", "/etc"}, {"type", "tmpfs"}, {"source", "tmpfs"}});
  const auto ran = start(bare, 2);
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  expect_right_sums(ran, 2, glibc());
  bare["process"]["args"] = {"/bin/sh", "-c", "ls /etc; env -i /usr/bin/perl -e 'print 42'"};
  bare["annotations"]["heddle.program"] = "/mnt/hello";
  EXPECT_EQ(start(bare).out, "42") << log();
}

TEST_P(RealMpiOfBullseye, both_mpi_sonames_map_one_file) {
  write_text_file(dir_ / "app/other.c",
                  "#include <mpi.h>\nint other(void) { int f; return MPI_Initialized(&f); }\n");
  compile("libother.so", "-shared -fPIC -Wl,-soname,libother.so", "other.c");
  run_checked(
      {"patchelf", "--replace-needed", "libmpich.so.12", "libmpi.so.12", dir_ / "app/libother.so"});
  compile("both", "-Wl,-rpath,/mnt -Wl,--unresolved-symbols=ignore-all");
  run_checked({"patchelf", "--add-needed", "libother.so", dir_ / "app/both"});
  const auto ran = start(config({"/mnt/both", "maps"}));
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  std::set<std::string> files;
  for (const auto& line : lines_of(ran.out))
    if (line.starts_with("/")) files.insert(line);
  EXPECT_EQ(files.size(), 1U) << ran.out;
}

/// The components that ld.so opened in any rank, by its LD_DEBUG=files output.
std::set<std::string> opened_components(const std::string& ld_debug) {
  static const std::regex kOpened(R"(file=\S*/(mca_[^/ ]+\.so) \[0\];  dynamically loaded by)");
  std::set<std::string> out;
  for (std::sregex_iterator one(ld_debug.begin(), ld_debug.end(), kOpened), end; one != end; ++one)
    out.insert((*one)[1]);
  return out;
}

/// The images have no Open MPI.
TEST_P(RealMpiEverything, open_mpi_ranks_load_all_of_the_hosts_components) {
  run_checked({"mpicc.openmpi", "-o", dir_ / "app/open", dir_ / "app/hello.c"});
  auto open = open_mpi_config({"/mnt/open"});
  open["process"]["env"].push_back("LD_DEBUG=files");
  const auto ran = start(open, 2, kMpirun);
  EXPECT_EQ(ran.status, 0) << log();
  EXPECT_THAT(ran.out, HasSubstr("0 of 2, sum 3, glibc " + glibc() + ", Open MPI v4.1.4"));
  EXPECT_THAT(ran.out, HasSubstr("1 of 2, sum 3"));

  const auto wanted = opened_components(
      run_checked(kMpirun + Strings{"-n", "2", "env", "LD_DEBUG=files", dir_ / "app/open"}).err);
  EXPECT_GT(wanted.size(), 20U);
  EXPECT_EQ(opened_components(ran.err), wanted);
  EXPECT_EQ(log().find("the image lacks the directory"), std::string::npos) << log();
}

/// The host's libraries need a newer glibc than the container's, and a library of the program needs
/// symbols that only the container's build has.
TEST_P(RealMpiOfBullseye, unusable_glibc_is_refused_with_both_versions) {
  const auto bound_to_it = dir_ / "app/libbound.so";
  fs::copy_file(rootfs_ + "/lib/x86_64-linux-gnu/libnss_compat.so.2", bound_to_it);
  run_checked({"patchelf", "--set-soname", "libbound.so", bound_to_it});
  compile("bound", "-Wl,--no-as-needed,-rpath,/mnt /mnt/libbound.so");
  const auto ran = start(config({"/mnt/bound"}));
  EXPECT_NE(ran.status, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(log(), AllOf(HasSubstr("/mnt/libbound.so"), HasSubstr("the container's glibc 2.31"),
                           HasSubstr("the host's glibc 2.36")));
  for (const char* words : {"version `GLIBC", "symbol lookup error", "error while loading"})
    EXPECT_EQ(ran.err.find(words), std::string::npos) << ran.err;
}

TEST_P(RealMpiOfBullseye, verify_tells_swapped_from_unswapped_processes) {
  for (const bool hooked : {true, false}) {
    auto waiting = config({"/mnt/hello", "maps", "wait"});
    if (!hooked) waiting.erase("hooks");
    waiting["process"]["env"].erase(0);
    fs::create_directories(dir_ / "waits");
    write_text_file(dir_ / "waits/config.json", waiting.dump());
    const Runtime runtime("runc", dir_ / "state");
    const auto id = "heddle-verify-" + std::to_string(::getpid());
    StartedContainer started(runtime, dir_ / "waits", id);
    ASSERT_TRUE(started.says("/libmpi")) << started.text() << log();
    const int init = started.init();
    const auto verified = run({staged_program("fs-hook"), "verify", std::to_string(init)});
    EXPECT_EQ(verified.status, hooked ? 0 : 1) << verified.out << verified.err;
    EXPECT_THAT(verified.out, HasSubstr(hooked ? "\nswapped: mpich 4.0.2" : "\nNOT swapped"));
    const auto json =
        Json::parse(run({staged_program("fs-hook"), "verify", "--json", std::to_string(init)}).out);
    EXPECT_EQ(json.at("swapped"), hooked);
    ::kill(init, SIGKILL);
    EXPECT_TRUE(started.ends(5s).has_value());
    (void)run(runtime.command({"delete", "--force", id}));
  }
}

/// The image's own ld.so lists the libraries before the program starts; plugins are included.
TEST_P(RealMpiEverything, verify_predicts_what_a_bundle_maps) {
  compile("rpath", "-Wl,--disable-new-dtags,-rpath,/usr/lib/x86_64-linux-gnu");
  for (const char* program : {"/mnt/hello", "/mnt/rpath"}) {
    auto bundle = config({program});
    bundle["process"]["env"].erase(0);
    write_text_file(dir_ / "config.json", bundle.dump());
    const auto verified = run(
        {staged_program("fs-hook"), "verify", "--cache", dir_ / "cache", "--bundle", dir_.path()});
    EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
    EXPECT_THAT(verified.out, HasSubstr("\nswapped: mpich 4.0.2\n"));
    EXPECT_THAT(verified.out, HasSubstr("/ucx/libuct_cma.so"));
    EXPECT_THAT(verified.out,
                ContainsRegex(suite() == "bullseye" ? "host +/[^\n]*/libc.so.6"
                                                    : "container +/[^\n]*/libc.so.6"));
    const auto ran = start(config({program, "maps"}));
    for (const auto& line : lines_of(ran.out))
      if (line.starts_with("/")) {
        // The mapped file's name has a longer version than the soname.
        const auto path = line.substr(0, line.find(".so.12") + 6);
        EXPECT_THAT(verified.out, HasSubstr("host       " + path)) << "what it really maps";
      }
  }
  EXPECT_EQ(changed_files(), "");
}

const auto kDebians = ::testing::Values(Debian{"bullseye", "2.36"}, Debian{"bookworm", "2.36"},
                                        Debian{"trixie", "2.41"});
const auto kName = [](const auto& each) {
  return std::string(std::get<0>(each.param)) + "_" + std::get<1>(each.param).suite;
};
INSTANTIATE_TEST_SUITE_P(Debian, RealMpi,
                         ::testing::Combine(::testing::Values("runc", "crun"), kDebians), kName);
INSTANTIATE_TEST_SUITE_P(Debian, RealMpiEverything,
                         ::testing::Combine(::testing::Values("runc"), kDebians), kName);
INSTANTIATE_TEST_SUITE_P(Debian, RealMpiOfBullseye,
                         ::testing::Combine(::testing::Values("runc"),
                                            ::testing::Values(Debian{"bullseye", "2.36"})),
                         kName);

class OpenMpi5Image : public RealMpiTest {
 protected:
  void SetUp() override { prepare_open_mpi_5("runc"); }
};

class OpenMpi5ImageBy : public OpenMpi5Image, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { prepare_open_mpi_5(GetParam()); }
};

TEST_P(OpenMpi5ImageBy, program_runs_on_the_hosts_open_mpi_4) {
  for (const int count : {1, 2}) {
    const auto ran = start(open_mpi_config({"/mnt/hello", "maps"}), count, kMpirun);
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

/// The image lacks the host's component directory, so Open MPI searches the mount.
TEST_F(OpenMpi5Image, host_components_are_found_without_their_directory) {
  auto debug = open_mpi_config({"/mnt/hello"});
  debug["process"]["env"].push_back("LD_DEBUG=files");
  const auto ran = start(debug, 1, kMpirun);
  EXPECT_EQ(ran.status, 0) << log();
  EXPECT_THAT(ran.err, HasSubstr("calling init: /dev/heddle/ompi/mca_pml_ob1.so"));
  EXPECT_THAT(ran.err, HasSubstr("calling init: /dev/heddle/ompi/mca_coll_tuned.so"));
}

/// $1: the test's directory, $2: the image. Removes the image's parameter files and help texts and
/// gives the host the site's.
constexpr const char* kSite = R"sh(
cd "$1" && mkdir over image && mount -t tmpfs none over && mkdir over/up over/work &&
  mount -t overlay -o "lowerdir=$2,upperdir=over/up,workdir=over/work" none image &&
  rm -r image/etc/openmpi image/usr/lib/x86_64-linux-gnu/pmix2/share image/usr/share/openmpi &&
  mount --bind site /etc/openmpi &&
  mount --bind site /usr/lib/x86_64-linux-gnu/pmix2/share || exit 125
shift 2
exec "$@"
)sh";

TEST_F(OpenMpi5Image, host_libraries_read_the_sites_parameters) {
  write_text_file(dir_ / "site/openmpi-mca-params.conf", "mpi_show_mca_params = file\n");
  write_text_file(dir_ / "site/pmix-mca-params.conf", "psec_base_verbose = 10\n");
  auto config = open_mpi_config({"/mnt/hello"});
  config["root"]["path"] = dir_ / "image";
  const auto ran = start(config, 1,
                         {"unshare", "-m", "sh", "-c", kSite, "sh", dir_.path(), rootfs_,
                          "mpirun.openmpi", "--allow-run-as-root", "--mca", "btl", "self"});
  EXPECT_EQ(ran.status, 0) << ran.err << log();
  EXPECT_THAT(ran.err, HasSubstr("(/dev/heddle/openmpi-mca-params.conf:1)"));
  std::set<std::string> verbose;
  for (const auto& line : lines_of(ran.err))
    if (line.find("registering framework psec") != line.npos)
      verbose.insert(line.substr(0, line.find(']')));
  EXPECT_EQ(verbose.size(), 2U) << "mpirun and its rank: " << ran.err;
  EXPECT_EQ(log().find("the image lacks the directory"), std::string::npos) << log();
}

TEST_P(OpenMpi5ImageBy, function_only_in_version_5_is_refused_by_name) {
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

/// Programs of the container's own MPI need its PMIx and UCX, which are replaced by the host's; the
/// hook warns of it. All other programs load.
TEST_F(OpenMpi5Image, programs_of_other_packages_still_load) {
  const std::string script =
      "for f in /usr/bin/*; do ldd -r \"$f\" 2>&1 | grep -qE 'not found|undefined' && "
      "dpkg -S \"$(readlink -f \"$f\")\"; done | sed 's|:.*||' | sort -u";
  EXPECT_EQ(shell(script, false).out, "");
  EXPECT_EQ(shell(script, true).out, "openmpi-bin\n");
  EXPECT_THAT(log(), AllOf(HasSubstr("libopen-pal.so.80 stays and needs "),
                           HasSubstr(" of libpmix.so.2, which the host's ")));
}

TEST_F(OpenMpi5Image, its_own_launcher_is_refused) {
  const auto ran = start(open_mpi_config({"mpirun", "-n", "1", "/mnt/hello"}));
  EXPECT_NE(ran.status, 0);
  EXPECT_EQ(ran.err.find("symbol lookup error"), std::string::npos) << ran.err;
  EXPECT_THAT(log(), HasSubstr("it would abort"));
}

INSTANTIATE_TEST_SUITE_P(Oci, OpenMpi5ImageBy, ::testing::Values("runc", "crun"), kParameterName);

/// $1: the tree, $2: the stage, $3: the test's directory (/mnt/work in the tree); then a command.
/// heddle's programs and the runtime use the tree's glibc and this machine's other libraries.
/// pivot_root and not chroot, since entering another mount namespace leaves a chroot.
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

/// A host with Open MPI 5: Debian 13's tree is the root of a mount namespace in which the runtime,
/// the hook and fs-resolve run. Programs of version 4 are compiled on this machine.
class OpenMpi5Host : public RealMpiTest {
 protected:
  void SetUp() override { prepare_open_mpi_5("runc"); }
  /// Compiles with this machine's Open MPI 4.
  void compile_here(const std::string& name, const std::string& source) {
    run_checked({"mpicc.openmpi", "-o", dir_ / ("app/" + name), dir_ / ("app/" + source)});
  }
  RunResult start_there(const std::string& program) {
    auto config = oci_config("/mnt/image", {program, "maps"});
    bind_host_devices(config);
    config["mounts"].push_back(oci_bind("/mnt/work/app", "/mnt", "rw"));
    config["mounts"].push_back(oci_tmpfs("/tmp"));
    config["linux"]["namespaces"] = Json::array({{{"type", "mount"}}});
    config["hooks"]["createRuntime"] =
        Json::array({oci_hook_entry("/mnt/stage/bin/fs-hook", {"--cache", "/var/cache/heddle-test",
                                                               "--log", "/mnt/work/log"})});
    write_text_file(dir_ / "bundle/config.json", config.dump());
    const auto stage = fs::path(staged_program("fs-hook")).parent_path().parent_path().string();
    return run({"unshare", "-m", "sh", "-c", kHost, "sh", rootfs_, stage, dir_.path(), "/mnt/runc",
                "--root", "/tmp/state", "run", "--bundle", "/mnt/work/bundle",
                "heddle-host-5-" + std::to_string(::getpid())});
  }
};

TEST_F(OpenMpi5Host, programs_of_versions_4_and_5_run) {
  compile_here("hello4", "hello.c");
  for (const char* program : {"/mnt/hello", "/mnt/hello4"}) {
    const auto ran = start_there(program);
    EXPECT_EQ(ran.status, 0) << ran.err << log();
    EXPECT_THAT(ran.out, AllOf(HasSubstr("0 of 1, sum 1, glibc 2.41, Open MPI v5."),
                               HasSubstr("/dev/heddle/libmpi.so.40\n")))
        << ran.err << log();
    EXPECT_THAT(ran.err, Not(HasSubstr("different size")));
  }
}

}  // namespace
}  // namespace heddle::test
