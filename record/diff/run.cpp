// SPDX-License-Identifier: MIT
#include "record/diff/run.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <charconv>
#include <future>

#include "base/escape.hpp"
#include "base/try.hpp"

namespace heddle::diff {

TokenTable::TokenTable() : slots_(1024) {}

Token TokenTable::intern(const TokenText& text) {
  const std::uint64_t seed =
      static_cast<std::uint64_t>(text.op) << 32 | static_cast<std::uint32_t>(text.error);
  const std::uint64_t hash = XXH3_64bits_withSeed(text.path.data(), text.path.size(), seed);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const Entry& e = entries_[slots_[slot] - 1];
    if (e.hash == hash && e.op == text.op && e.error == text.error &&
        std::string_view(paths_).substr(e.path_at, e.path_size) == text.path)
      return slots_[slot] - 1;
  }
  entries_.push_back({hash, paths_.size(), static_cast<std::uint32_t>(text.path.size()),
                      static_cast<std::int16_t>(text.error), text.op});
  paths_ += text.path;
  slots_[slot] = static_cast<std::uint32_t>(entries_.size());
  if (entries_.size() * 2 > slots_.size()) rehash(slots_.size() * 2);
  return static_cast<Token>(entries_.size() - 1);
}

void TokenTable::rehash(std::size_t slots) {
  slots_.assign(slots, 0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t slot = entries_[i].hash & (slots - 1);
    while (slots_[slot] != 0) slot = (slot + 1) & (slots - 1);
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

TokenText TokenTable::text(Token token) const {
  const Entry& e = entries_[token];
  return {e.op, e.error, std::string_view(paths_).substr(e.path_at, e.path_size)};
}

std::string token_label(const TokenText& text) {
  std::string label(trace::op_name(text.op));
  if (text.error != 0) {
    std::array<char, 16> scratch;
    label += ' ';
    label += trace::result_name(text.error, scratch);
  }
  label += ' ';
  label += escape_for_terminal(text.path);
  return label;
}

std::vector<std::string> TokenRules::names() const {
  std::vector<std::string> list = normalise.names();
  if (result) list.emplace_back("result");
  if (late) list.emplace_back("late");
  if (resolved) list.emplace_back("resolved");
  if (collapse) list.emplace_back("collapse");
  return list;
}

void Sequence::collapse() {
  std::vector<std::uint32_t> from(size());
  for (std::uint32_t i = 0; i < from.size(); ++i) from[i] = position(i);
  const std::vector<std::uint32_t> before = std::move(repeats);
  repeats.clear();
  positions.clear();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint32_t times = before.empty() ? 1 : before[i];
    if (kept > 0 && tokens[i] == tokens[kept - 1]) {
      repeats.back() += times;
      continue;
    }
    tokens[kept] = tokens[i];
    ns[kept] = ns[i];
    repeats.push_back(times);
    positions.push_back(from[i]);
    ++kept;
  }
  tokens.resize(kept);
  ns.resize(kept);
}

namespace {

/// At a process's end the kernel closes its files in an order that differs from run to run (12 of
/// 2215 events of a numpy import).
bool is_late(const trace::Event& e) { return e.handle >= 0 && e.op == trace::Op::close; }

/// Builds runs of events, numbered by a table of its own. Paths are normalised at the end of a run:
/// each once, when all of the run's pids are known.
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
    process_numbers_.clear();
    last_ = Process{-1, {}};
  }
  void event(const trace::Event& e) override {
    if (!keep_) return;
    if ((rules_.threads ? e.tid : e.pid) != last_.id || e.exe != last_.exe) enter_process(e);
    if (!wanted_[static_cast<std::size_t>(e.op)]) return;
    if (rules_.late && rules_.ops.empty() && is_late(e)) return;
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
      const TokenText raw = raw_.text(static_cast<Token>(i));
      normal[i] = texts_.intern({raw.op, raw.error, normaliser_(raw.path, pids_)});
    }
    for (Token& t : run_.sequence.tokens) t = normal[t];
    for (Process& p : run_.processes) p.exe = normaliser_(p.exe, pids_);
    runs_.push_back(std::move(run_));
  }

  int count() const { return count_; }
  /// The wanted runs, their tokens renumbered by `table`.
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
    last_ = {rules_.threads ? e.tid : e.pid, std::string(e.exe)};
    pids_.insert(e.pid);
    pids_.insert(e.tid);
    auto& known = process_numbers_[last_.id];
    for (const auto number : known)
      if (run_.processes[number].exe == last_.exe) {
        process_ = number;
        return;
      }
    process_ = static_cast<std::uint32_t>(run_.processes.size());
    known.push_back(process_);
    run_.processes.push_back(last_);
  }
  static void collapse(Run& run) {
    std::vector<std::uint32_t> process_of;
    run.sequence.collapse();
    for (const std::uint32_t i : run.sequence.positions) process_of.push_back(run.process_of[i]);
    run.process_of = std::move(process_of);
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
  /// By id: a process that executes another program is another one.
  std::unordered_map<std::int32_t, std::vector<std::uint32_t>> process_numbers_;
  TokenTable raw_;    // this run's, as in the trace
  TokenTable texts_;  // the file's, normalised
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

Result<void> Run::require_processes() const {
  if (process_of.empty()) return {};
  if (processes.size() > 1 || (!processes.empty() && processes[0].id != 0)) return {};
  return fail(name, "cannot compare by process or thread", "the trace names none");
}

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
  TRY(trace::read_trace(name.path, loader, read));
  TRY(check_found(name, loader, std::max(name.number, 1)));
  return loader.take(name.path, table);
}

Result<std::pair<Run, Run>> load_pair(const RunName& a, const RunName& b, const TokenRules& rules,
                                      const trace::ReadOptions& read, TokenTable& table) {
  Loader first(rules, std::max(a.number, 1));
  Loader second(rules, std::max(b.number, 1));
  auto other =
      std::async(std::launch::async, [&] { return trace::read_trace(b.path, second, read); });
  const auto done = trace::read_trace(a.path, first, read);
  const auto other_done = other.get();
  TRY(done);
  TRY(other_done);
  TRY(check_found(a, first, std::max(a.number, 1)));
  TRY(check_found(b, second, std::max(b.number, 1)));
  return std::pair{std::move(first.take(a.path, table)[0]),
                   std::move(second.take(b.path, table)[0])};
}

}  // namespace heddle::diff
