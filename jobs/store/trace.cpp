// SPDX-License-Identifier: MIT
// Joins a trace of fs-record with the processes of a job in the store.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/escape.hpp"
#include "base/result.hpp"
#include "jobs/store/selection.hpp"
#include "jobs/store/submit.hpp"
#include "record/trace/trace_reader.hpp"

namespace heddle::jobs::store {
namespace {

constexpr std::size_t kMostOfPid = 1000;               ///< programs: each event looks at them
constexpr std::int64_t kMost = std::int64_t{1} << 53;  ///< sums stop there
constexpr std::int64_t kSlack = 1'000'000;             ///< an event is logged after its call

/// A program that a process executed.
struct Image {
  std::int64_t node_id = 0, n = 0, start = 0, finish = 0;
  std::string path;
};

struct Use {
  std::int64_t opens = 0, failed = 0, read = 0, written = 0;
};

class Join : public trace::TraceSink {
 public:
  Join(Database& database, std::int64_t job, const std::string& file, const TraceLimits& limits)
      : db_(database), job_(job), file_(file), limits_(limits) {}

  void begin_run(const trace::RunHeader& header, int number) override {
    if (number > limits_.runs) throw Error(file_, "cannot be joined", "it has too many runs");
    start_ = static_cast<std::int64_t>(header.start_unix_ns / 1000);
    if (!images_.empty() && host_ == header.host) return;
    host_ = header.host;
    images_.clear();
    db_.each(
        "SELECT node_id, n, start, finish, path, pid, host FROM processes WHERE job_id = ? ORDER "
        "BY start, node_id, n",
        {job_}, [&](Row& row) {
          if (short_name(to_text(row[6])) != short_name(header.host)) return;
          const auto start = to_int(row[2]);
          auto& list = images_[to_int(row[5])];
          if (list.size() < kMostOfPid)
            list.push_back({to_int(row[0]), to_int(row[1]), start,
                            is_null(row[3]) ? kMost : to_int(row[3]),
                            unescape(to_text(row[4])).value_or("")});
        });
    if (images_.empty())
      throw Error(file_, "cannot be joined",
                  fmt::format("it is of host '{}', and no process of the job ran there",
                              escape_for_terminal(header.host)));
  }

  void event(const trace::Event& event) override {
    using trace::Op;
    const bool opens = event.op == Op::open || event.op == Op::create || event.op == Op::exec;
    const bool moves = event.op == Op::read || event.op == Op::write;
    if (event.error == 0 && !opens && !moves) return;
    const Image* image = image_of(event);
    if (!image) {
      ++out_.unknown;
      return;
    }
    const auto [at, is_new] =
        uses_.try_emplace({{image->node_id, image->n}, std::string(event.path)});
    Use& use = at->second;
    if (is_new) bytes_ += event.path.size();
    if (uses_.size() > limits_.files || bytes_ > limits_.bytes)
      throw Error(file_, "cannot be joined", "it has too many files");
    const auto add = [](std::int64_t& sum, std::int64_t more) {
      sum = std::min(kMost, sum + std::clamp<std::int64_t>(more, 0, kMost));
    };
    with_bytes_ |= moves;
    if (event.error != 0)
      add(use.failed, 1);
    else if (opens)
      add(use.opens, 1);
    else
      add(event.op == Op::read ? use.read : use.written, event.bytes);
  }

  void end_run(const trace::RunFooter&, trace::Ending) override {}

  /// What was stored of these processes before goes: a trace may be submitted again.
  JoinedTrace store() {
    if (uses_.empty())
      throw Error(file_, "cannot be joined", "none of its events is of a process of the job");
    Transaction transaction(db_);
    std::pair<std::int64_t, std::int64_t> process{-1, -1};
    for (const auto& [key, use] : uses_)
      if (std::exchange(process, key.first) != key.first) {
        db_.run("DELETE FROM t_file WHERE job_id = ? AND node_id = ? AND n = ?",
                {job_, process.first, process.second});
        ++out_.processes;
      }
    auto at = uses_.begin();
    db_.insert("t_file",
               {"job_id", "node_id", "n", "position", "path", "opens", "failed", "bytes_read",
                "bytes_written"},
               uses_.size(), [&](std::size_t i, Row& row) {
                 const auto& [key, use] = *at++;
                 row = {job_,
                        key.first.first,
                        key.first.second,
                        std::int64_t(i),
                        escape_for_terminal(key.second),
                        use.opens,
                        use.failed,
                        with_bytes_ ? Value(use.read) : Value(),
                        with_bytes_ ? Value(use.written) : Value()};
               });
    transaction.commit();
    out_.files = uses_.size();
    return out_;
  }

 private:
  static std::string short_name(const std::string& host) { return host.substr(0, host.find('.')); }

  /// The last program of this pid, and of this path where the trace has it, that had started. ld.so
  /// loads a program's libraries before the collector in it writes the start.
  const Image* image_of(const trace::Event& event) const {
    const auto list = images_.find(event.pid);
    if (list == images_.end()) return nullptr;
    const auto time = start_ + static_cast<std::int64_t>(event.ns / 1000);
    const Image* found = nullptr;
    const bool knows = std::ranges::any_of(
        list->second, [&](const Image& image) { return image.path == event.exe; });
    for (const Image& image : list->second)
      if ((!knows || image.path == event.exe) && (!found || image.start <= time)) found = &image;
    return found && found->finish + kSlack >= time ? found : nullptr;
  }

  Database& db_;
  std::int64_t job_;
  const std::string& file_;
  const TraceLimits& limits_;
  std::string host_;  ///< whose programs are in images_
  std::int64_t start_ = 0;
  std::unordered_map<std::int64_t, std::vector<Image>> images_;  ///< by pid, in order of start
  std::map<std::pair<std::pair<std::int64_t, std::int64_t>, std::string>, Use> uses_;
  std::size_t bytes_ = 0;
  bool with_bytes_ = false;
  JoinedTrace out_;
};

}  // namespace

JoinedTrace submit_trace(Database& database, std::int64_t job, const std::string& file,
                         const TraceLimits& limits) {
  Join join(database, job, file, limits);
  value_or_throw(trace::read_trace(file, join));
  return join.store();
}

}  // namespace heddle::jobs::store
