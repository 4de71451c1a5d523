// SPDX-License-Identifier: MIT
// heddle's trace format: the reader returns what the writer writes, and any other bytes are an
// error with a line number.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/diff/sample_trace.hpp"
#include "tests/diff/trace_support.hpp"

namespace heddle::trace {
namespace {

using testing::HasSubstr;

class TraceFormat : public TraceFiles, public testing::WithParamInterface<Form> {
 protected:
  std::string odd(const std::string& name, bool footer = true) const {
    return trace(name, odd_events(), GetParam(), full_header(), footer);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, TraceFormat, testing::Values(Form::text, Form::json_lines),
                         [](const auto& p) { return p.param == Form::text ? "text" : "json"; });

}  // namespace

TEST_P(TraceFormat, round_trips_every_field_with_any_bytes) {
  const std::string lines = content(odd("a"));
  const auto other_lines = GetParam() == Form::text ? 14U : 2U;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), other_lines + odd_events().size());
  RunHeader header = full_header();
  if (GetParam() == Form::json_lines) header.format = Format::heddle_json;
  const auto runs = runs_of(path("a"));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].header, header);
  ASSERT_EQ(runs[0].events.size(), odd_events().size());
  for (std::size_t i = 0; i < runs[0].events.size(); ++i)
    EXPECT_TRUE(static_cast<const Event&>(runs[0].events[i]) == odd_events()[i]) << i;
  RunFooter footer{.complete = true, .exit_status = 137, .end_ns = 99};
  for (const Event& e : odd_events()) {
    ++footer.events;
    footer.failed += e.error != 0;
    ++footer.by_op[static_cast<std::size_t>(e.op)];
  }
  EXPECT_TRUE(runs[0].footer == footer);
  EXPECT_TRUE(runs[0].complete());
}

TEST_P(TraceFormat, reads_a_run_without_footer_as_incomplete) {
  const auto runs = runs_of(odd("a", false));
  EXPECT_EQ(runs.at(0).ending, Ending::no_footer);
  EXPECT_FALSE(runs[0].complete());
  EXPECT_EQ(runs[0].events.size(), odd_events().size());
}

TEST_P(TraceFormat, refuses_a_truncated_line_or_drops_it_on_request) {
  const std::string whole = content(odd("a", false));
  const auto lines = std::count(whole.begin(), whole.end(), '\n');
  const auto cut = file("b", whole.substr(0, whole.size() - 5));
  EXPECT_THAT(error_of(cut), HasSubstr("b:" + std::to_string(lines) + ": the trace is cut"));
  const auto runs = runs_of(cut, {.accept_cut_line = true});
  EXPECT_EQ(runs.at(0).events.size(), odd_events().size() - 1);
}

TEST_P(TraceFormat, truncated_anywhere_is_an_error_or_an_incomplete_run) {
  const std::string whole = content(odd("a"));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string message = error_of(file("cut", whole.substr(0, n)));
    EXPECT_THAT(message.empty() ? "cut:" : message, HasSubstr("cut:"));
    if (message.empty()) {
      EXPECT_EQ(runs_of(path("cut")).at(0).ending, Ending::no_footer) << n;
    }
  }
}

TEST_P(TraceFormat, detects_a_removed_event_by_the_footer) {
  std::string text = content(odd("a"));
  const std::size_t at = text.find(GetParam() == Form::text ? "\n2000\t" : "\n{\"ns\":2000,");
  text.erase(at, text.find('\n', at + 1) - at);
  EXPECT_THAT(error_of(file("b", text)), HasSubstr("the footer's counts"));
}

TEST_P(TraceFormat, reads_concatenated_runs_separately) {
  const std::string one = content(odd("a", false)), two = content(odd("b"));
  const auto runs = runs_of(file("c", one + two + two));
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].ending, Ending::no_footer);
  EXPECT_EQ(runs[1].ending, Ending::footer);
  for (const auto& run : runs) EXPECT_EQ(run.events.size(), odd_events().size());
}

using TraceReader = TraceFiles;

