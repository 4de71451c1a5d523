// SPDX-License-Identifier: MIT
#include <elf.h>

#include "resolver/map/static_tls.hpp"
#include "tests/audit/guided_world.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/occurrences.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

// The static TLS of tls_formula.hpp, on real programs.
class AuditTls : public ::testing::TestWithParam<int> {
 protected:
  TestDir dir_;

  /// A program whose library has `bytes` of initial-exec TLS, used in a second thread too. It
  /// prints GLIBC_TUNABLES and HEDDLE_* of its environment and its own name.
  std::string tls_program(int bytes, const std::string& name = "app") {
    const std::string lib =
        build_library({dir_ / (name + "_lib/libtls" + name + ".so"),
                       "static volatile __thread char block[" + std::to_string(bytes) +
                           "] __attribute__((tls_model(\"initial-exec\"))) = {1};\n"
                           "char* tls(void) { return (char*)block; }",
                       {"-Wl,-soname,libtls" + name + ".so"}});
    return build_program(
        {dir_ / name,
         "#define _GNU_SOURCE\n#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
         "#include <string.h>\n#include <sys/prctl.h>\n#include <unistd.h>\nextern char** "
         "environ;\nchar* tls(void);\n"
         "static void* work(void* a) { return tls() + *(int*)a; }\n"
         "int main(int c, char** v) { int n = " +
             std::to_string(bytes - 1) +
             "; char comm[17] = {0}; pthread_t t;\n"
             "memset(tls(), 2, n); if (pthread_create(&t, 0, work, &n)) return 1; pthread_join(t, "
             "0);\n"
             "char** e; for (e = environ; *e; ++e) if (!strncmp(*e, \"GLIBC_TUN\", 9) || "
             "!strncmp(*e, \"HEDDLE_TUN\", 10)) puts(*e);\n"
             "prctl(PR_GET_NAME, comm); printf(\"%s %s\\n\", comm, c > 1 ? v[1] : \"-\"); "
             "fflush(stdout);\n"
             "if (c > 2) { execv(v[2], v + 2); return 9; } return 0; }",
         {lib, "-pthread", "-Wl,-rpath," + (dir_ / (name + "_lib"))}});
  }
  /// Prints whether a thread with PTHREAD_STACK_MIN bytes of stack runs.
  std::string small_stack_program() {
    return build_program({dir_ / "small",
                          "#include <pthread.h>\n#include <stdio.h>\n#include <string.h>\nstatic "
                          "void* work(void* a) { return a; }\n"
                          "int main(void) { pthread_attr_t a; pthread_t t; pthread_attr_init(&a);\n"
                          "int r = pthread_attr_setstacksize(&a, 16384); if (!r) r = "
                          "pthread_create(&t, &a, work, 0);\n"
                          "if (!r) r = pthread_join(t, 0); puts(r ? strerror(r) : \"small stack "
                          "runs\"); return !!r; }",
                          {"-pthread"}});
  }
  GuidedWorld mapped(const std::string& program = "/bin/true", std::uint64_t static_tls = 0) {
    GuidedWorld out(dir_ / "world");
    out.add_program(program);
    out.static_tls = static_tls;
    out.publish();
    return out;
  }
  static std::uint64_t need(int bytes) {
    return static_tls_need({{static_cast<std::uint64_t>(bytes), 32, true}, {144, 8, true}})
        .optional_static_tls;
  }
};

TEST_P(AuditTls, tunable_of_the_parent_spares_the_restart) {
  const std::string app = tls_program(GetParam());
  const GuidedWorld world = mapped(app, need(GetParam()));
  const std::string tunables = "GLIBC_TUNABLES=" + merge_tunables("", world.static_tls);
  const RunResult result = world.run({app}, {tunables, "HEDDLE_TUNABLES="});
  EXPECT_THAT(result.out, AllOf(StartsWith("app"), HasSubstr(" -\n"))) << result.err;
  EXPECT_EQ(world.counters().guided_processes, 1u);
}

TEST_P(AuditTls, mapped_program_gets_its_static_tls) {
  const std::string app = tls_program(GetParam());
  GuidedWorld world = mapped(app, need(GetParam()));
  // Without tunables of the parent: the index has the number.
  RunResult result = world.run({app, "x"});
  EXPECT_EQ(result.out, "app x\n") << result.err;
  EXPECT_EQ(world.counters().guided_processes, 1u);
  // The map lacks the number: the auditor detects the need.
  world.static_tls = 0;
  world.publish();
  result = world.run({app, "x"});
  EXPECT_EQ(result.out, "app x\n") << result.err;
  EXPECT_EQ(world.counters().probes, 0u);
}

