// SPDX-License-Identifier: MIT
// Our own format: what the writer writes is what the reader reads. Whatever the bytes: an error
// with a line number or a trace, never a crash or a hang.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/diff/trace_support.hpp"

namespace heddle::trace {
namespace {

using testing::HasSubstr;

RunHeader full_header() {
  RunHeader h;
  h.run_id = "r-1";
  h.argv = {"printf", "[%s]", "a b", "", "tab\tnew\nline \"q\" \\"};
  h.cwd = "/home/x y";
  h.host = "node7";
  h.start_unix_ns = 1732214087012379646;
  h.rank = 3;
  h.map_id = "00ff";
  h.method = "namespace";
  h.scopes = {"/opt", "/s\tt"};
  h.notes = {"/run stays native: it holds listening sockets"};
  return h;
}

std::vector<Event> odd_events() {
  std::vector<Event> events;
  for (const std::string_view path :
       {"/plain", "/with space", "/tab\there", "/new\nline", "/back\\slash", "/bad\xff\xc3utf8",
        "/\xC3\xA4 \xE2\x82\xAC", "/quote\"'<b>&amp;", "/\x1b[31m\x7f", "\\xff", "# heddle", ""}) {
    const std::size_t i = events.size();
    events.push_back({.ns = i * 1000,
                      .pid = 10,
                      .tid = 11,
                      .op = static_cast<Op>(i),
                      .error = i % 2 == 0 ? 0 : ENOENT,
                      .path = path,
                      .exe = path,
                      .resolved = path,
                      .target = path});
  }
  events.push_back({.ns = ~std::uint64_t{0},
                    .pid = 2147483647,
                    .tid = 2147483647,
                    .op = Op::setxattr,
                    .error = 4095,  // no errno has this number
                    .path = "/p",
                    .flags = O_RDWR | O_CREAT | O_CLOEXEC | O_SYNC | O_TMPFILE | 0x40000000,
                    .mode = 04755,
                    .handle = 0,
                    .count = 1,
                    .bytes = INT64_MAX,
                    .offset = 0});
  return events;
}

class TraceFormat : public TraceFiles, public testing::WithParamInterface<Form> {
 protected:
  std::string odd(const std::string& name, bool footer = true) const {
    return trace(name, odd_events(), GetParam(), full_header(), footer);
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, TraceFormat, testing::Values(Form::text, Form::json_lines),
                         [](const auto& p) { return p.param == Form::text ? "text" : "json"; });

}  // namespace

TEST_P(TraceFormat, every_field_comes_back_whatever_its_bytes) {
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

TEST_P(TraceFormat, without_a_footer_the_run_is_readable_and_incomplete) {
  const auto runs = runs_of(odd("a", false));
  EXPECT_EQ(runs.at(0).ending, Ending::no_footer);
  EXPECT_FALSE(runs[0].complete());
  EXPECT_EQ(runs[0].events.size(), odd_events().size());
}

TEST_P(TraceFormat, a_line_that_is_cut_is_refused_with_its_number_or_dropped_on_request) {
  const std::string whole = content(odd("a", false));
  const auto lines = std::count(whole.begin(), whole.end(), '\n');
  const auto cut = file("b", whole.substr(0, whole.size() - 5));
  EXPECT_THAT(error_of(cut), HasSubstr("b:" + std::to_string(lines) + ": the trace is cut"));
  const auto runs = runs_of(cut, {.accept_cut_line = true});
  EXPECT_EQ(runs.at(0).events.size(), odd_events().size() - 1);
}

TEST_P(TraceFormat, every_cut_is_an_error_or_an_incomplete_run) {
  const std::string whole = content(odd("a"));
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string message = error_of(file("cut", whole.substr(0, n)));
    EXPECT_THAT(message.empty() ? "cut:" : message, HasSubstr("cut:"));
    if (message.empty()) {
      EXPECT_EQ(runs_of(path("cut")).at(0).ending, Ending::no_footer) << n;
    }
  }
}

TEST_P(TraceFormat, an_event_lost_or_added_by_hand_contradicts_the_footer) {
  std::string text = content(odd("a"));
  const std::size_t at = text.find(GetParam() == Form::text ? "\n2000\t" : "\n{\"ns\":2000,");
  text.erase(at, text.find('\n', at + 1) - at);
  EXPECT_THAT(error_of(file("b", text)), HasSubstr("the footer's counts"));
}

TEST_P(TraceFormat, two_runs_glued_together_stay_two_runs) {
  const std::string one = content(odd("a", false)), two = content(odd("b"));
  const auto runs = runs_of(file("c", one + two + two));
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].ending, Ending::no_footer);
  EXPECT_EQ(runs[1].ending, Ending::footer);
  for (const auto& run : runs) EXPECT_EQ(run.events.size(), odd_events().size());
}

using TraceReader = TraceFiles;

TEST_F(TraceReader, tells_what_is_no_trace_at_its_line) {
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

TEST_F(TraceReader, names_each_wrong_field_with_its_line) {
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

TEST_F(TraceWriterTest, an_older_trace_is_replaced_not_appended_to) {
  for (int i = 0; i < 2; ++i) trace("a", {odd_events()[0]});
  EXPECT_EQ(runs_of(path("a")).size(), 1U);
}

TEST_F(TraceWriterTest, a_file_that_cannot_be_written_is_an_error_at_once) {
  const auto writer = TraceWriter::create("/dev/full", RunHeader{}, Form::text);
  ASSERT_FALSE(writer.has_value());
  EXPECT_EQ(writer.error().code(), ENOSPC);
  const auto nowhere = TraceWriter::create(path("no/such/a.txt"), RunHeader{}, Form::text);
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_THAT(nowhere.error().message(), HasSubstr("no/such/a.txt"));
}

TEST_F(TraceWriterTest, a_disk_full_midway_leaves_whole_lines_that_are_read_as_incomplete) {
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

TEST_F(TraceWriterTest, what_was_flushed_can_be_read_while_the_run_goes_on) {
  auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, Form::text));
  writer.append(odd_events()[0]);
  writer.flush();
  EXPECT_EQ(runs_of(path("a")).at(0).events.size(), 1U);
}

}  // namespace heddle::trace
