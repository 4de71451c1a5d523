// SPDX-License-Identifier: MIT
#include <signal.h>

#include "tests/elf/elf_fixture.hpp"

namespace heddle {
namespace {

int self_test(const std::string& worker, const char* call) {
  auto child = value_or_throw(spawn(worker, {"elf-worker", "--self-test", call}));
  return value_or_throw(child.wait());
}

class Sandbox : public ElfTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Sandbox, kills_a_worker_that_makes_this_call) {
  EXPECT_EQ(self_test(env("ELF_WORKER"), GetParam()), 128 + SIGSYS);
}

INSTANTIATE_TEST_SUITE_P(Calls, Sandbox,
                         ::testing::Values("open", "socket", "exec", "fork", "write", "unlink",
                                           "kill", "mmap_code", "mmap_file"),
                         [](const auto& p) { return std::string(p.param); });

TEST_F(Sandbox, alone_does_not_kill) { EXPECT_EQ(self_test(env("ELF_WORKER"), "none"), 0); }

TEST_F(Sandbox, lets_a_failed_assertion_be_told_as_such) {
  EXPECT_EQ(self_test(env("ELF_WORKER"), "abort"), 128 + SIGABRT);
}

TEST_F(Sandbox, ends_a_loop_by_cpu_time_and_a_hunger_for_memory_by_an_error) {
  EXPECT_EQ(self_test(env("ELF_WORKER"), "memory"), 0);
  EXPECT_EQ(self_test(env("ELF_WORKER"), "loop"), 128 + SIGXCPU);
}

TEST_F(Sandbox, a_worker_started_by_hand_says_so) {
  auto child = value_or_throw(spawn(env("ELF_WORKER"), {"elf-worker"}));
  EXPECT_EQ(value_or_throw(child.wait()), 2);
}

}  // namespace
}  // namespace heddle