TEST_P(AuditTls, unmapped_child_gets_its_static_tls) {
  const GuidedWorld world = mapped();
  const std::string app = tls_program(GetParam());
  EXPECT_EQ(world.run({app}).out, "app -\n");
  const RunResult user = world.run({app}, {"GLIBC_TUNABLES=glibc.malloc.check=0"});
  EXPECT_EQ(user.out, "GLIBC_TUNABLES=glibc.malloc.check=0\napp -\n") << user.err;
  const RunResult odd = world.run({app}, {"GLIBC_TUNABLES=", "HEDDLE_TUNABLESX=1"});
  EXPECT_THAT(odd.out, AllOf(HasSubstr("GLIBC_TUNABLES=\n"), HasSubstr("HEDDLE_TUNABLESX=1\n")));
  // By name and PATH, and as the interpreter of a script.
  const RunResult found =
      world.run({"/bin/sh", "-c", "cd \"$0\"; ./app y; PATH=. app z", dir_.path()});
  EXPECT_EQ(found.out, "app y\napp z\n") << found.err;
  write_text_file(dir_ / "script", "#!" + app + "\n", 0755);
  const RunResult script = world.run({dir_ / "script"});
  EXPECT_EQ(script.out, "script " + (dir_ / "script") + "\n") << script.err;
}

TEST_P(AuditTls, children_keep_ordinary_thread_stacks) {
  const std::string small = small_stack_program();
  const std::string app = tls_program(GetParam());
  GuidedWorld world = mapped(app, need(GetParam()));
  EXPECT_EQ(run({small}).out, "small stack runs\n");
  EXPECT_EQ(world.run({small}).out, "small stack runs\n");
  const RunResult child = world.run({app, "x", small});
  EXPECT_EQ(child.out, "app x\nsmall stack runs\n") << child.err;
  // unmapped, mapped, unmapped with another need
  const std::string other = tls_program(2 * GetParam(), "other");
  const RunResult chain = world.run({other, "1", app, "2", other, "3", small});
  EXPECT_EQ(chain.out, "other 1\napp 2\nother 3\nsmall stack runs\n") << chain.err;
}

INSTANTIATE_TEST_SUITE_P(Bytes, AuditTls, ::testing::Values(8192, 65536));

TEST_F(AuditTls, unmapped_program_with_many_tls_libraries_starts) {
  std::vector<std::string> flags;
  std::string source, sum = "0";
  for (int i = 0; i < 12; ++i) {
    const std::string number = std::to_string(i);
    flags.push_back(
        build_library({dir_ / ("lib/libm" + number + ".so"),
                       "static volatile __thread char block[3000] "
                       "__attribute__((tls_model(\"initial-exec\"))) = {" +
                           number + "};\nint f" + number + "(void) { return block[0]; }",
                       {"-Wl,-soname,libm" + number + ".so"}}));
    source += "int f" + number + "(void);\n";
    sum += " + f" + number + "()";
  }
  flags.push_back("-Wl,-rpath," + (dir_ / "lib"));
  const std::string app =
      build_program({dir_ / "many", source + "int main(void) { return " + sum + "; }", flags});
  const GuidedWorld world = mapped();
  EXPECT_EQ(world.run({app}).status, 66);
  EXPECT_EQ(world.counters().unguided_processes, 1u);
}

TEST_F(AuditTls, program_with_more_tls_libraries_than_an_auditor_allows_starts) {
  // Under any auditor glibc ends those of 63 and libc.
  for (const std::size_t libraries : {58, 63, 64})
    for (const bool is_mapped : {true, false}) {
      const auto farm = ElfFarm::build(dir_ / ("farm" + std::to_string(libraries)),
                                       {.libraries = libraries, .thread_local_bytes = 16});
      GuidedWorld world(dir_ / ("world" + std::to_string(libraries) + (is_mapped ? "m" : "")));
      world.add_program(is_mapped ? farm.program : "/bin/true");
      world.publish();
      const auto ran = world.run({farm.program});
      EXPECT_EQ(ran.out, farm.output) << libraries << ran.err;
      EXPECT_EQ(ran.status, 0);
      if (is_mapped) {
        EXPECT_EQ(world.counters().left, libraries > 60 ? 1U : 0U) << libraries;
      }
    }
}

