// SPDX-License-Identifier: MIT
// isatty() of regular files in Python is answered without an ioctl.

#include <sys/prctl.h>

#include "tests/audit/guided_world.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

/// Prints isatty()'s result and errno for a regular file, one that is open for writing, one that is
/// open as a path only, a device and no file, while each ioctl fails with EPERM.
constexpr const char* kAsks = R"(
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int ASKS(void) {
  struct sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
                               {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_ioctl},
                               {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
                               {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  struct sock_fprog program = {4, code};
  int fds[] = {open("/proc/self/exe", O_RDONLY), memfd_create("written", 0),
               open("/proc/self/exe", O_PATH), open("/dev/null", O_RDONLY), 99};
  setvbuf(stdout, 0, _IOFBF, 4096);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
    return 9;
  for (int i = 0; i < 5; ++i) {
    errno = 0;
    int result = isatty(fds[i]);
    printf("%d %d, ", result, errno);
  }
  return 0;
}
)";
constexpr const char* kMain = "int main(void) { return ASKS(); }\n";
constexpr const char* kQuick = "0 25, 0 1, 0 1, 0 1, 0 1, ";  // ENOTTY, EPERM
constexpr const char* kAsked = "0 1, 0 1, 0 1, 0 1, 0 1, ";

class Isatty : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::prctl(PR_GET_SECCOMP) < 0) HEDDLE_SKIP("no seccomp(2) here, as in qemu-user");
  }
  std::string run(const std::vector<std::string>& argv,
                  const std::vector<std::string>& env = {}) const {
    GuidedWorld world(dir_ / "world");
    world.add_program(dir_ / "app");
    world.publish();
    const auto result = world.run(argv, env);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out;
  }
  std::string app(std::vector<std::string> flags, const std::string& function = "Py_Main") const {
    flags.insert(flags.end(), {"-DASKS=" + function, "-Wl,--export-dynamic"});
    return build_program({dir_ / "app", std::string(kAsks) + kMain, flags});
  }
  TestDir dir_;
};

class HowBuilt : public Isatty, public ::testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(HowBuilt, regular_files_are_answered_without_an_ioctl) {
  const auto python = app(GetParam());
  EXPECT_EQ(run_checked({python}).out, kAsked);
  EXPECT_EQ(run({python}), kQuick);
}

INSTANTIATE_TEST_SUITE_P(, HowBuilt,
                         ::testing::Values(std::vector<std::string>{"-Wl,-z,lazy"},
                                           std::vector<std::string>{"-Wl,-z,now", "-Wl,-z,relro"},
                                           std::vector<std::string>{"-Wl,-z,now", "-fno-plt"},
                                           std::vector<std::string>{"-no-pie", "-fno-pie"},
                                           std::vector<std::string>{"-no-pie", "-fno-pie",
                                                                    "-Wl,-z,now"}),
                         [](const auto& each) { return "flags_" + std::to_string(each.index); });

TEST_F(Isatty, of_a_libpython) {
  const auto library = build_library(
      {dir_ / "lib/libpython9.so.1",
       kAsks,
       {"-DASKS=Py_Main", "-Wl,-soname,libpython9.so.1", "-Wl,-z,now", "-Wl,-z,relro"}});
  const auto python = build_program({dir_ / "app",
                                     std::string("int ASKS(void);\n") + kMain,
                                     {"-DASKS=Py_Main", library, "-Wl,-rpath," + dir_ / "lib"}});
  EXPECT_EQ(run({python}), kQuick);
}

TEST_F(Isatty, of_a_python_that_ld_so_starts) {
  const auto python = app({});
  const std::string loader = "/lib64/ld-linux-x86-64.so.2";
  if (!fs::exists(loader)) HEDDLE_SKIP("ld.so has another name on this machine");
  EXPECT_EQ(run({loader, python}), kQuick);
}

TEST_F(Isatty, of_another_program_is_left) { EXPECT_EQ(run({app({}, "other")}), kAsked); }

TEST_F(Isatty, of_a_preloaded_library_is_called) {
  const auto python = app({"-Wl,-z,lazy"});
  for (const std::string style : {"gnu", "sysv"}) {
    const auto preloaded =
        build_library({dir_ / ("lib/" + style + ".so"),
                       "#include <errno.h>\nint isatty(int f) { errno = 5; return 7; }",
                       {"-Wl,--hash-style=" + style}});
    EXPECT_EQ(run({python}, {"LD_PRELOAD=" + preloaded}), "7 5, 7 5, 7 5, 7 5, 7 5, ") << style;
  }
}

#ifdef __x86_64__
TEST_F(Isatty, that_a_constructor_put_in_its_place_is_called) {
  const auto library =
      build_library({dir_ / "lib/libother.so",
                     "#include <errno.h>\nint other(int f) { errno = 5; return 7; }",
                     {}});
  const auto python = build_program({dir_ / "app",
                                     std::string(kAsks) + kMain + R"(
int other(int file);
__attribute__((constructor)) static void put(void) {
  int (**slot)(int);
  __asm__("lea isatty@GOTPCREL(%%rip), %0" : "=r"(slot));
  *slot = other;
}
)",
                                     {"-DASKS=Py_Main", "-Wl,--export-dynamic", "-fno-plt",
                                      "-Wl,-z,norelro", library, "-Wl,-rpath," + dir_ / "lib"}});
  EXPECT_EQ(run({python}), "7 5, 7 5, 7 5, 7 5, 7 5, ");
}
#endif

TEST(IsattyAddress, is_that_of_the_audit_library) {
  const TestDir dir;
  const auto python = build_program({dir / "app",
                                     R"(
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int Py_Main(void) {
  int (*called)(int) = isatty;
  return printf("%d", (void*)called == dlsym(RTLD_DEFAULT, "isatty")) != 1;
}
int main(void) { return Py_Main(); }
)",
                                     {"-fPIE", "-pie", "-Wl,--export-dynamic"}});
  EXPECT_EQ(run_checked({python}).out, "1");
  GuidedWorld world(dir / "world");
  world.add_program(python);
  world.publish();
  EXPECT_EQ(world.run({python}).out, "0");
}

}  // namespace
}  // namespace heddle::test
