// SPDX-License-Identifier: MIT
//
// The trace readers, heddle's two and the one of compat-lib's traces, as the first line chooses;
// and what fs-diff then does with each path.
#include "base/temp_dir.hpp"
#include "record/trace/normalise.hpp"
#include "record/trace/trace_reader.hpp"
#include "record/trace/trace_writer.hpp"
#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {
namespace {

std::string normalised(std::string_view path) {
  static const trace::Normaliser normalise{trace::NormaliseOptions{}};
  return normalise(path);
}

class Sink final : public trace::TraceSink {
 public:
  void begin_run(const trace::RunHeader&, int number) override {
    check(!open_ && number == ++runs_, "runs do not follow one another");
    open_ = true;
  }
  void event(const trace::Event& event) override {
    check(open_, "an event outside a run");
    (void)normalised(event.path);
    for (const auto text : {event.exe, event.resolved, event.target})
      for (const char c : text) sum_ = sum_ + static_cast<unsigned char>(c);
  }
  void end_run(const trace::RunFooter&, trace::Ending) override {
    check(open_, "a run that had not begun ended");
    open_ = false;
  }
  bool open() const { return open_; }

 private:
  bool open_ = false;
  int runs_ = 0;
  volatile std::uint64_t sum_ = 0;
};

std::string written(trace::Form form) {
  const auto dir = value_or_throw(TempDir::create("heddle-fuzz"));
  const std::string path = dir.path() + "/trace";
  trace::RunHeader header;
  header.run_id = "r1";
  header.argv = {"./app", "a b"};
  header.cwd = "/home/u";
  header.host = "node1";
  header.start_unix_ns = 1700000000000000000;
  header.rank = 3;
  header.map_id = std::string(32, 'a');
  header.method = "namespace";
  header.scopes = {"/opt"};
  header.notes = {"a note"};
  {
    auto writer = value_or_throw(trace::TraceWriter::create(path, header, form));
    trace::Event event;
    event.ns = 5;
    event.pid = event.tid = 10;
    event.op = trace::Op::open;
    event.path = "/opt/lib/libx.so.1.2.3";
    event.exe = "/usr/bin/app";
    event.flags = 02101;
    event.handle = 4;
    writer.append(event);
    event.op = trace::Op::rename;
    event.error = 2;
    event.path = "/tmp/odd\tname\n\x01";
    event.target = "/tmp/other";
    event.flags = -1;
    writer.append(event);
    event.op = trace::Op::read;
    event.error = 0;
    event.count = 7;
    event.bytes = 4096;
    event.offset = 12;
    writer.append(event);
    value_or_throw(writer.finish(true, 0, 99));
  }
  return value_or_throw(read_file(path));
}

}  // namespace

void run(std::string_view bytes) {
  for (const bool accept_cut_line : {false, true}) {
    Sink sink;
    const auto read = trace::read_trace(BytesFile(bytes).path(), sink, {accept_cut_line});
    check(!read || !sink.open(), "a trace was accepted and its run not ended");
  }
}

std::vector<std::string> seeds() {
  return {written(trace::Form::text), written(trace::Form::json_lines),
          "2024/11/10 17:57:34 recorder.go:46: 1731261454344267983 Lookup     /etc\n"
          "2024/11/10 17:57:34 recorder.go:46: 1731261454344506571 Open       /etc/host.conf\n"};
}

}  // namespace heddle::fuzz
