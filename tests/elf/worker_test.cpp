// SPDX-License-Identifier: MIT
#include "resolver/elf/worker_protocol.hpp"

#include <elf.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.hpp"
#include "base/sandbox/privileges.hpp"
#include "tests/elf/elf_fixture.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle {
namespace {

using ::testing::HasSubstr;

using Pool = ElfTest;

TEST_F(Pool, refuses_files_that_are_not_regular_at_once) {
  CachedFacts pool(options());
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  const auto code = [&](const std::string& p) {
    const auto facts = pool.facts(p, FactsDetail::loader);
    EXPECT_FALSE(facts) << p;
    if (facts) return 0;
    EXPECT_THAT(facts.error().message(), HasSubstr(p));
    return facts.error().code();
  };
  EXPECT_EQ(code(path("fifo")), ENOEXEC);
  EXPECT_EQ(code("/dev/null"), ENOEXEC);
  EXPECT_EQ(code(dir_.path()), EISDIR);
  EXPECT_EQ(code(path("missing")), ENOENT);
  EXPECT_EQ(code(write("text", "INPUT(-lc)\n")), ENOEXEC);
  EXPECT_EQ(code(write("empty", "")), ENOEXEC);
  EXPECT_EQ(code(write("short", "\177ELF")), ENOEXEC);
  EXPECT_EQ(code(write("cut", std::string_view("\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\3", 17))), EBADMSG);
  EXPECT_EQ(pool.counters().crashed, 0U);
}

TEST_F(Pool, reads_partial_facts_of_other_machines_and_types) {
  const auto whole = value_or_throw(read_file(build("liba.so", "int a;")));
  CachedFacts pool(options());
  const auto facts_of = [&](const char* name, const std::function<void(Elf64_Ehdr&)>& change) {
    auto bytes = whole;
    change(*reinterpret_cast<Elf64_Ehdr*>(bytes.data()));
    return pool.facts(write(name, bytes), FactsDetail::loader);
  };
  const auto arm = facts_of("arm", [](auto& h) { h.e_machine = EM_AARCH64; });
  ASSERT_TRUE(arm);
  EXPECT_EQ(arm->elf.machine, EM_AARCH64);
  const auto core = facts_of("core", [](auto& h) { h.e_type = ET_CORE; });
  ASSERT_TRUE(core);
  EXPECT_EQ(core->elf.type, ET_CORE);
  EXPECT_FALSE(core->elf.dynamic);
  EXPECT_FALSE(facts_of("class", [](auto& h) { h.e_ident[EI_CLASS] = 7; }));
  EXPECT_FALSE(facts_of("data", [](auto& h) { h.e_ident[EI_DATA] = 0; }));

  const auto object =
      value_or_throw(pool.facts(build("plain.o", "int x;", {"-c"}), FactsDetail::symbols));
  EXPECT_EQ(object.elf.type, ET_REL);
  EXPECT_FALSE(object.elf.dynamic);
  const auto narrow =
      pool.facts(build("lib32.so", "",
                       {"-shared", "-nostdlib", "-Wl,-m,elf_i386", "-Wl,--format=binary",
                        write("blob", "x"), "-Wl,--format=default", "-m32"}),
                 FactsDetail::loader);
  ASSERT_TRUE(narrow) << narrow.error().message();
  EXPECT_EQ(narrow->elf.elf_class, ELFCLASS32);
  EXPECT_EQ(narrow->elf.machine, EM_386);
}

TEST_F(Pool, reads_prefetched_files_once) {
  const auto library = build("liba.so", "int a;");
  std::vector<std::string> paths;
  for (int i = 0; i < 100; ++i) {
    paths.push_back(path("link" + std::to_string(i)));
    ASSERT_EQ(::symlink(library.c_str(), paths.back().c_str()), 0);
  }
  paths.push_back(path("missing"));
  CachedFacts pool(options());
  pool.prefetch(paths, FactsDetail::loader);
  paths.pop_back();
  for (const auto& p : paths) EXPECT_TRUE(pool.facts(p, FactsDetail::loader)) << p;
  EXPECT_FALSE(pool.facts(path("missing"), FactsDetail::loader));
  EXPECT_EQ(pool.counters().parsed, 100U);
  // Nor again for a name that comes later, but for what it is then.
  ASSERT_EQ(::symlink(library.c_str(), path("later").c_str()), 0);
  EXPECT_TRUE(pool.facts(path("later"), FactsDetail::loader));
  EXPECT_EQ(pool.counters().parsed, 100U);
  std::ofstream(library, std::ios::app) << "more";
  EXPECT_TRUE(pool.facts(path("later"), FactsDetail::loader));
  EXPECT_EQ(pool.counters().parsed, 101U);
}

TEST_F(Pool, remembers_no_long_strings_of_an_image) {
  const auto library =
      build("libb.so", "int b;", {"-shared", "-fPIC", "-Wl,-rpath,/" + std::string(70'000, 'x')});
  CachedFacts pool(options());
  for (unsigned reads = 1; reads <= 2; ++reads) {
    EXPECT_TRUE(pool.facts(library, FactsDetail::loader));
    EXPECT_EQ(pool.counters().parsed, reads);
  }
}

TEST_F(Pool, reports_a_worker_that_cannot_start) {
  for (const auto& worker : {path("no worker"), std::string("/bin/false")}) {
    auto with = options();
    with.pool.worker_path = worker;
    CachedFacts pool(with);
    pool.prefetch({"/bin/true"}, FactsDetail::loader);
    const auto facts = pool.facts("/bin/sh", FactsDetail::loader);
    ASSERT_FALSE(facts);
    EXPECT_EQ(facts.error().code(), EPROTO);
    EXPECT_THAT(facts.error().message(), HasSubstr("/bin/sh"));
    EXPECT_THAT(facts.error().message(), HasSubstr(worker));
  }
}

TEST_F(Pool, reads_nothing_without_seccomp) {
  const auto with = options();
  EXPECT_EQ(in_a_child([&] {
              // As in some containers: both ways to install a filter fail.
              const scmp_filter_ctx filter = ::seccomp_init(SCMP_ACT_ALLOW);
              ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(seccomp), 0);
              ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prctl), 1,
                                 SCMP_A0(SCMP_CMP_EQ, PR_SET_SECCOMP));
              if (::seccomp_load(filter) != 0) return 3;
              CachedFacts pool(with);
              const auto facts = pool.facts("/bin/sh", FactsDetail::loader);
              if (facts || facts.error().code() != EPROTO) return 1;
              return facts.error().message().find("seccomp") != std::string::npos ? 0 : 2;
            }),
            0);
}

/// As root of a container with the host's PID namespace and without capabilities.
TEST_F(Pool, gives_uid_0_without_capabilities_no_access_by_proc) {
  if (::geteuid() != 0) HEDDLE_SKIP("needs root's workers");
  CachedFacts pool(options());
  ASSERT_TRUE(pool.facts("/bin/true", FactsDetail::loader));
  const auto children =
      value_or_throw(read_file("/proc/self/task/" + std::to_string(::gettid()) + "/children"));
  const pid_t worker = std::atoi(children.c_str());
  ASSERT_GT(worker, 0) << children;
  const auto root = "/proc/" + std::to_string(worker) + "/root/etc";
  EXPECT_EQ(::access(root.c_str(), F_OK), 0);
  EXPECT_EQ(in_a_child([&] {
              if (!drop_capabilities("test")) return 3;
              return ::access(root.c_str(), F_OK) == 0 ? 1 : errno == EACCES ? 0 : 2;
            }),
            0);
}

TEST_F(Pool, loses_one_file_by_a_failing_worker) {
  auto with = options("FAKE_WORKER");
  with.pool.time_limit = std::chrono::milliseconds(300);
  for (const std::string what : {"crash", "hang", "lie", "flood", "exit"}) {
    SCOPED_TRACE(what);
    CachedFacts pool(with);
    std::vector<std::string> paths;
    for (int i = 0; i < 40; ++i)
      paths.push_back(write(what + std::to_string(i), i == 13 ? what : "good"));
    pool.prefetch(paths, FactsDetail::loader);
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const auto facts = pool.facts(paths[i], FactsDetail::loader);
      ASSERT_EQ(facts.has_value(), i != 13) << paths[i];
      if (i != 13) continue;
      EXPECT_EQ(facts.error().code(), EBADMSG);
      EXPECT_THAT(facts.error().message(), HasSubstr(paths[i]));
    }
    EXPECT_EQ(pool.counters().crashed, what == "lie" ? 0U : 1U);
    EXPECT_EQ(pool.counters().parsed, 39U);
  }
}