/// What a program that no map knows does: as natively, but for one exec where its TLS is large.
class UnmappedChild : public AuditTls {
 protected:
  struct Calls {
    std::size_t execs = 0;
    std::vector<std::string> failed;
  };
  /// Of the starts of `app`, of 30 libraries in 30 directories and one with `bytes` of TLS.
  static Calls calls(const StraceResult& result) {
    Calls out;
    EXPECT_EQ(result.run.status, 6) << result.run.err;
    for (const auto& start : result.starts) {
      if (!start.program.ends_with("/app")) continue;
      ++out.execs;
      // Without buffers' addresses.
      for (const auto& call : start.failed)
        out.failed.push_back(call.substr(0, call.find('"', call.find('"') + 1)));
    }
    return out;
  }
  std::string program(int bytes, const std::vector<std::string>& flags) {
    const std::string tls =
        build_library({dir_ / "farm/lib/0030/libtls.so",
                       "static volatile __thread char block[" + std::to_string(bytes) +
                           "] __attribute__((tls_model(\"initial-exec\"))) = {6};\n"
                           "int tls(void) { return block[0]; }",
                       {"-Wl,-soname,libtls.so"}});
    std::vector<std::string> all = {"-Wl,--no-as-needed"};
    all.insert(all.end(), farm_.libraries.begin(), farm_.libraries.end());
    all.push_back(tls);
    all.insert(all.end(), flags.begin(), flags.end());
    return build_program(
        {dir_ / "farm/app", "int tls(void); int main(void) { return tls(); }", all});
  }
  /// `words` start the program.
  void expect_native(const std::vector<std::string>& words, std::size_t execs,
                     const std::vector<std::string>& env = {}) {
    RunOptions options;
    options.env = env;
    std::vector<std::string> native = {"/usr/bin/env"};
    native.insert(native.end(), words.begin(), words.end());
    const auto stock = calls(strace_counts(native, options));
    const auto ours = calls(world_.strace(words, env));
    EXPECT_EQ(stock.execs, 1U);
    EXPECT_EQ(ours.execs, execs);
    EXPECT_FALSE(stock.failed.empty());
    EXPECT_EQ(ours.failed, stock.failed);
  }
  /// Whether it ends with the same status, also where some of several native starts are killed:
  /// such an end depends on addresses.
  bool ends_as_natively(const std::string& app) {
    const int ours = world_.run({app}).status;
    for (int i = 0; i < 5; ++i) {
      const int native = run({app}).status;
      if (native == ours || native > 128) return true;
    }
    return false;
  }
  const ElfFarm farm_ = ElfFarm::build(dir_ / "farm", {.libraries = 30});
  const GuidedWorld world_ = mapped("/bin/true");
};

TEST_F(UnmappedChild, searches_once_by_rpath_runpath_and_library_path) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const std::string list = farm_.library_path;
  for (const int bytes : {100, 30000}) {
    const std::size_t execs = bytes > 1000 ? 2 : 1;
    expect_native({program(bytes, {"-Wl,--disable-new-dtags,-rpath," + list})}, execs);
    expect_native({program(bytes, {"-Wl,--enable-new-dtags,-rpath," + list})}, execs);
    expect_native({program(bytes, {"-Wl,-rpath,$ORIGIN/lib/0030:" + list})}, execs);
    expect_native({program(bytes, {})}, execs, {"LD_LIBRARY_PATH=" + list});
  }
}

TEST_F(UnmappedChild, counts_the_libraries_of_its_libraries_and_of_ld_preload) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const std::string app = program(100, {"-Wl,-rpath," + farm_.library_path});
  const std::string big =
      build_library({dir_ / "other/libbig.so",
                     "__thread char big[9000] = {1}; int b(void) { return big[0]; }",
                     {"-Wl,-soname,libbig.so"}});
  expect_native({app}, 2, {"LD_PRELOAD=" + big});
  const std::string user = build_library({dir_ / "other/libuser.so",
                                          "int u(void) { return 1; }",
                                          {"-Wl,--no-as-needed", big, "-Wl,-rpath,$ORIGIN"}});
  expect_native({app}, 2, {"LD_PRELOAD=" + user});
}

