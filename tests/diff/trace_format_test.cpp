// SPDX-License-Identifier: MIT
// Our own format: what the writer writes is what the reader reads.
#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>

#include "record/trace/trace_writer.hpp"
#include "tests/diff/trace_support.hpp"

namespace heddle::trace {
namespace {

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
    Event e;
    e.ns = events.size() * 1000;
    e.pid = 10;
    e.tid = 11;
    e.op = static_cast<Op>(events.size());
    e.error = events.size() % 2 == 0 ? 0 : ENOENT;
    e.path = e.exe = e.resolved = e.target = path;
    events.push_back(e);
  }
  Event e;
  e.ns = ~std::uint64_t{0};
  e.pid = e.tid = 2147483647;
  e.op = Op::setxattr;
  e.error = 4095;  // no errno has this number
  e.path = "/p";
  e.flags = O_RDWR | O_CREAT | O_CLOEXEC | O_SYNC | O_TMPFILE | 0x40000000;
  e.mode = 04755;
  e.handle = 0;
  e.count = 1;
  e.bytes = INT64_MAX;
  e.offset = 0;
  events.push_back(e);
  return events;
}

class TraceFormat : public TraceFiles, public testing::WithParamInterface<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, TraceFormat, testing::Values(Form::text, Form::json_lines),
                         [](const auto& p) { return p.param == Form::text ? "text" : "json"; });

}  // namespace

TEST_P(TraceFormat, every_field_comes_back_whatever_its_bytes) {
  const std::string out = path("run.txt");
  RunHeader header = full_header();
  auto writer = value_or_throw(TraceWriter::create(out, header, GetParam()));
  for (const Event& e : odd_events()) ASSERT_TRUE(writer.append(e));
  const RunFooter written = writer.counts();
  ASSERT_TRUE(writer.flush());
  const std::string lines = content(out);
  const auto header_lines = GetParam() == Form::text ? 13U : 1U;
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), header_lines + odd_events().size());
  ASSERT_TRUE(writer.finish(true, 137, 99).has_value());

  const auto runs = runs_of(out);
  ASSERT_EQ(runs.size(), 1U);
  if (GetParam() == Form::json_lines) header.format = Format::heddle_json;
  EXPECT_EQ(runs[0].header, header);
  ASSERT_EQ(runs[0].events.size(), odd_events().size());
  for (std::size_t i = 0; i < runs[0].events.size(); ++i)
    EXPECT_EQ(runs[0].events[i].view(), odd_events()[i]) << i;
  EXPECT_EQ(runs[0].ending, Ending::footer);
  EXPECT_TRUE(runs[0].footer.complete);
  EXPECT_EQ(runs[0].footer.exit_status, 137);
  EXPECT_EQ(runs[0].footer.end_ns, 99U);
  EXPECT_EQ(runs[0].footer.by_op, written.by_op);
  EXPECT_EQ(runs[0].footer.events, odd_events().size());
}

TEST_P(TraceFormat, without_a_footer_the_run_is_readable_and_incomplete) {
  {
    auto writer = value_or_throw(TraceWriter::create(path("a"), full_header(), GetParam()));
    for (const Event& e : odd_events()) writer.append(e);
  }
  const auto runs = runs_of(path("a"));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].ending, Ending::no_footer);
  EXPECT_FALSE(runs[0].footer.complete);
  EXPECT_EQ(runs[0].events.size(), odd_events().size());
}

TEST_P(TraceFormat, a_line_that_is_cut_is_refused_with_its_number_or_dropped_on_request) {
  {
    auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, GetParam()));
    for (const Event& e : odd_events()) writer.append(e);
  }
  const std::string whole = content(path("a"));
  file("b", whole.substr(0, whole.size() - 5));
  const auto lines = std::count(whole.begin(), whole.end(), '\n');
  EXPECT_NE(error_of(path("b")).find("b:" + std::to_string(lines) + ": the trace is cut"),
            std::string::npos)
      << error_of(path("b"));
  const auto runs = runs_of(path("b"), {.accept_cut_line = true});
  EXPECT_EQ(runs.at(0).events.size(), odd_events().size() - 1);
}

TEST_P(TraceFormat, an_event_lost_or_added_by_hand_contradicts_the_footer) {
  auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, GetParam()));
  for (const Event& e : odd_events()) writer.append(e);
  ASSERT_TRUE(writer.finish(true, 0, 1).has_value());
  std::string text = content(path("a"));
  const std::size_t at = text.find(GetParam() == Form::text ? "\n2000\t" : "\n{\"ns\":2000,");
  text.erase(at, text.find('\n', at + 1) - at);
  EXPECT_NE(error_of(file("b", text)).find("the footer's counts"), std::string::npos);
}

TEST_P(TraceFormat, two_runs_glued_together_stay_two_runs) {
  for (const char* name : {"a", "b"}) {
    auto writer = value_or_throw(TraceWriter::create(path(name), full_header(), GetParam()));
    for (const Event& e : odd_events()) writer.append(e);
    if (*name == 'b') {
      ASSERT_TRUE(writer.finish(true, 0, 1).has_value());
    }
  }
  const auto runs =
      runs_of(file("c", content(path("a")) + content(path("b")) + content(path("b"))));
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].ending, Ending::no_footer);
  EXPECT_EQ(runs[1].ending, Ending::footer);
  for (const auto& run : runs) EXPECT_EQ(run.events.size(), odd_events().size());
}

using TraceWriterTest = TraceFiles;

TEST_F(TraceWriterTest, an_older_trace_is_replaced_not_appended_to) {
  for (int i = 0; i < 2; ++i) {
    auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, Form::text));
    writer.append(odd_events()[0]);
    ASSERT_TRUE(writer.finish(true, 0, 1).has_value());
  }
  EXPECT_EQ(runs_of(path("a")).size(), 1U);
}

TEST_F(TraceWriterTest, a_disk_full_at_the_start_is_an_error_at_once) {
  const auto writer = TraceWriter::create("/dev/full", RunHeader{}, Form::text);
  ASSERT_FALSE(writer.has_value());
  EXPECT_EQ(writer.error().code(), ENOSPC);
}

TEST_F(TraceWriterTest, a_disk_full_midway_leaves_whole_lines_that_are_read_as_incomplete) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{100'000, old.rlim_max};
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);  // then write(2) fails with EFBIG
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::size_t taken = 0;
  {
    auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, Form::text));
    for (int i = 0; i < 10'000; ++i) taken += writer.append(odd_events()[1]);
    EXPECT_NE(writer.failure(), nullptr);
    EXPECT_FALSE(writer.finish(true, 0, 1).has_value());
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_action);
  EXPECT_LT(taken, 10'000U);
  const auto runs = runs_of(path("a"));
  EXPECT_EQ(runs.at(0).ending, Ending::no_footer);
  EXPECT_GT(content(path("a")).size(), 99'900U);
}

TEST_F(TraceWriterTest, what_was_flushed_can_be_read_while_the_run_goes_on) {
  auto writer = value_or_throw(TraceWriter::create(path("a"), RunHeader{}, Form::text));
  writer.append(odd_events()[0]);
  ASSERT_TRUE(writer.flush());
  EXPECT_EQ(runs_of(path("a")).at(0).events.size(), 1U);
}

TEST_F(TraceWriterTest, a_directory_that_is_missing_is_an_error_that_names_the_file) {
  const auto writer = TraceWriter::create(path("no/such/a.txt"), RunHeader{}, Form::text);
  ASSERT_FALSE(writer.has_value());
  EXPECT_NE(writer.error().message().find("no/such/a.txt"), std::string::npos);
}

}  // namespace heddle::trace
