// SPDX-License-Identifier: MIT
//
// The readers of heddle's two trace forms and of compat-lib's traces (the first line selects one),
// and fs-diff's normaliser on each path.
#include "base/temp_dir.hpp"
#include "record/trace/normalise.hpp"
#include "record/trace/trace_reader.hpp"
#include "record/trace/trace_writer.hpp"
#include "tests/diff/sample_trace.hpp"
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
  auto writer = value_or_throw(trace::TraceWriter::create(path, trace::full_header(), form));
  for (const auto& event : trace::odd_events()) writer.append(event);
  value_or_throw(writer.finish(true, 0, 99));
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