TEST_F(UnmappedChild, of_damaged_libraries_ends_as_natively) {
  const std::string app = program(100, {"-Wl,-rpath," + farm_.library_path});
  const std::string whole = value_or_throw(read_file(farm_.libraries[7]));
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof(header));
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  std::memcpy(segments.data(), whole.data() + header.e_phoff, segments.size() * sizeof(Elf64_Phdr));
  const auto ends_as_natively_damaged = [&](std::size_t at, bool is_short) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x81);
    write_text_file(farm_.libraries[7], is_short ? damaged.substr(0, at) : damaged);
    return ends_as_natively(app);
  };
  const auto relro = std::ranges::find(segments, PT_GNU_RELRO, &Elf64_Phdr::p_type);
  ASSERT_NE(relro, segments.end());
  const std::size_t relro_size = header.e_phoff + (relro - segments.begin()) * sizeof(Elf64_Phdr) +
                                 offsetof(Elf64_Phdr, p_memsz);
  for (std::size_t at = 0; at < 0x400; at += 3) {
    // A wrong size protects a neighbour, too; which one depends on the lengths of paths.
    if (at - relro_size < sizeof(relro->p_memsz)) continue;
    EXPECT_TRUE(ends_as_natively_damaged(at, at % 2 == 0)) << at;
  }
  // The dynamic section and its strings.
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    for (std::size_t at = segment.p_offset; at < segment.p_offset + segment.p_filesz; at += 5)
      EXPECT_TRUE(ends_as_natively_damaged(at, false)) << at;
  }
}

TEST_F(UnmappedChild, a_library_by_two_names_counts_once) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const std::string app = program(400, {"-Wl,-rpath," + farm_.library_path});
  expect_native({app}, 1, {"LD_PRELOAD=" + (dir_ / "farm/lib/0030/libtls.so")});
}

TEST_F(UnmappedChild, lists_no_large_directory_and_not_the_current_one) {
  if (!strace_works()) HEDDLE_SKIP("strace cannot trace here");
  const std::string app = program(100, {"-Wl,-rpath," + farm_.library_path});
  std::filesystem::create_directory(dir_ / "large");
  std::filesystem::create_directory(dir_ / "here");
  for (int i = 0; i < 10000; ++i)
    value_or_throw(open_file(dir_ / ("large/" + std::to_string(i)), O_WRONLY | O_CREAT));
  const auto listings = [&](const std::string& list) {
    std::vector<std::string> argv = {
        "strace", "-o", dir_ / "log", "-e", "trace=getdents64,open,openat",
        "env",    "-C", dir_ / "here"};
    for (const auto& entry : world_.env()) argv.push_back(entry);
    argv.insert(argv.end(), {"LD_LIBRARY_PATH=" + list, app});
    EXPECT_EQ(run(argv).status, 6);
    return occurrences(value_or_throw(read_file(dir_ / "log")), "getdents64(");
  };
  const auto none = listings("/nonexistent");
  EXPECT_EQ(listings(":"), none);
  EXPECT_LT(listings(dir_ / "large"), none + 15) << "of 16 KiB, with 300 names or more";
}

TEST_F(AuditTls, a_library_with_damaged_tls_restarts_no_program_without_end) {
  const std::string lib =
      build_library({dir_ / "libtls.so", "__thread char tls[100]; char* f(void) { return tls; }"});
  std::string bytes = value_or_throw(read_file(lib));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    char* const at = bytes.data() + header.e_phoff + i * sizeof(Elf64_Phdr);
    Elf64_Phdr segment;
    std::memcpy(&segment, at, sizeof(segment));
    if (segment.p_type == PT_TLS) segment.p_memsz = 0xAAAAAAAAAAAAAAAB;
    std::memcpy(at, &segment, sizeof(segment));
  }
  write_text_file(lib, bytes);
  const auto app = build_program({dir_ / "app", "int main(void) { return 3; }"});
  const auto unknown = build_program({dir_ / "unknown", "int main(void) { return 4; }"});
  const GuidedWorld world = mapped(app);
  const std::string most = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=18446744073709551615";
  for (const auto& program : {app, unknown})
    for (const std::vector<std::string>& env :
         {std::vector<std::string>{"LD_PRELOAD=" + lib}, {most}, {most, "LD_PRELOAD=" + lib}}) {
      // Natively ld.so refuses such a library; an audited program starts if it is not used.
      const auto ours = world.run({program}, env);
      EXPECT_FALSE(ours.timed_out) << program << " " << env[0];
      EXPECT_LT(ours.status, 128) << program << " " << env[0];
    }
}

