// SPDX-License-Identifier: MIT
// MPI copies in private directories, which only programs find that are not named to fs-resolve.
#include <sched.h>
#include <sys/mount.h>

#include <cerrno>

#include "tests/policy/decide_fixture.hpp"
#include "tests/support/fuse_kernel.hpp"

namespace heddle::test {
namespace {

constexpr const char* kCopy = "/opt/own/lib/libmpich.so.12.1";

class Copies : public ImageTest {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_OPENAT2();  // the search for copies needs it
    ImageTest::SetUp();
    if (IsSkipped()) return;
    solver(world_.mpich(world_.in("/usr/lib/libmpich.so.12"), "3.0"));
  }
  /// The copy, and a program that finds it by its RPATH.
  void copy(const std::string& more = "", const std::vector<std::string>& flags = {}) {
    const auto library = world_.mpich(world_.in(kCopy), "3.4", more, flags);
    fs::create_symlink("libmpich.so.12.1", world_.in("/opt/own/lib/libmpich.so.12"));
    world_.program("/app/unnamed", kInit, library,
                   {"-Wl,--disable-new-dtags", "-Wl,-rpath,/opt/own/lib"});
  }
  ino_t inode(const std::string& path) const {
    struct stat status {};
    return ::stat(world_.in(path).c_str(), &status) == 0 ? status.st_ino : 0;
  }
};

TEST_F(Copies, of_the_hosts_abi_are_replaced) {
  copy();
  const auto decision = swap("/app/solver");
  EXPECT_EQ(bound_over(decision, kCopy), "libmpi.so.12") << decision.dump(2);
  world_.place(decision);
  const auto loads = world_.real_loads("/app/unnamed");
  ASSERT_EQ(loads.at(0), "/opt/own/lib/libmpich.so.12");
  EXPECT_EQ(inode(loads[0]), inode("/dev/heddle/libmpi.so.12"));
}

TEST_F(Copies, are_replaced_when_only_a_shell_is_named) {
  copy();
  fs::remove(world_.in("/usr/lib/libmpich.so.12"));
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/shell"), .source = "int main(void){return 0;}"});
  const auto decision = swap("/app/shell");
  EXPECT_EQ(decision["container_mpi"]["path"], kCopy);
  EXPECT_EQ(bound_over(decision, kCopy), "libmpi.so.12");
}

TEST_F(Copies, with_functions_that_the_host_lacks_are_reported) {
  copy("int MPI_Of_the_copy(void){return 0;}");
  const auto decision = swap("/app/solver");
  EXPECT_EQ(bound_over(decision, kCopy), "");
  EXPECT_THAT(decision["warnings"].dump(),
              AllOf(HasSubstr("/opt/own/lib"), HasSubstr("MPI_Of_the_copy")));
}

/// As when a container starts `sh -c /opt/own/app`: the log must not say that anything is swapped.
TEST_F(Copies, that_are_all_preserved_leave_nothing_to_swap) {
  copy("int MPI_Of_the_copy(void){return 0;}");
  fs::remove(world_.in("/usr/lib/libmpich.so.12"));
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/shell"), .source = "int main(void){return 0;}"});
  const auto decision = world_.decide("/app/shell");
  EXPECT_EQ(decision["outcome"], "nothing");
  EXPECT_EQ(decision["binds"].size(), 0U);
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("MPI_Of_the_copy"));
  EXPECT_FALSE(fs::exists(world_.map()));
}

TEST_F(Copies, in_ld_preload_are_the_programs_own) {
  copy();
  fs::remove(world_.in("/usr/lib/libmpich.so.12"));
  world_.run_ldconfig();
  build_program({.output = world_.in("/app/shell"), .source = "int main(void){return 0;}"});
  EXPECT_EQ(swap("/app/shell")["loads_mpi"], false);
  const std::string link = "/opt/own/lib/libmpich.so.12";
  const auto decision = swap("/app/shell", {"--preload", "/none.so " + link});
  EXPECT_EQ(decision["loads_mpi"], true);
  EXPECT_EQ(bound_over(decision, kCopy), "libmpi.so.12");
  world_.place(decision);
  EXPECT_EQ(inode(world_.real_loads("/app/shell", link).at(0)), inode("/dev/heddle/libmpi.so.12"));
  fs::remove(world_.in(link));
  copy("int MPI_Of_the_copy(void){return 0;}");
  world_.program("/app/shell", "extern int MPI_Of_the_copy(void); MPI_Of_the_copy();",
                 world_.in(kCopy));
  const auto refused = world_.decide("/app/shell", {"--preload", link});
  EXPECT_EQ(refused["outcome"], "incompatible") << refused.dump(2);
}

