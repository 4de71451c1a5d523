// SPDX-License-Identifier: MIT
#include "tests/search/oracle.hpp"

#include <algorithm>
#include <sstream>

namespace heddle::test {

std::vector<Trace::Line> parse_trace(const std::string& text, bool& is_static) {
  std::vector<Trace::Line> lines;
  for (std::size_t at = 0; at < text.size();) {
    // A line starts with a tab and ends with " (0x...)" or " => not found"; names may hold
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

std::vector<std::string> tried_files(const std::string& debug) {
  std::vector<std::string> out;
  bool open = false;
  std::istringstream lines(debug);
  for (std::string line; std::getline(lines, line);) {
    // "      1234:\t..." starts a message; other lines continue a path with a newline.
    const auto colon = line.find(":\t");
    const bool starts =
        colon != line.npos && colon >= 5 && line.find_first_not_of(" 0123456789") == colon;
    if (starts) {
      const auto mark = line.find("trying file=");
      open = mark != line.npos;
      if (open) out.push_back(line.substr(mark + 12));
    } else if (open) {
      out.back() += "\n" + line;
    }
  }
  return out;
}

std::string first_difference(const std::vector<std::string>& ours,
                             const std::vector<std::string>& theirs) {
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const auto at = [&](const std::vector<std::string>& list) {
      return i < list.size() ? list[i] : std::string("(end)");
    };
    if (at(ours) != at(theirs))
      return "probe " + std::to_string(i) + ": we try " + at(ours) + ", ld.so " + at(theirs);
  }
  return {};
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

std::string difference(const Closure& ours, const Trace& theirs) {
  std::vector<Trace::Line> expected;
  std::vector<std::string> missing;
  for (const auto& line : theirs.lines)
    if (line.path.empty())
      missing.push_back(line.name);
    else
      expected.push_back(line);
  std::size_t i = 0;
  for (std::size_t at = 1; at < ours.objects.size(); ++at) {
    const auto& object = ours.objects[at];
    if (object.before_program) continue;
    if (i == expected.size()) return "extra: " + object.path;
    const auto& line = expected[i++];
    if (line.path != object.path) return "ld.so has " + line.path + ", we have " + object.path;
    if (!line.name.empty() && line.name != object.names.front())
      return "ld.so calls it " + line.name + ", we " + object.names.front();
  }
  if (i < expected.size()) return "lacking: " + expected[i].path;
  std::vector<std::string> our_missing;
  for (const auto& lost : ours.missing) our_missing.push_back(lost.name);
  // ld.so traces an absent auxiliary library as "not found" though it would start without it.
  std::erase_if(missing, [&](const std::string& name) {
    return std::any_of(ours.warnings.begin(), ours.warnings.end(),
                       [&](const std::string& w) { return w.starts_with(name + ": auxiliary"); });
  });
  if (missing != our_missing)
    return "missing: ld.so " + std::to_string(missing.size()) + ", we " +
           std::to_string(our_missing.size());
  return {};
}

std::vector<std::string> tried_files(const Closure& ours) {
  std::vector<std::string> out;
  for (const auto& search : ours.searches)
    for (const auto& probe : search.probes)
      if (probe.by != FoundBy::path) out.push_back(probe.path);
  return out;
}

}  // namespace heddle::test
