// SPDX-License-Identifier: MIT
// Loader features that tools between a program and ld.so break easily. Each case runs a program
// alone and under fs-gen and compares output, errors and exit status.

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/elf_farm.hpp"

namespace heddle::test {
namespace {

class LoaderTraps : public FsGenFixture {
 protected:
  void SetUp() override {
    FsGenFixture::SetUp();
    options_.cwd = dir_.path();
  }
  std::string library(const std::string& name, const std::string& source, Words flags = {},
                      const std::string& language = "c") const {
    flags.push_back("-Wl,-soname," + fs::path(name).filename().string());
    return build_library({dir_ / name, source, flags, language});
  }
  std::string program(const std::string& source, const Words& flags = {},
                      const std::string& language = "c") const {
    return build_program({dir_ / "app", source, flags, language});
  }
  std::string rpath(const std::string& directory) const {
    return "-Wl,-rpath," + (dir_ / directory);
  }
  std::uint64_t reported(const char* key) const { return report().value(key, std::uint64_t{0}); }
};

TEST_F(LoaderTraps, bind_now_works) {
  const auto lib = library("lib/libx.so.1", "int x(void) { return 7; }");
  const auto app =
      program("int x(void); int main(void) { return x(); }", {lib, rpath("lib"), "-Wl,-z,now"});
  EXPECT_EQ(same({app}).status, 7);
  EXPECT_EQ(same({app}, {"LD_BIND_NOW=1"}).status, 7);
}

TEST_F(LoaderTraps, exceptions_symbol_versions_and_ld_debug_work_across_libraries) {
  const auto fail =
      library("lib/libfail.so",
              "#include <stdexcept>\nvoid fail() { throw std::out_of_range(\"x\"); }", {}, "c++");
  const auto catcher = program(
      "#include <stdexcept>\nvoid fail();\n"
      "int main() { try { fail(); } catch (const std::out_of_range&) { return 7; } }",
      {fail, rpath("lib")}, "c++");
  EXPECT_EQ(same({catcher}).status, 7);
  const auto versions = write_text_file(dir_ / "versions", "V1 { f; }; V2 {} V1;");
  const auto lib = library("lib/libv.so",
                           "__asm__(\".symver one,f@V1\\n.symver two,f@@V2\");\n"
                           "int one(void) { return 1; }\nint two(void) { return 2; }",
                           {"-Wl,--version-script=" + versions});
  const auto app = program(
      "int f(void), g(void);\n__asm__(\".symver g,f@V1\");\n"
      "int main(void) { return 10 * f() + g(); }",
      {lib, rpath("lib")});
  EXPECT_EQ(same({app}).status, 21);
  options_.env.insert(options_.env.end(), {"LD_DEBUG=all", "LD_DEBUG_OUTPUT=" + (dir_ / "debug")});
  EXPECT_EQ(run_guided({app}).status, 21);
  options_.env.emplace_back("LD_DEBUG");
  EXPECT_EQ(sh("cat debug.* | grep -c 'calling init: .*/libv.so$'").out, "1\n");
}

TEST_F(LoaderTraps, every_exec_function_starts_guided_children) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 10});
  const auto app = program(
      "#define _GNU_SOURCE\n#include <spawn.h>\n#include <string.h>\n#include <stdlib.h>\n"
      "#include <sys/wait.h>\n#include <unistd.h>\nextern char** environ;\n"
      "int main(int c, char** v) { char* a[] = {v[2], 0}; int s; pid_t p;\n"
      "if (!strcmp(v[1], \"execl\")) execl(v[2], v[2], (char*)0);\n"
      "if (!strcmp(v[1], \"execvp\")) { setenv(\"PATH\", v[3], 1); a[0] = \"app\"; execvp(\"app\", "
      "a); }\n"
      "if (!strcmp(v[1], \"execve\")) execve(v[2], a, environ);\n"
      "if (!strcmp(v[1], \"fexecve\")) execveat(-100, v[2], a, environ, 0);\n"
      "if (!strcmp(v[1], \"vfork\")) { p = vfork(); if (!p) { execv(v[2], a); _exit(9); } }\n"
      "else if (!strcmp(v[1], \"system\")) return system(v[2]);\n"
      "else posix_spawn(&p, v[2], 0, 0, a, environ);\n"
      "waitpid(p, &s, 0); return WEXITSTATUS(s); }");
  for (const char* how : {"execl", "execvp", "execve", "fexecve", "vfork", "system", "spawn"}) {
    EXPECT_EQ(same({app, how, farm.program, dir_ / "farm"}).out, farm.output) << how;
    EXPECT_GE(reported("guided_processes"), 2U) << how;
    EXPECT_EQ(reported("probes_with"), 0U) << how;
  }
}

