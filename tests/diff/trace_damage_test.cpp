// SPDX-License-Identifier: MIT
// Whatever the bytes: an error with a line number or a trace, never a crash or a hang.
#include "record/trace/trace_writer.hpp"
#include "tests/diff/trace_support.hpp"

namespace heddle::trace {
namespace {

class TraceDamage : public TraceFiles {
 protected:
  std::string sample(Form form) {
    auto writer = value_or_throw(TraceWriter::create(path("sample"), header(), form));
    for (int i = 0; i < 6; ++i) {
      Event e;
      e.ns = static_cast<std::uint64_t>(i) * 10;
      e.pid = e.tid = 7;
      e.op = i == 0 ? Op::exec : Op::open;
      e.error = i == 3 ? ENOENT : 0;
      e.path = i == 2 ? "/odd\tna\xffme\n" : "/usr/lib/libx.so.1";
      e.exe = "/usr/bin/app";
      e.flags = 0;
      writer.append(e);
    }
    EXPECT_TRUE(writer.finish(true, 0, 60).has_value());
    return content(path("sample"));
  }
  static RunHeader header() {
    RunHeader h;
    h.run_id = "id";
    h.argv = {"app", "x y"};
    h.rank = 1;
    return h;
  }
};

}  // namespace

TEST_F(TraceDamage, what_is_no_trace_is_told_so_at_its_line) {
  EXPECT_NE(error_of(file("a", "")).find("a:1: not a trace: the file is empty"), std::string::npos);
  EXPECT_NE(error_of(file("a", "hello\n")).find("a:1: not a trace"), std::string::npos);
  EXPECT_NE(error_of(file("a", "\n")).find("a:1: not a trace"), std::string::npos);
  EXPECT_NE(error_of(file("a", std::string("\x7f"
                                           "ELF\2\1\1\0\0\0",
                                           10)))
                .find("binary data"),
            std::string::npos);
  EXPECT_NE(error_of(file("a", "{\"version\":\"0.0.1\"}\n")).find("a:1: not a trace"),
            std::string::npos);
  EXPECT_NE(error_of(file("a", "#heddle-trace\t2\n")).find("a:1: unknown trace version: 2"),
            std::string::npos);
  EXPECT_NE(error_of(file("a", "{\"heddle_trace\":2}\n")).find("a:1: unknown trace version: 2"),
            std::string::npos);
  EXPECT_NE(error_of(file("a", std::string(600'000, 'x'))).find("a:1: line too long"),
            std::string::npos);
  EXPECT_NE(error_of(path("none")).find("No such file"), std::string::npos);
  EXPECT_NE(error_of(path("")).find("Is a directory"), std::string::npos);
}

TEST_F(TraceDamage, each_wrong_field_is_named_with_its_line) {
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
    EXPECT_NE(error_of(file("a", head + line)).find(std::string("a:4: not an event: ") + what),
              std::string::npos)
        << line << error_of(path("a"));
}

TEST_F(TraceDamage, every_cut_is_an_error_or_an_incomplete_run) {
  for (const Form form : {Form::text, Form::json_lines}) {
    const std::string whole = sample(form);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      const std::string message = error_of(file("cut", whole.substr(0, n)));
      if (!message.empty())
        EXPECT_NE(message.find("cut:"), std::string::npos) << message;
      else
        EXPECT_EQ(runs_of(path("cut")).at(0).ending, Ending::no_footer) << n;
    }
  }
}

}  // namespace heddle::trace