constexpr const char* kModule =
    "/usr/lib/python3/dist-packages/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so";

class Modules : public Copies {
 protected:
  void SetUp() override {
    Copies::SetUp();
    if (IsSkipped()) return;
    build_program({.output = world_.in("/usr/bin/python3.11"), .source = "int main(void){}"});
    fs::create_symlink("python3.11", world_.in("/usr/bin/python3"));
    write_text_file(world_.in("/app/script"), "#!/usr/bin/env python3\n", 0755);
    build_program({.output = world_.in("/usr/bin/env"), .source = "int main(void){}"});
    fs::create_symlink("env", world_.in("/usr/bin/sh"));
  }
  /// A module that needs `function` of the image's MPI, or of another one at `mpi`.
  void module(const std::string& function, const std::string& mpi = "",
              const std::string& path = kModule) {
    build_library(
        {.output = world_.in(path),
         .source = "int " + function + "(void);int PyInit_MPI(void){return " + function + "();}",
         .flags = {"-Wl,--no-as-needed", mpi.empty() ? world_.in("/usr/lib/libmpich.so.12") : mpi,
                   "-Wl,--unresolved-symbols=ignore-all"}});
  }
};

TEST_F(Modules, that_need_mpi_are_programs_for_python) {
  module("MPI_Init");
  for (const char* program : {"/usr/bin/python3", "/app/script"}) {
    const auto decision = swap(program);
    EXPECT_THAT(decision["program"].dump(), HasSubstr(kModule)) << program;
    EXPECT_EQ(decision["loads_mpi"], true);
    EXPECT_THAT(decision["asked"].get<std::vector<std::string>>(),
                AllOf(::testing::Contains(kModule),
                      ::testing::Contains("/usr/lib/python3/dist-packages/")));
  }
  EXPECT_EQ(swap("/usr/bin/sh")["loads_mpi"], false);
}

/// Modules and libraries have a limit each.
TEST_F(Modules, do_not_crowd_out_copies) {
  const std::string packages = "/usr/lib/python3/dist-packages/";
  module("MPI_Init");
  for (int i = 0; i < 8; ++i) {
    const auto name = packages + "x" + std::to_string(i);
    world_.mpich(world_.in(name + ".libs/libmpich.so.12"), "3.4");
    for (int j = 0; j < 20; ++j)
      fs::create_hard_link(world_.in(kModule), world_.in(name + "_" + std::to_string(j) + ".so"));
  }
  const auto decision = swap("/usr/bin/python3");
  for (int i = 0; i < 8; ++i)
    EXPECT_NE(bound_over(decision, packages + "x" + std::to_string(i) + ".libs/libmpich.so.12"), "")
        << i;
}

TEST_F(Modules, program_of_env_is_searched_in_the_containers_path) {
  world_.program("/opt/conda/bin/python3", kInit, world_.in("/usr/lib/libmpich.so.12"));
  EXPECT_EQ(swap("/app/script")["loads_mpi"], false);
  EXPECT_EQ(swap("/app/script", {"--path", "bin:/none:/opt/conda/bin:/usr/bin"})["loads_mpi"],
            true);
  EXPECT_EQ(swap("python3", {"--path", "/opt/conda/bin/"})["loads_mpi"], true);
}

TEST_F(Modules, with_functions_that_the_host_lacks_are_refused) {
  module("MPI_Not_on_the_host");
  for (const char* program : {"/usr/bin/python3", "/app/script"}) {
    const auto decision = world_.decide(program);
    EXPECT_EQ(decision["outcome"], "incompatible") << decision.dump(2);
    EXPECT_THAT(std::string(decision["reason"]),
                AllOf(HasSubstr(kModule), HasSubstr("MPI_Not_on_the_host")));
  }
  // Who knows what a shell starts.
  EXPECT_EQ(world_.decide("/usr/bin/sh")["outcome"], "swap");
}

