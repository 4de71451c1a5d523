// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "record/trace/trace_reader.hpp"

namespace heddle::trace {

/// An event that owns its bytes.
struct KeptEvent : Event {
  explicit KeptEvent(const Event& e)
      : Event(e),
        texts(new std::array<std::string, 4>{std::string(path), std::string(exe),
                                             std::string(resolved), std::string(target)}) {
    path = (*texts)[0], exe = (*texts)[1], resolved = (*texts)[2], target = (*texts)[3];
  }
  /// The resolved path, if there is one; else the path.
  std::string place() const { return std::string(resolved.empty() ? path : resolved); }
  std::shared_ptr<const std::array<std::string, 4>> texts;
};

struct KeptRun {
  RunHeader header;
  std::vector<KeptEvent> events{};
  RunFooter footer{};
  Ending ending = Ending::no_footer;

  bool complete() const { return ending == Ending::footer && footer.complete; }
  /// Places of the events of `op` with `error`, sorted.
  std::vector<std::string> places(Op op, int error = 0) const {
    std::vector<std::string> out;
    for (const auto& e : events)
      if (e.op == op && e.error == error) out.push_back(e.place());
    std::sort(out.begin(), out.end());
    return out;
  }
};

/// All runs of a trace.
inline Result<std::vector<KeptRun>> read_runs(const std::string& path,
                                              const ReadOptions& options = {}) {
  struct Keep final : TraceSink {
    std::vector<KeptRun> runs;
    void begin_run(const RunHeader& header, int number) override {
      if (number != static_cast<int>(runs.size()) + 1) throw Error("run", "has the wrong number");
      runs.push_back({header});
    }
    void event(const Event& event) override { runs.back().events.emplace_back(event); }
    void end_run(const RunFooter& footer, Ending ending) override {
      runs.back().footer = footer;
      runs.back().ending = ending;
    }
  } keep;
  auto done = read_trace(path, keep, options);
  if (!done) return fail(std::move(done.error()));
  return std::move(keep.runs);
}

}  // namespace heddle::trace