TEST_F(Pool, rereads_or_refuses_a_file_that_changes) {
  CachedFacts pool(options("FAKE_WORKER"));
  EXPECT_TRUE(pool.facts(write("g", "touch once"), FactsDetail::loader));
  const auto facts = pool.facts(write("f", "touch"), FactsDetail::loader);
  ASSERT_FALSE(facts);
  EXPECT_EQ(facts.error().code(), EBADMSG);
}

/// The exit status of a process that calls `body` in the worker's sandbox.
template <class Body>
int in_the_sandbox(const Body& body) {
  return in_a_child([&] {
    if (!enter_sandbox(kWorkerSocket, std::uint64_t{512} << 20)) return 99;
    body();
    return 0;
  });
}

struct Call {
  const char* name;
  void (*make)();
};

class Sandbox : public ElfTest, public ::testing::WithParamInterface<Call> {};

TEST_P(Sandbox, kills_a_worker_that_makes_the_call) {
  EXPECT_EQ(in_the_sandbox(GetParam().make), 128 + SIGSYS);
}

const Call kCalls[] = {
    {"open", [] { (void)::open("/dev/null", O_RDONLY); }},
    {"socket", [] { (void)::socket(AF_UNIX, SOCK_STREAM, 0); }},
    {"exec", [] { (void)::execl("/bin/true", "true", nullptr); }},
    {"fork", [] { (void)::fork(); }},
    {"write", [] { (void)!::write(STDOUT_FILENO, "x", 1); }},
    {"unlink", [] { (void)::unlink("/nonexistent"); }},
    {"kill", [] { (void)::kill(::getppid(), 0); }},
    {"mmap_code",
     [] {
       (void)::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
     }},
    {"mmap_file", [] { (void)::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, STDIN_FILENO, 0); }}};
INSTANTIATE_TEST_SUITE_P(Calls, Sandbox, ::testing::ValuesIn(kCalls),
                         [](const auto& p) { return std::string(p.param.name); });

TEST_F(Sandbox, lets_a_failed_assertion_show_as_SIGABRT) {
  EXPECT_EQ(in_the_sandbox([] { ::abort(); }), 128 + SIGABRT);
}

TEST_F(Sandbox, ends_a_loop_by_cpu_time_and_limits_memory) {
  EXPECT_EQ(in_the_sandbox([] {
              void* volatile too_much = ::malloc(std::size_t{1} << 30);
              if (too_much != nullptr) ::_exit(1);
            }),
            0);
  EXPECT_EQ(in_the_sandbox([] {
              allow_cpu_time(0);
              for (;;) __asm__ volatile("");  // a loop without side effects is undefined
            }),
            128 + SIGXCPU);
}

TEST_F(Sandbox, refuses_a_worker_started_by_hand) {
  auto child = value_or_throw(spawn(env("ELF_WORKER"), {"elf-worker"}));
  EXPECT_EQ(value_or_throw(child.wait()), 2);
}

}  // namespace
}  // namespace heddle