TEST_F(Modules, of_another_mpi_and_damaged_ones_are_ignored) {
  module("MPI_Init");
  open_mpi(world_.in("/opt/open"), "5.0.3");
  const std::string packages = "/usr/lib/python3/dist-packages/";
  module("MPI_Not_on_the_host", world_.in("/opt/open/libmpi.so.40"), packages + "open/MPI.so");
  const auto bytes = value_or_throw(read_file(world_.in(kModule)));
  for (const std::size_t size : {0UL, 3UL, 64UL, 500UL, bytes.size() / 2})
    write_text_file(world_.in(packages + "cut" + std::to_string(size) + ".so"),
                    bytes.substr(0, size));
  ASSERT_EQ(::mkfifo(world_.in(packages + "fifo.so").c_str(), 0644), 0);
  fs::create_symlink("/dev/zero", world_.in(packages + "zero.so"));
  const auto decision = swap("/usr/bin/python3");
  EXPECT_EQ(decision["program"].size(), 2U) << decision["program"];
}

/// A pip wheel brings none: the host's is all there is.
TEST_F(Modules, of_an_image_without_mpi_get_the_hosts) {
  module("MPI_Init");
  fs::remove(world_.in("/usr/lib/libmpich.so.12"));
  world_.run_ldconfig();
  const auto decision = swap("/usr/bin/python3");
  EXPECT_EQ(decision["loads_mpi"], true);
  world_.place(decision);
  EXPECT_EQ(world_.real_loads(kModule).at(0), "/dev/heddle/libmpich.so.12");
}

TEST_F(Copies, of_another_abi_are_left_alone) {
  open_mpi(world_.in("/opt/open"), "5.0.3");
  write_text_file(world_.in("/opt/text/libmpich.so.12"), "no library");
  const auto decision = swap("/app/solver");
  EXPECT_EQ(bound_over(decision, "/opt/open/libmpi.so.40"), "");
  EXPECT_EQ(bound_over(decision, "/opt/text/libmpich.so.12"), "");
  EXPECT_THAT(decision["warnings"].dump(), HasSubstr("Open MPI 5.0.3"));
}

/// ld.so finds dependencies of the host's library in the copy's directory first.
TEST_F(Copies, are_replaced_with_their_dependencies_or_not_at_all) {
  const auto dep = [&](const std::string& output, const std::string& versions) {
    return versioned(output, "int dep(void){return 0;}int more(void){return 0;}", versions);
  };
  const std::string one = "D_1{dep;};";
  const std::string two = one + "D_2{more;}D_1;";
  const auto hosts = dep(world_.prefix() + "/lib/libdep.so.1", two);
  world_.mpich(world_.prefix() + "/lib/libmpi.so.12", "4.0.2",
               "int more(void);int uses(void){return more();}",
               {hosts, "-Wl,-rpath," + world_.prefix() + "/lib"});
  copy();
  dep(world_.in("/opt/own/lib/libdep.so.1"), one);
  auto decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, kCopy), "libmpi.so.12") << decision.dump(2);
  EXPECT_EQ(bound_over(decision, "/opt/own/lib/libdep.so.1"), "libdep.so.1");
  // Programs may need a version that only the copy's dependency has.
  dep(world_.in("/opt/own/lib/libdep.so.1"), two + "D_3{other;}D_2;");
  decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, kCopy), "");
  EXPECT_EQ(bound_over(decision, "/opt/own/lib/libdep.so.1"), "");
  EXPECT_THAT(decision["warnings"].dump(), AllOf(HasSubstr("/opt/own/lib"), HasSubstr("D_3")));
}

TEST_F(Copies, with_unversioned_dependencies_are_judged_by_symbols) {
  const auto dep = [&](const std::string& output, const std::string& more = "") {
    return library(output, "int dep(void){return 0;}" + more);
  };
  const std::string asked_for = "int more(void){return 0;}";
  const auto hosts = dep(world_.prefix() + "/lib/libdep.so.1", asked_for);
  world_.mpich(world_.prefix() + "/lib/libmpi.so.12", "4.0.2",
               "int more(void);int uses(void){return more();}",
               {hosts, "-Wl,-rpath," + world_.prefix() + "/lib"});
  copy();
  const std::string beside = "/opt/own/lib/libdep.so.1";
  dep(world_.in(beside));
  auto decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, kCopy), "libmpi.so.12") << decision.dump(2);
  EXPECT_EQ(bound_over(decision, beside), "libdep.so.1");
  const auto expect_stays = [&](const std::string& reason) {
    decision = world_.decide("/app/solver");
    EXPECT_EQ(bound_over(decision, kCopy), "");
    EXPECT_EQ(bound_over(decision, beside), "");
    EXPECT_THAT(decision["warnings"].dump(), AllOf(HasSubstr("/opt/own/lib"), HasSubstr(reason)));
  };
  // Programs may need a symbol that only the copy's dependency has.
  dep(world_.in(beside), asked_for + "int newer(void){return 0;}");
  expect_stays("newer");
  // The image's library is taken, but the host's MPI would find the older one beside the copy.
  dep(world_.in("/usr/lib/libdep.so.1"), asked_for);
  world_.run_ldconfig();
  dep(world_.in(beside));
  ASSERT_EQ(ImageWorld::verdict(world_.decide("/app/solver"), "libdep.so.1")["taken"], "container");
  expect_stays(beside);
}

