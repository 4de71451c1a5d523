// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <cstdlib>

#include "base/escape.hpp"
#include "record/diff/report.hpp"
#include "record/trace/trace_text.hpp"

namespace heddle::diff {
namespace {

std::string at(const Sequence& s, std::size_t i) {
  return fmt::format("{} ({})", s.position(i) + 1,
                     seconds_text(static_cast<std::int64_t>(s.ns[i])));
}

void append_local(std::string& out, const Part& part) {
  if (part.local_skipped) {
    out += fmt::format("local alignment: not made, {:.1e} cells; --local 1 makes it\n",
                       static_cast<double>(part.a.size()) * static_cast<double>(part.b.size()));
    return;
  }
  for (const LocalAlignment& l : part.local) {
    std::uint32_t same = 0;
    for (const EditRun& run : l.path) same += run.kind == EditKind::same ? run.length : 0;
    out += fmt::format("local alignment: score {}: events {} to {} of a, {} to {} of b", l.score,
                       at(part.a, l.a_begin), at(part.a, l.a_end - 1), at(part.b, l.b_begin),
                       at(part.b, l.b_end - 1));
    if (!l.path.empty()) out += fmt::format(", {} the same", same);
    out += '\n';
  }
}

void append_times(std::string& out, const Part& part, const TokenTable& table) {
  const auto label = [&](std::size_t i) { return token_label(table.text(part.a.tokens[i])); };
  for (const Shift& s : part.time.steps)
    out += fmt::format("time: {} {} than in a: {} at {} of a, {} of b\n",
                       seconds_text(std::abs(s.step)), s.step > 0 ? "later" : "earlier", label(s.a),
                       at(part.a, s.a), at(part.b, s.b));
  for (const Shift& s : part.time.moves)
    out += fmt::format("moved: {} from {} in a to {} in b\n", label(s.a), at(part.a, s.a),
                       at(part.b, s.b));
  if (part.time.move_count > part.time.moves.size())
    out += fmt::format("moved: {} events more\n", part.time.move_count - part.time.moves.size());
}

}  // namespace

std::string seconds_text(std::int64_t ns, bool sign) {
  const std::uint64_t size =
      ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  return fmt::format("{}{}.{:06} s",
                     ns < 0 ? "-"
                     : sign ? "+"
                            : "",
                     size / 1'000'000'000, size % 1'000'000'000 / 1000);
}

std::string rules_text(const ReportOptions& options) {
  const auto list = [](const std::vector<std::string>& words, const char* none) {
    return words.empty() ? none : escape_for_terminal(fmt::format("{}", fmt::join(words, ",")));
  };
  return fmt::format("ops {}; rules {}{}", list(options.ops, "all"), list(options.rules, "none"),
                     options.by_process ? "; by process" : "");
}

std::string run_text(const Run& run, std::size_t events) {
  std::string text = fmt::format("{} events, {}", events, trace::format_name(run.header.format));
  if (!run.header.host.empty()) text += ", " + escape_for_terminal(run.header.host);
  if (run.header.rank) text += fmt::format(", rank {}", *run.header.rank);
  if (run.header.start_unix_ns != 0) text += ", " + trace::utc_time_text(run.header.start_unix_ns);
  if (!run.complete()) text += ", incomplete";
  return text;
}

std::string text_report(const Comparison& c, const TokenTable& table,
                        const ReportOptions& options) {
  const bool context = options.style == ScriptStyle::context;
  std::string out;
  out += fmt::format("{} {}\t{}\n", context ? "***" : "---", escape_for_terminal(c.a.name),
                     run_text(c.a, c.a_events));
  out += fmt::format("{} {}\t{}\n", context ? "---" : "+++", escape_for_terminal(c.b.name),
                     run_text(c.b, c.b_events));
  for (const Part& part : c.parts) {
    if (!part.name.empty() && part.distance() > 0)
      out += fmt::format("process {}: distance {} of {} and {} events\n",
                         escape_for_terminal(part.name), part.distance(), part.a.size(),
                         part.b.size());
    if (options.style == ScriptStyle::unified) append_unified(out, part, table, options);
    if (context) append_context(out, part, table, options);
  }
  out += fmt::format(
      "distance {}: {} the same, {} replaced, {} deleted, {} inserted; normalised {:.6f}, "
      "similarity {:.6f}\n",
      c.distance(), c.same, c.replaced, c.deleted, c.inserted, c.normalised(), c.similarity());
  out += fmt::format("compared: {}\n", rules_text(options));
  if (options.by_process) return out;
  for (const Part& part : c.parts) {
    append_local(out, part);
    append_times(out, part, table);
  }
  return out;
}

}  // namespace heddle::diff