TEST_F(AuditTls, executable_using_a_library_s_tls_variable_starts) {
  // Initial-exec by the executable: no file carries DF_STATIC_TLS.
  const std::string lib = build_library(
      {dir_ / "lib/libvar.so", "__thread char var[20000] = {3};", {"-Wl,-soname,libvar.so"}});
  const std::string app =
      build_program({dir_ / "reach",
                     "extern __thread char var[]; int main(void) { return var[0]; }",
                     {lib, "-Wl,-rpath," + (dir_ / "lib")}});
  const GuidedWorld world = mapped();
  EXPECT_EQ(world.run({app}).status, 3);
}

TEST_F(AuditTls, overaligned_tls_starts_without_the_auditor) {
  const std::string lib =
      build_library({dir_ / "lib/libwide.so",
                     "static volatile __thread char b[256] __attribute__((aligned(256), "
                     "tls_model(\"initial-exec\"))) = {4};\n"
                     "int f(void) { return b[0]; }",
                     {"-Wl,-soname,libwide.so"}});
  const std::string app = build_program(
      {dir_ / "wide",
       "#include <stdio.h>\n#include <stdlib.h>\nint f(void);\n"
       "int main(void) { char* a = getenv(\"LD_AUDIT\"); printf(\"%d %s\\n\", f(), a); return 0; }",
       {lib, "-Wl,-rpath," + (dir_ / "lib")}});
  const std::string other = build_library(
      {dir_ / "plain.so", "unsigned la_version(unsigned v) { return 0; }", {"-nostdlib"}});
  const GuidedWorld world = mapped();
  EXPECT_EQ(world.run({app}).out, "4 (null)\n");
  // The user's own auditor stays, and its error too.
  RunOptions alone;
  alone.env = {"LD_AUDIT=" + other};
  const RunResult both = world.run({app}, {"LD_AUDIT=" + other + ":" + audit_library()});
  EXPECT_EQ(both.err, run({app}, alone).err);
}

TEST_F(AuditTls, overaligned_tls_used_by_other_files_starts_without_the_auditor) {
  // The defining library has no DF_STATIC_TLS; the executable or another library has the
  // relocation.
  const std::string wide = build_library({dir_ / "lib/libwide.so",
                                          "__thread char wide[256] __attribute__((aligned(256))) = "
                                          "{4};\nint own(void) { return wide[0]; }",
                                          {"-Wl,-soname,libwide.so"}});
  const std::string user = build_library(
      {dir_ / "lib/libuser.so",
       "extern __thread char wide[] __attribute__((tls_model(\"initial-exec\")));\n"
       "int f(void) { return wide[0]; }",
       {"-Wl,-soname,libuser.so", "-Wl,--no-as-needed", wide, "-Wl,-rpath," + (dir_ / "lib")}});
  const std::string print =
      "#include <stdio.h>\n#include <stdlib.h>\n"
      "int main(void) { char* a = getenv(\"LD_AUDIT\"); printf(\"%d %s\\n\", f(), a ? \"audited\" "
      ": \"alone\"); return 0; }";
  const std::string rpath = "-Wl,-rpath," + (dir_ / "lib");
  const std::string by_program = build_program(
      {dir_ / "by_program",
       "extern __thread char wide[]; static int f(void) { return wide[0]; }\n" + print,
       {wide, rpath}});
  const std::string by_library =
      build_program({dir_ / "by_library", "int f(void);\n" + print, {user, wide, rpath}});
  // libwide.so comes first.
  const std::string late = build_program(
      {dir_ / "late", "int f(void);\n" + print, {"-Wl,--no-as-needed", wide, user, rpath}});
  const std::string by_call =
      build_program({dir_ / "by_call",
                     "int own(void); static int f(void) { return own(); }\n" + print,
                     {wide, rpath, "-lm", "-Wl,--no-as-needed"}});
  GuidedWorld world(dir_ / "world");
  for (const auto& app : {by_program, by_library, late, by_call}) world.add_program(app);
  world.publish();
  for (const auto& app : {by_program, by_library, late}) {
    const RunResult result = world.run({app});
    EXPECT_EQ(result.out, "4 alone\n") << app << result.err;
  }
  EXPECT_EQ(world.run({by_call}).out, "4 audited\n") << "__tls_get_addr finds it anywhere";
}

}  // namespace
}  // namespace heddle::test
