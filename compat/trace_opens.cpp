// SPDX-License-Identifier: MIT
#include "compat/trace_opens.hpp"

#include <algorithm>

#include "record/trace/trace_reader.hpp"

namespace heddle::compat {
namespace {

/// libx.so, libx.so.1.2, module.cpython-311-x86_64-linux-gnu.so; not /etc/ld.so.cache.
bool may_be_library(std::string_view path) {
  const auto name = path.substr(path.rfind('/') + 1);
  const auto at = name.rfind(".so");
  if (at == name.npos || at == 0) return false;
  const auto rest = name.substr(at + 3);
  return rest.empty() || (rest.size() > 1 && rest[0] == '.' && rest[1] >= '0' && rest[1] <= '9');
}

class Collector : public trace::TraceSink {
 public:
  explicit Collector(TraceOpens& out) : out_(out) {}
  void begin_run(const trace::RunHeader&, int) override {}
  void end_run(const trace::RunFooter&, trace::Ending) override {}
  void event(const trace::Event& event) override {
    const std::string exe(event.exe);
    if (!exe.empty() &&
        std::find(out_.programs.begin(), out_.programs.end(), exe) == out_.programs.end())
      out_.programs.push_back(exe);
    if (event.op != trace::Op::open || event.error != 0 || !may_be_library(event.path)) return;
    auto& list = out_.libraries[exe];
    const std::string path(event.path);
    if (std::find(list.begin(), list.end(), path) == list.end()) list.push_back(path);
  }

 private:
  TraceOpens& out_;
};

}  // namespace

Result<TraceOpens> read_trace_opens(const std::string& path) {
  TraceOpens out;
  Collector collector(out);
  if (auto done = trace::read_trace(path, collector); !done) return fail(std::move(done.error()));
  return out;
}

}  // namespace heddle::compat
