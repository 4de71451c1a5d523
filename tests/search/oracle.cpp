// SPDX-License-Identifier: MIT
#include "tests/search/oracle.hpp"

namespace heddle::test {

std::vector<Trace::Line> parse_trace(const std::string& text, bool& is_static) {
  std::vector<Trace::Line> lines;
  for (std::size_t at = 0; at < text.size();) {
    // A line starts with a tab and ends with " (0x...)" or " => not found"; a name may hold
    // newlines.
    auto end = at;
    do {
      end = text.find('\n', end);
      if (end == text.npos) end = text.size();
      const auto line = std::string_view(text).substr(at, end - at);
      if (line.ends_with(')') || line.ends_with(" => not found") || line == "\tstatically linked")
        break;
      ++end;
    } while (end < text.size());
    auto line = text.substr(at, std::min(end, text.size()) - at);
    at = end + 1;
    if (line.starts_with('\t')) line.erase(0, 1);
    if (line == "statically linked") {
      is_static = true;
      continue;
    }
    if (line.ends_with(" => not found")) {
      lines.push_back({line.substr(0, line.size() - 13), ""});
      continue;
    }
    const auto address = line.rfind(" (0x");
    if (address == line.npos) continue;
    line.resize(address);
    const auto arrow = line.find(" => ");
    Trace::Line entry;
    if (arrow == line.npos) {
      entry.path = line;
    } else {
      entry.name = line.substr(0, arrow);
      entry.path = line.substr(arrow + 4);
    }
    if (entry.path.starts_with("linux-vdso.so") || entry.path == "linux-gate.so.1") continue;
    lines.push_back(std::move(entry));
  }
  return lines;
}

Trace ask_ld_so(const std::string& file, bool has_interpreter, const std::string& loader,
                const RunOptions& options) {
  auto with = options;
  with.env.emplace_back("LD_TRACE_LOADED_OBJECTS=1");
  std::vector<std::string> argv;
  if (!has_interpreter) argv.push_back(loader);
  argv.push_back(file);
  const auto result = run(argv, with);
  Trace trace;
  trace.status = result.status;
  trace.err = result.err;
  trace.lines = parse_trace(result.out, trace.is_static);
  return trace;
}

}  // namespace heddle::test
