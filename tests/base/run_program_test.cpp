// SPDX-License-Identifier: MIT
#include "base/run_program.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "base/try.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Result<Output> run_shell(const std::string& script, const ReadOptions& options) {
  return run_and_read("/bin/sh", {"sh", "-c", script}, options);
}
int code_of(const Result<Output>& result) { return result ? 0 : result.error().code(); }

TEST(RunProgram, has_its_output_messages_and_status) {
  const auto done = run_shell("cat; echo out; echo err >&2; exit 7",
                              {.limit = seconds(20), .messages = Messages::collected});
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(done->out, "out\n");
  EXPECT_EQ(done->err, "err\n");
  EXPECT_EQ(done->status, 7);
  const auto killed = run_shell("kill -9 $$", {.limit = seconds(20)});
  ASSERT_TRUE(killed) << killed.error().message();
  EXPECT_EQ(killed->status, 128 + SIGKILL);
  EXPECT_EQ(code_of(run_and_read("/nonexistent", {"x"}, {.limit = seconds(20)})), ENOENT);
}

TEST(RunProgram, has_the_descriptors_and_environment_that_it_is_given) {
  const auto input = value_or_throw(memory_file("text"));
  const auto output = value_or_throw(memory_file(""));
  const auto done = run_shell("cat; echo $NAME",
                              {.limit = seconds(20),
                               .fds = {{input.get(), STDIN_FILENO}, {output.get(), STDOUT_FILENO}},
                               .environment = {{"NAME=value"}}});
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(done->out, "");
  ASSERT_EQ(::lseek(output.get(), 0, SEEK_SET), 0);
  EXPECT_EQ(value_or_throw(read_all(output.get(), "output")), "textvalue\n");
}

TEST(RunProgram, that_never_ends_is_stopped_at_its_limit) {
  for (const char* script :
       {"exec sleep 1000", "exec >&-; exec sleep 1000", "trap '' TERM; exec sleep 1000"}) {
    EXPECT_EQ(code_of(run_shell(script, {.limit = milliseconds(200)})), ETIMEDOUT) << script;
    // Reaped, or killed and a zombie by now.
    EXPECT_TRUE(::waitpid(-1, nullptr, 0) > 0 || errno == ECHILD);
  }
}

TEST(RunProgram, leaves_processes_that_hold_its_output) {
  const auto done = run_shell("sleep 1000 & echo $!", {.limit = seconds(60)});
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(::kill(std::stoi(done->out), SIGKILL), 0);
}

TEST(RunProgram, that_prints_too_much_or_has_no_reader_is_killed) {
  EXPECT_EQ(code_of(run_shell("exec yes", {.limit = seconds(60), .most_bytes = 1U << 20})), EFBIG);
  EXPECT_EQ(code_of(run_shell(
                "exec yes >&2",
                {.limit = seconds(60), .most_bytes = 1U << 20, .messages = Messages::collected})),
            EFBIG);
  Pipe pipe = value_or_throw(make_pipe());
  pipe.read_end.reset();
  EXPECT_EQ(
      code_of(run_shell("exec sleep 1000", {.limit = kNoLimit, .reader = pipe.write_end.get()})),
      ECANCELED);
}

}  // namespace
}  // namespace heddle
