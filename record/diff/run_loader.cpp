// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/stat.h>

#include <charconv>
#include <future>

#include "record/diff/run.hpp"

namespace heddle::diff {
namespace {

/// Closes, and the reads and writes that are counted by then. When a process ends, the kernel gives
/// its files up in an order that differs from run to run (12 of 2215 events of a numpy import).
bool is_told_late(const trace::Event& e) {
  const bool counted = (e.op == trace::Op::read || e.op == trace::Op::write) && e.offset < 0;
  return e.handle >= 0 && (e.op == trace::Op::close || counted);
}

/// Builds runs of events numbered by a table of its own: raw paths first, because each is put into
/// its normal form once, and only when the run's pids are all known.
class Loader : public trace::TraceSink {
 public:
  /// `only`: the run to keep; 0 keeps all.
  Loader(const TokenRules& rules, int only)
      : rules_(rules), normaliser_(rules.normalise), only_(only) {
    for (std::size_t i = 0; i < trace::kOpCount; ++i) wanted_[i] = rules.ops.empty();
    for (const trace::Op op : rules.ops) wanted_[static_cast<std::size_t>(op)] = true;
  }

  void begin_run(const trace::RunHeader& header, int number) override {
    count_ = number;
    keep_ = only_ == 0 || number == only_;
    if (!keep_) return;
    run_ = Run{};
    run_.header = header;
    run_.number = number;
    raw_ = TokenTable();
    pids_.clear();
    last_ = Process{-1, {}};
  }
  void event(const trace::Event& e) override {
    if (!keep_) return;
    if (e.pid != last_.pid || e.exe != last_.exe) enter_process(e);
    if (!wanted_[static_cast<std::size_t>(e.op)]) return;
    if (rules_.late && rules_.ops.empty() && is_told_late(e)) return;
    const std::string_view path = rules_.resolved && !e.resolved.empty() ? e.resolved : e.path;
    run_.sequence.tokens.push_back(raw_.intern({e.op, rules_.result ? e.error : 0, path}));
    run_.sequence.ns.push_back(e.ns);
    run_.process_of.push_back(process_);
  }
  void end_run(const trace::RunFooter& footer, trace::Ending ending) override {
    if (!keep_) return;
    run_.footer = footer;
    run_.ending = ending;
    std::vector<Token> normal(raw_.size());
    for (std::size_t i = 0; i < normal.size(); ++i) {
      trace::Op op;
      const TokenText raw = raw_.text(static_cast<Token>(i));
      op = raw.op;
      normal[i] = texts_.intern({op, raw.error, normaliser_(raw.path, pids_)});
    }
    for (Token& t : run_.sequence.tokens) t = normal[t];
    for (Process& p : run_.processes) p.exe = normaliser_(p.exe, pids_);
    runs_.push_back(std::move(run_));
  }

  int count() const { return count_; }
  /// The runs kept, their tokens renumbered by `table`.
  std::vector<Run> take(const std::string& path, TokenTable& table) {
    std::vector<Token> shared(texts_.size());
    for (std::size_t i = 0; i < shared.size(); ++i)
      shared[i] = table.intern(texts_.text(static_cast<Token>(i)));
    for (Run& run : runs_) {
      for (Token& t : run.sequence.tokens) t = shared[t];
      run.runs_in_file = count_;
      run.name = count_ == 1 ? path : fmt::format("{}#{}", path, run.number);
      if (rules_.collapse) collapse(run);
    }
    return std::move(runs_);
  }

 private:
  void enter_process(const trace::Event& e) {
    last_ = {e.pid, std::string(e.exe)};
    pids_.insert(e.pid);
    pids_.insert(e.tid);
    // Few processes of one trace alternate often; the newest are looked at first.
    for (std::size_t i = run_.processes.size(); i-- > 0;)
      if (run_.processes[i].pid == e.pid && run_.processes[i].exe == last_.exe) {
        process_ = static_cast<std::uint32_t>(i);
        return;
      }
    run_.processes.push_back(last_);
    process_ = static_cast<std::uint32_t>(run_.processes.size() - 1);
  }
  static void collapse(Run& run) {
    std::vector<std::uint32_t> process_of;
    const auto& tokens = run.sequence.tokens;
    for (std::size_t i = 0; i < tokens.size(); ++i)
      if (i == 0 || tokens[i] != tokens[i - 1]) process_of.push_back(run.process_of[i]);
    run.process_of = std::move(process_of);
    run.sequence.collapse();
  }

  const TokenRules& rules_;
  trace::Normaliser normaliser_;
  int only_;
  bool wanted_[trace::kOpCount];
  bool keep_ = false;
  int count_ = 0;
  Run run_;
  Process last_;
  std::uint32_t process_ = 0;
  TokenTable raw_;    // this run's paths as they stand
  TokenTable texts_;  // the file's in normal form
  std::unordered_set<std::int32_t> pids_;
  std::vector<Run> runs_;
};

Result<void> check_found(const RunName& name, const Loader& loader, int wanted) {
  if (wanted <= loader.count()) return {};
  return fail(fmt::format("{}#{}", name.path, wanted), "no such run",
              loader.count() == 0 ? "the file holds none"
                                  : fmt::format("the file holds {}", loader.count()));
}

}  // namespace

RunName parse_run_name(const std::string& text) {
  const std::size_t hash = text.rfind('#');
  if (hash == std::string::npos || hash == 0) return {text, 0};
  int number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + hash + 1, end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < 1) return {text, 0};
  struct stat st {};
  if (::stat(text.c_str(), &st) == 0) return {text, 0};
  return {text.substr(0, hash), number};
}

Result<std::vector<Run>> load_runs(const RunName& name, const TokenRules& rules,
                                   const trace::ReadOptions& read, TokenTable& table) {
  Loader loader(rules, name.number);
  if (auto done = trace::read_trace(name.path, loader, read); !done)
    return fail(std::move(done.error()));
  if (auto found = check_found(name, loader, std::max(name.number, 1)); !found)
    return fail(std::move(found.error()));
  return loader.take(name.path, table);
}

Result<std::pair<Run, Run>> load_pair(const RunName& a, const RunName& b, const TokenRules& rules,
                                      const trace::ReadOptions& read, TokenTable& table) {
  Loader first(rules, std::max(a.number, 1));
  Loader second(rules, std::max(b.number, 1));
  auto other =
      std::async(std::launch::async, [&] { return trace::read_trace(b.path, second, read); });
  auto done = trace::read_trace(a.path, first, read);
  auto other_done = other.get();
  if (!done) return fail(std::move(done.error()));
  if (!other_done) return fail(std::move(other_done.error()));
  for (const auto& [name, loader] : {std::pair{&a, &first}, {&b, &second}})
    if (auto found = check_found(*name, *loader, std::max(name->number, 1)); !found)
      return fail(std::move(found.error()));
  return std::pair{std::move(first.take(a.path, table)[0]),
                   std::move(second.take(b.path, table)[0])};
}

}  // namespace heddle::diff