TEST_F(LoaderTraps, repeated_dlmopen_and_dlclose_work) {
  const auto lib = library("lib/libx.so.1", "static int n; int x(void) { return ++n; }");
  const auto app = program(
      "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\nint x(void);\n"
      "int main(void) { int i; printf(\"%d\\n\", x()); for (i = 0; i < 3; ++i) {\n"
      "void* m = dlmopen(LM_ID_NEWLM, \"libx.so.1\", RTLD_NOW); if (!m) { puts(dlerror()); return "
      "1; }\n"
      "printf(\"%d \", ((int (*)(void))dlsym(m, \"x\"))()); dlclose(m); }\n"
      "if (!dlmopen(LM_ID_NEWLM, \"ld-linux-x86-64.so.2\", RTLD_NOW)) puts(dlerror());\n"
      "for (i = 0; i < 50; ++i) { void* h = dlopen(\"libm.so.6\", RTLD_NOW); if (!h) return 2;\n"
      "if (dlclose(h)) return 3; } printf(\"%d\\n\", x()); return 0; }",
      {lib, rpath("lib")});
  EXPECT_EQ(same({app}).out, "1\n1 1 1 2\n");
}

TEST_F(LoaderTraps, the_auditor_takes_one_namespace_as_documented) {
  const auto lib = library("lib/libx.so.1", "int x;");
  const auto app = program(
      "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
      "int main(void) { Lmid_t first = 0; int n = 0; void* m;\n"
      "while ((m = dlmopen(LM_ID_NEWLM, \"libx.so.1\", RTLD_NOW)))\n"
      "if (!n++) dlinfo(m, RTLD_DI_LMID, &first);\n"
      "printf(\"%d of them, from %d on\\n\", n, (int)first); return 0; }",
      {rpath("lib")});
  EXPECT_EQ(run({app}, options_).out, "15 of them, from 1 on\n");
  EXPECT_EQ(run_guided({app}).out, "14 of them, from 2 on\n");
}

TEST_F(LoaderTraps, threads_with_the_smallest_stack_run) {
  const auto lib =
      library("t/libtls.so",
              "__thread char b[8192] "
              "__attribute__((tls_model(\"initial-exec\"))); char* p(void) { return b; }");
  const auto app = program(
      "#include <limits.h>\n#include <pthread.h>\n#include <stdio.h>\n#include <string.h>\n"
      "#include <dlfcn.h>\nchar* p(void);\n"
      "static void* work(void* a) { *p() = 1; return dlopen(\"libm.so.6\", RTLD_LAZY) ? a : 0; }\n"
      "static void* bind(void* a) { return (void*)(long)(p() != 0); }\n"
      "int main(void) { pthread_attr_t a; pthread_t t[8]; int i; void* r; long n = 0;\n"
      "pthread_attr_init(&a); pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN + 16384);\n"
      "for (i = 0; i < 8; ++i) if (pthread_create(&t[i], &a, work, (void*)1)) return 1;\n"
      "for (i = 0; i < 8; ++i) { pthread_join(t[i], &r); n += (long)r; }\n"
      "if (pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN)) return 2;\n"
      "if (pthread_create(t, &a, bind, 0)) return 3; pthread_join(t[0], &r);\n"
      "printf(\"%ld %ld\\n\", n, (long)r); return 0; }",
      {lib, rpath("t"), "-pthread"});
  EXPECT_EQ(same({app}).out, "8 1\n");
}

TEST_F(LoaderTraps, dladdr_and_dl_iterate_phdr_name_original_files) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 12});
  std::vector<std::string> flags = farm.libraries;
  for (const auto& directory : farm.directories) flags.push_back("-Wl,-rpath," + directory);
  flags.insert(flags.begin(), "-Wl,--no-as-needed");
  // By real paths: ld.so names libc by the link /lib.
  const auto app = program(
      "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <link.h>\n#include <stdio.h>\n"
      "#include <stdlib.h>\n#include <string.h>\n"
      "static int each(struct dl_phdr_info* i, size_t s, void* d) { Dl_info info;\n"
      "if (i->dlpi_name[0] != '/') return 0; puts(realpath(i->dlpi_name, 0));\n"
      "if (!dladdr((void*)i->dlpi_addr, &info) || strcmp(info.dli_fname, i->dlpi_name))\n"
      "printf(\"dladdr: %s\\n\", info.dli_fname); return 0; }\n"
      "int main(void) { dl_iterate_phdr(each, 0); return 0; }",
      flags);
  EXPECT_THAT(same({app}).out, ::testing::HasSubstr(farm.libraries[11] + "\n"));
}