/// The host lacks the bindings; the libmpi beside them is the named program's.
TEST_F(Copies, of_the_named_program_are_replaced_despite_extra_bindings) {
  const auto mine = world_.mpich(world_.in("/opt/mine/lib/libmpi.so.12"), "3.0");
  library(world_.in("/opt/mine/lib/libmpicxx.so.12"),
          "int MPI_Init(void);int cxx(void){return MPI_Init();}", {mine});
  world_.program("/app/mine", kInit, mine, {"-Wl,-rpath,/opt/mine/lib"});
  const auto decision = world_.decide("/app/mine");
  EXPECT_EQ(bound_over(decision, "/opt/mine/lib/libmpi.so.12"), "libmpi.so.12");
  EXPECT_EQ(bound_over(decision, "/opt/mine/lib/libmpicxx.so.12"), "");
  EXPECT_THAT(decision["warnings"].dump(),
              AllOf(HasSubstr("/opt/mine/lib/libmpicxx.so.12"), HasSubstr("MPICH 4.0.2")));
}

/// A bind mount of a directory, in a mount namespace of this process.
class Volume {
 public:
  Volume(const std::string& directory, const std::string& target) : target_(target) {
    fs::create_directories(target);
    is_there_ = ::unshare(CLONE_NEWNS) == 0 &&
                ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                ::mount(directory.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) == 0;
  }
  ~Volume() {
    if (is_there_) ::umount2(target_.c_str(), MNT_DETACH);
  }
  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;
  explicit operator bool() const { return is_there_; }

 private:
  std::string target_;
  bool is_there_ = false;
};

/// A volume of the image's own disk has the same device number.
TEST_F(Copies, are_not_searched_behind_links_and_volumes) {
  fs::create_directories(world_.in("/opt/loop"));
  fs::create_symlink("..", world_.in("/opt/loop/up"));
  fs::create_symlink("/", world_.in("/opt/root"));
  copy();
  world_.mpich(world_.prefix() + "/home/libmpich.so.12.1", "3.4");
  const Volume volume(world_.prefix() + "/home", world_.in("/home"));
  ASSERT_TRUE(volume) << std::strerror(errno);
  ASSERT_TRUE(fs::exists(world_.in("/home/libmpich.so.12.1")));
  const auto decision = world_.decide("/app/solver");
  EXPECT_EQ(bound_over(decision, kCopy), "libmpi.so.12");
  EXPECT_EQ(bound_over(decision, "/home/libmpich.so.12.1"), "");
  EXPECT_EQ(decision["warnings"].size(), 0U) << decision["warnings"];
}

/// Cached decisions are validated by these inputs, so a copy that is added later shows.
TEST_F(Copies, list_their_possible_directories_among_the_inputs) {
  build_library({.output = world_.in("/opt/conda/envs/a/lib/libx.so.1"), .source = "int x;"});
  for (const char* directory : {"/opt/other/deep/er", "/usr/share/doc", "/tmp"})
    fs::create_directories(world_.in(directory));
  const auto inputs = world_.decide("/app/solver")["asked"].get<std::vector<std::string>>();
  for (const char* directory : {"/", "/opt/", "/opt/other/", "/usr/lib/", "/opt/conda/envs/a/lib/"})
    EXPECT_THAT(inputs, ::testing::Contains(directory));
  for (const char* directory : {"/opt/other/deep/er/", "/usr/share/", "/tmp/", "/etc/", "/dev/"})
    EXPECT_THAT(inputs, ::testing::Not(::testing::Contains(directory)));
}

}  // namespace
}  // namespace heddle::test