TEST_F(TraceReader, refuses_other_files_with_the_line) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "a:1: not a trace: the file is empty"},
      {"hello\n", "a:1: not a trace"},
      {"\n", "a:1: not a trace"},
      {std::string("\x7f"
                   "ELF\2\1\1\0\0\0",
                   10),
       "binary data"},
      {"{\"version\":\"0.0.1\"}\n", "a:1: not a trace"},
      {"#heddle-trace\t2\n", "a:1: unknown trace version: 2"},
      {"{\"heddle_trace\":2}\n", "a:1: unknown trace version: 2"},
      {std::string(600'000, 'x'), "a:1: line too long"},
      {"#heddle-trace\t1\n#frob\tx\n", "a:2: damaged trace"},
      {"{\"heddle_trace\":1,\"frob\":1}\n", "a:1: damaged trace"},
      {"{\"heddle_trace\":1}\n{\"ns\":1}\n", "a:2: damaged trace: a field is missing"}};
  for (const auto& [bytes, message] : cases)
    EXPECT_THAT(error_of(file("a", bytes)), HasSubstr(message));
  EXPECT_THAT(error_of(path("none")), HasSubstr("No such file"));
  EXPECT_THAT(error_of(path("")), HasSubstr("Is a directory"));
}

TEST_F(TraceReader, names_each_invalid_field_with_its_line) {
  const std::string head = "#heddle-trace\t1\n#events\tns\n1\t2\t3\topen\tOK\t/a\n";
  const std::pair<const char*, const char*> cases[] = {
      {"x\t2\t3\topen\tOK\t/a\n", "the time"},
      {"-1\t2\t3\topen\tOK\t/a\n", "the time"},
      {"1\t\t3\topen\tOK\t/a\n", "the pid"},
      {"1\t2\t99999999999\topen\tOK\t/a\n", "the tid"},
      {"1\t2\t3\tfrob\tOK\t/a\n", "the operation"},
      {"1\t2\t3\topen\tENOWAY\t/a\n", "the result"},
      {"1\t2\t3\topen\tOK\n", "no path"},
      {"1\t2\t3\topen\tOK\t/a\\q\n", "the path's escapes"},
      {"1\t2\t3\topen\tOK\t/a\tnew=1\n", "a detail this version does not know"},
      {"1\t2\t3\topen\tOK\t/a\tbytes=many\n", "a detail's value"},
      {"#note\tlate\n", "the time"}};
  for (const auto& [line, what] : cases)
    EXPECT_THAT(error_of(file("a", head + line)),
                HasSubstr(std::string("a:4: not an event: ") + what));
  for (const char* fields : {R"({"ns":1,"path":12345678901234567)", R"({"ns":"1","path":"/a")",
                             R"({"ns":1,"path":null)", R"({"escaped":["tid"],"ns":1,"path":"/a")"})
    EXPECT_THAT(error_of(file("a", "{\"heddle_trace\":1}\n" + std::string(fields) +
                                       R"(,"op":"open","pid":1,"result":"OK","tid":1})"
                                       "\n")),
                HasSubstr("a:2: damaged trace"))
        << fields;
}

using TraceWriterTest = TraceFiles;

TEST_F(TraceWriterTest, replaces_an_older_trace) {
  for (int i = 0; i < 2; ++i) trace("a", {odd_events()[0]});
  EXPECT_EQ(runs_of(path("a")).size(), 1U);
}

TEST_F(TraceWriterTest, reports_an_unwritable_file_at_once) {
  const auto writer = TraceWriter::create("/dev/full", RunHeader{}, Form::text);
  ASSERT_FALSE(writer.has_value());
  EXPECT_EQ(writer.error().code(), ENOSPC);
  const auto nowhere = TraceWriter::create(path("no/such/a.txt"), RunHeader{}, Form::text);
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().code(), ENOENT);
}

TEST_F(TraceWriterTest, leaves_whole_lines_on_a_full_disk) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{100'000, old.rlim_max};
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);  // then write(2) fails with EFBIG
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, Form::text));
    for (int i = 0; i < 10'000; ++i) writer.append(odd_events()[1]);
    EXPECT_FALSE(writer.finish(true, 0, 1).has_value());
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_action);
  const auto runs = runs_of(path("a"));
  EXPECT_EQ(runs.at(0).ending, Ending::no_footer);
  EXPECT_GT(content(path("a")).size(), 60'000U);
}

TEST_F(TraceWriterTest, flushes_events_that_can_be_read_during_the_run) {
  auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, Form::text));
  writer.append(odd_events()[0]);
  writer.flush();
  EXPECT_EQ(runs_of(path("a")).at(0).events.size(), 1U);
}

}  // namespace heddle::trace