TEST_F(LoaderTraps, names_outlive_dlclose_and_failed_dlopen) {
  const auto missing = library("gone/libgone.so", "int gone(void) { return 1; }");
  const auto plugin = library("lib/libplugin.so", "int plugin(void) { return 3; }");
  const auto broken = library("lib/libbroken.so", "int gone(void); int b(void) { return gone(); }",
                              {missing, "-Wl,-z,now"});
  const auto user = library("lib/libuser.so", "int plugin(void); int u(void) { return plugin(); }",
                            {plugin, rpath("lib")});
  fs::remove(missing);
  const auto app = program(
      "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\nint main(void) {\n"
      "for (int i = 0; i < 2000; ++i) { Dl_info f; void *h = dlopen(\"libuser.so\", RTLD_NOW), "
      "*p;\n"
      "if (!h) return puts(dlerror()), 1; p = dlopen(\"libplugin.so\", RTLD_LAZY);\n"
      "if (!dladdr(dlsym(p, \"plugin\"), &f)) return 2; if (i % 500 == 0) puts(f.dli_fname);\n"
      "if (dlopen(\"libbroken.so\", RTLD_NOW)) return 3; if (i % 500 == 0) puts(dlerror());\n"
      "if (i & 1) { dlclose(h); dlclose(p); } else { dlclose(p); dlclose(h); } } return 0; }",
      {"-Wl,--no-as-needed", rpath("lib"), "-ldl"});
  EXPECT_EQ(same({app}).status, 0);
  // All are in the map of the second run.
  const Words learned = {"--map", dir_ / "map"};
  EXPECT_EQ(run_guided({app}, {"--learn", "--out", dir_ / "map"}).status, 0);
  EXPECT_EQ(run_guided({app}, learned).out, run({app}, options_).out);
}

TEST_F(LoaderTraps, preloads_by_name_and_path_are_loaded) {
  const auto preload = library("p/libpre.so", "int x(void) { return 9; }");
  const auto lib = library("lib/libx.so.1", "int x(void) { return 7; }");
  const auto app = program("int x(void); int main(void) { return x(); }", {lib, rpath("lib")});
  EXPECT_EQ(same({app}, {"LD_PRELOAD=" + preload}).status, 9);
  EXPECT_EQ(same({app}, {"LD_PRELOAD=libpre.so", "LD_LIBRARY_PATH=" + (dir_ / "p")}).status, 9);
  EXPECT_EQ(same({app}, {"LD_PRELOAD=./p/libpre.so"}).status, 9);
}

TEST_F(LoaderTraps, origin_expands_in_transitive_dependencies) {
  const auto deep = library("tree/deep/libdeep.so", "int deep(void) { return 3; }");
  const auto middle =
      library("tree/mid/libmid.so", "int deep(void); int mid(void) { return deep() + 1; }",
              {deep, "-Wl,-rpath,$ORIGIN/../deep"});
  const auto app = program("int mid(void); int main(void) { return mid(); }",
                           {middle, "-Wl,-rpath,$ORIGIN/tree/mid"});
  EXPECT_EQ(same({app}).status, 4);
  EXPECT_EQ(reported("probes_with"), 0U);
}

TEST_F(LoaderTraps, origin_is_the_library_s_original_directory) {
  // Libraries outside the closure are searched from the library's own directory, by name and path.
  library("tree/plugins/libp.so", "int p(void) { return 5; }");
  library("tree/plugins/libq.so", "int q(void) { return 6; }");
  const auto host = library(
      "tree/host/libhost.so",
      "#include <dlfcn.h>\n#include <stdio.h>\nint host(void) {\n"
      "void* a = dlopen(\"libp.so\", RTLD_NOW); if (!a) { puts(dlerror()); return 1; }\n"
      "void* b = dlopen(\"$ORIGIN/../plugins/libq.so\", RTLD_NOW); if (!b) puts(dlerror());\n"
      "void* c = dlopen(\"$ORIGIN/none.so\", RTLD_NOW); if (!c) puts(dlerror());\n"
      "return ((int (*)(void))dlsym(a, \"p\"))() * 10 + ((int (*)(void))dlsym(b, \"q\"))(); }",
      {"-Wl,-rpath,$ORIGIN/../plugins"});
  const auto app =
      program("int host(void); int main(void) { return host(); }", {host, rpath("tree/host")});
  EXPECT_EQ(same({app}).status, 56);
  // A library without a search path is served from the view, but keeps its $ORIGIN.
  const auto mover = library(
      "tree/host/libmover.so",
      "#include <dlfcn.h>\n#include <stdio.h>\nint host(void) {\n"
      "void* b = dlopen(\"${ORIGIN}/../plugins/libq.so\", RTLD_NOW); if (!b) puts(dlerror());\n"
      "return ((int (*)(void))dlsym(b, \"q\"))(); }");
  const auto second = build_program({dir_ / "second",
                                     "int host(void); int main(void) { return host(); }",
                                     {mover, rpath("tree/host")}});
  EXPECT_EQ(same({second}).status, 6);
}

TEST_F(LoaderTraps, file_with_many_names_is_loaded_once) {
  const auto lib = library("lib/libx.so.1.2", "int x(void) { static int n; return ++n; }");
  fs::create_symlink("libx.so.1.2", dir_ / "lib/libx.so");
  fs::create_symlink("lib", dir_ / "other");
  fs::create_symlink(dir_ / "lib", dir_ / "third");
  const auto app = program(
      "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <link.h>\n#include <stdio.h>\n"
      "#include <unistd.h>\nint x(void);\n"
      "static int count(struct dl_phdr_info* i, size_t s, void* d) { ++*(int*)d; return 0; }\n"
      "int main(int c, char** v) { int i, n = 0, m = 0; dl_iterate_phdr(count, &n);\n"
      "for (i = 1; i < c; ++i) { void* h = dlopen(v[i], RTLD_NOW); if (!h) puts(dlerror());\n"
      "else printf(\"%d\\n\", ((int (*)(void))dlsym(h, \"x\"))()); }\n"
      "chdir(\"lib\"); if (!dlopen(\"./libx.so\", RTLD_NOW)) puts(dlerror());\n"
      "dl_iterate_phdr(count, &m); printf(\"%d more\\n\", m - n); return 0; }",
      {"-Wl,--no-as-needed", lib, rpath("lib")});
  const auto ours = same({app, "libx.so", "./lib/libx.so", "other/libx.so.1.2",
                          dir_ / "third/libx.so", "/proc/self/cwd/lib/../lib/libx.so",
                          "$ORIGIN/other/libx.so", dir_ / "lib/./libx.so.1.2"});
  EXPECT_EQ(ours.out, "1\n2\n3\n4\n5\n6\n7\n0 more\n");
  // Also when such a name is the first to open the file.
  const auto late = build_program(
      {dir_ / "late",
       "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <link.h>\n#include <stdio.h>\n"
       "static int count(struct dl_phdr_info* i, size_t s, void* d) { ++*(int*)d; return 0; }\n"
       "int main(int c, char** v) { int i, n = 0, m = 0; dl_iterate_phdr(count, &n);\n"
       "for (i = 1; i < c; ++i) if (!dlopen(v[i], RTLD_NOW)) puts(dlerror());\n"
       "dl_iterate_phdr(count, &m); printf(\"%d more\\n\", m - n); return 0; }"});
  fs::create_symlink("/lib/x86_64-linux-gnu/libc.so.6", dir_ / "libc-link.so");
  EXPECT_EQ(same({late, "./libc-link.so", "lib/libx.so", "./third/libx.so.1.2"}).out, "1 more\n");
}

TEST_F(LoaderTraps, errors_equal_those_of_ld_so) {
  library("lib/libbad.so", "int undefined_here(void); int x(void) { return undefined_here(); }");
  write_text_file(dir_ / "lib/text.so", "no library\n");
  const auto needs_gone = library("lib/libgone.so", "int gone(void) { return 1; }");
  library("lib/libneeds.so", "int gone(void); int y(void) { return gone(); }",
          {needs_gone, "-Wl,--no-as-needed"});
  fs::remove(needs_gone);
  const auto app = program(
      "#include <dlfcn.h>\n#include <stdio.h>\nint main(int c, char** v) { int i;\n"
      "for (i = 1; i < c; ++i) { void* h = dlopen(v[i], RTLD_NOW); puts(h ? \"found\" : "
      "dlerror()); }\n"
      "dlsym(RTLD_DEFAULT, \"nosuch\"); puts(dlerror()); return 0; }",
      {rpath("lib")});
  same({app, "libnone.so.1", "./none.so", "/no/such/lib.so", "lib/libbad.so", "libbad.so",
        "text.so", "lib/text.so", "libneeds.so", "$ORIGIN/none.so", "$PLATFORM/none.so", "lib", ".",
        ""});
  EXPECT_GE(reported("names_unknown"), 4U);
  EXPECT_GE(reported("probes_with"), 1U);
  const auto lib = library("lib/libx.so.1", "int x(void) { return 7; }");
  const auto broken = build_program(
      {dir_ / "broken", "int x(void); int main(void) { return x(); }", {lib, rpath("lib")}});
  fs::remove(lib);
  const auto bare = run({broken}, options_);
  const auto ours = run_guided({broken});
  EXPECT_EQ(ours.status, bare.status);
  EXPECT_NE(ours.err.find(bare.err), std::string::npos) << ours.err << bare.err;
}

TEST_F(LoaderTraps, program_started_through_ld_so_runs) {
  const auto farm = ElfFarm::build(dir_ / "farm", {.libraries = 10});
  const std::string loader = "/lib64/ld-linux-x86-64.so.2";
  EXPECT_EQ(same({loader, farm.program}).out, farm.output);
  EXPECT_EQ(same({loader, "--verify", "/bin/true"}).status, 0);
}

}  // namespace
}  // namespace heddle::test
