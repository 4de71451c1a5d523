// SPDX-License-Identifier: MIT
#include "jobs/collate.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "base/fd.hpp"
#include "base/try.hpp"
#include "jobs/collector/record_format.hpp"

namespace heddle::jobs {
namespace {

enum Key : unsigned {
  k_tid,
  k_numranks,
  k_mpirank,
  k_usertime,
  k_systemtime,
  k_rssmax,
  k_minflt,
  k_majflt,
  k_inblock,
  k_outblock,
  k_vol,
  k_invol,
  k_cminflt,
  k_cmajflt,
  k_cutime,
  k_cstime,
  k_num_threads,
  k_starttime,
  k_processor,
  k_blkio,
  k_guest,
  k_io,
  k_oncpu = k_io + 7,
  k_waiting,
  k_slices,
  k_rdtsc,
  k_perf
};
static_assert(k_perf == kKeys.size());

/// What a process did between two execs.
struct Image {
  std::int32_t pid = 0;
  std::int64_t start = 0;
  std::optional<StartBody> begun;
  std::uint8_t flags = 0;
  std::string path, tags, container;
  std::vector<std::string> args;
  std::optional<EndBody> end;
  bool by_exec = false;
  bool before_exec = false;                      ///< by itself, before
  std::int64_t late_bytes = 0, late_writes = 0;  ///< of the end itself
  std::int64_t start_bytes = 0;                  ///< of the record
  std::int64_t others_io[7] =
      {};  ///< of those that it waited for, and of the collector before an exec
  std::vector<TaskUsage> tasks;
  std::vector<Library> libraries;
  std::optional<ReapedBody> reaped;
};

/// Any process of the user can write records: no number in them, and no sum, is above it. What is
/// in nanoseconds or cycles can honestly be more (2,500 hours of CPU time), and is cut here.
constexpr std::int64_t kExecRecord = sizeof(RecordHeader) + sizeof(EndBody);
constexpr std::int64_t kMost = std::int64_t{1} << 53;

Number known(std::int64_t value) { return value < 0 ? Number() : Number(std::min(value, kMost)); }
Number less(Number a, Number b) {
  if (!a) return a;
  return std::max<std::int64_t>(0, *a - b.value_or(0));
}

/// The counters of rusage in `out`.
void put(Metrics& out, const Usage& usage) {
  out[k_usertime] = known(usage.utime);
  out[k_systemtime] = known(usage.stime);
  out[k_rssmax] = known(usage.maxrss);
  out[k_minflt] = known(usage.minflt);
  out[k_majflt] = known(usage.majflt);
  out[k_inblock] = known(usage.inblock);
  out[k_outblock] = known(usage.oublock);
  out[k_vol] = known(usage.nvcsw);
  out[k_invol] = known(usage.nivcsw);
}

Metrics totals(const ProcessUsage& usage) {
  Metrics out;
  put(out, usage.self);
  out[k_cminflt] = known(usage.children.minflt);
  out[k_cmajflt] = known(usage.children.majflt);
  out[k_cutime] = known(usage.children.utime);
  out[k_cstime] = known(usage.children.stime);
  out[k_blkio] = known(usage.task.blkio);
  out[k_guest] = known(usage.task.guest);
  for (unsigned i = 0; i < 7; ++i) {
    out[k_io + i] = known(usage.task.io[i]);
    if (i < 4) out[k_io + i] = less(out[k_io + i], usage.own_io[i]);
  }
  out[k_oncpu] = known(usage.cpu_ns);
  out[k_waiting] = known(usage.task.sched[1]);
  out[k_slices] = known(usage.task.sched[2]);
  for (unsigned i = 0; i < kPerfEvents; ++i) out[k_perf + i] = known(usage.perf[i]);
  return out;
}

/// Of one thread. Ticks are split in proportion: stat(5) has hundredths of a second only, schedstat
/// nanoseconds.
Metrics of_task(const TaskUsage& task) {
  Metrics out;
  out[k_tid] = task.tid;
  const auto ticks = task.utime + task.stime;
  if (task.sched[0] >= 0 && task.utime >= 0) {
    const auto us = std::min(task.sched[0] / 1000, kMost);
    const auto share = ticks > 0 ? static_cast<double>(task.utime) / static_cast<double>(ticks) : 1;
    out[k_usertime] =
        static_cast<std::int64_t>(static_cast<double>(us) * std::clamp(share, 0.0, 1.0));
    out[k_systemtime] = us - *out[k_usertime];
  }
  out[k_minflt] = known(task.minflt);
  out[k_majflt] = known(task.majflt);
  out[k_starttime] = known(task.starttime);
  out[k_processor] = known(task.processor);
  out[k_blkio] = known(task.blkio);
  out[k_guest] = known(task.guest);
  for (unsigned i = 0; i < 7; ++i) out[k_io + i] = known(task.io[i]);
  if (task.io[4] >= 0) out[k_inblock] = task.io[4] / 512;
  if (task.io[5] >= 0) out[k_outblock] = task.io[5] / 512;
  out[k_oncpu] = known(task.sched[0]);
  out[k_waiting] = known(task.sched[1]);
  out[k_slices] = known(task.sched[2]);
  return out;
}

/// The counters that threads have too: a sum over the threads is the process's.
bool is_threads(unsigned key) {
  return (key >= k_usertime && key <= k_invol && key != k_rssmax) || key == k_blkio ||
         key == k_guest || (key >= k_io && key <= k_oncpu);
}

std::vector<Metrics> threads_of(const Image& image, const Metrics* base) {
  const auto& end = *image.end;
  Metrics process = totals(end.usage);
  if (base)
    for (unsigned key = k_usertime; key < process.size(); ++key)
      if (key != k_rssmax) process[key] = less(process[key], (*base)[key]);
  for (unsigned i = 0; i < 7; ++i) process[k_io + i] = less(process[k_io + i], image.others_io[i]);
  process[k_tid] = image.pid;
  process[k_num_threads] = known(end.usage.task.num_threads);
  process[k_starttime] = known(end.usage.task.starttime);
  process[k_processor] = known(end.usage.task.processor);
  if (image.begun) {
    process[k_numranks] = known(image.begun->ranks);
    process[k_mpirank] = known(image.begun->rank);
    process[k_rdtsc] = less(end.usage.cycles, image.begun->cycles);
  }
  std::vector<Metrics> out{process};
  const TaskUsage* main = nullptr;
  for (const auto& task : image.tasks) {
    if (task.tid == image.pid)
      main = &task;
    else
      out.push_back(of_task(task));
  }
  const bool some_ended =
      end.threads > static_cast<std::int32_t>(std::max<std::size_t>(image.tasks.size(), 1));
  if (some_ended) {
    TaskUsage own = main ? *main : end.usage.task;
    own.tid = image.pid;
    auto first = of_task(own);
    if (!main)  // io is the process's there
      for (unsigned i = 0; i < 7; ++i) first[k_io + i].reset();
    Metrics rest;
    rest[k_tid] = 0;
    out.push_back(rest);
    for (unsigned key = k_usertime; key < first.size(); ++key) {
      if (!is_threads(key)) continue;
      if (base) first[key] = less(first[key], (*base)[key]);
      out[0][key] = first[key];
    }
  }
  // What is left of the process's counters is the ended threads', or else the main thread's.
  auto& left = some_ended ? out.back() : out[0];
  for (unsigned key = k_usertime; key < process.size(); ++key) {
    if (!is_threads(key)) continue;
    Number sum = 0;
    for (const auto& thread : out)
      if (&thread != &left) sum = std::min(*sum + thread[key].value_or(0), kMost);
    left[key] = less(process[key], sum);
  }
  return out;
}

class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}

  Collated run() {
    read_records();
    drop_failed_execs();
    match_reaped();
    index_children();
    add_up_io_of_others();
    std::vector<const Image*> order;
    for (const auto& image : images_)
      if ((image.begun || image.reaped) && (image.flags & kHeddle) == 0) order.push_back(&image);
    std::ranges::stable_sort(order, {}, &Image::start);
    for (const auto* image : order) add_row(*image);
    add_sizes();
    return std::move(out_);
  }

 private:
  template <class T>
  static std::optional<T> take(std::string_view& rest) {
    if (rest.size() < sizeof(T)) return std::nullopt;
    T out{};  // the file's records are not aligned
    std::memcpy(&out, rest.data(), sizeof(T));
    rest.remove_prefix(sizeof(T));
    if (!is_small(out)) return std::nullopt;
    return out;
  }

  static bool is_small(std::int64_t value) { return value >= -kMost && value <= kMost; }
  static bool is_small(const Usage& usage) { return all_small(usage); }
  /// Without times in nanoseconds.
  static TaskUsage but_times(TaskUsage usage) {
    std::ranges::fill(usage.sched, 0);
    return usage;
  }
  static bool is_small(const TaskUsage& usage) { return all_small(but_times(usage)); }
  static bool is_small(const StartBody& body) {
    return is_small(body.previous) && is_small(body.failed_lookups) && body.cycles >= 0;
  }
  static bool is_small(const EndBody& body) {
    ProcessUsage usage = body.usage;
    usage.cycles = usage.cpu_ns = 0;
    usage.task = but_times(usage.task);
    std::ranges::fill(usage.perf, 0);
    return all_small(usage) && body.usage.cycles >= 0 && body.usage.cpu_ns >= 0;
  }
  static bool is_small(const ReapedBody& body) {
    return is_small(body.time) && is_small(body.parent_start) && is_small(body.usage);
  }
  template <class Numbers>
  static bool all_small(const Numbers& numbers) {
    static_assert(sizeof numbers % sizeof(std::int64_t) == 0);
    std::array<std::int64_t, sizeof numbers / sizeof(std::int64_t)> each{};
    std::memcpy(each.data(), &numbers, sizeof numbers);
    return std::ranges::all_of(each, [](std::int64_t value) { return is_small(value); });
  }

  Image& image(const RecordHeader& header) {
    const auto [at, is_new] = index_.try_emplace({header.pid, header.start}, images_.size());
    if (is_new) {
      images_.emplace_back();
      images_.back().pid = header.pid;
      images_.back().start = header.start;
    }
    return images_[at->second];
  }

  void read_records() {
    std::string_view rest(bytes_);
    bool lost = false;
    while (!rest.empty()) {
      RecordHeader header{};
      if (rest.size() >= sizeof header) std::memcpy(&header, rest.data(), sizeof header);
      const bool good = header.magic == kRecordMagic && header.size >= sizeof header &&
                        header.size <= kMostRecord && header.size <= rest.size() &&
                        header.start >= 0 && is_small(header.start) &&
                        add(header, rest.substr(sizeof header, header.size - sizeof header));
      if (good) ++out_.records;
      if (!good && !lost) ++out_.damaged;
      lost = !good;
      rest.remove_prefix(good ? header.size : 1);
    }
  }

  bool add(const RecordHeader& header, std::string_view rest) {
    const auto next_text = [&rest] {
      const auto size = std::min(rest.find('\0'), rest.size());
      std::string text(rest.substr(0, size));
      rest.remove_prefix(std::min(size + 1, rest.size()));
      return text;
    };
    const auto add_tasks = [&](Image& to) {
      while (const auto task = take<TaskUsage>(rest)) to.tasks.push_back(*task);
    };
    switch (header.type) {
      case RecordType::start: {
        const auto body = take<StartBody>(rest);
        if (!body) return false;
        auto& to = image(header);
        to.begun = *body;
        to.flags = header.flags;
        to.start_bytes = header.size;
        to.path = next_text();
        to.tags = next_text();
        to.container = next_text();
        while (!rest.empty()) to.args.push_back(next_text());
        return true;
      }
      case RecordType::end:
      case RecordType::exec: {
        const auto body = take<EndBody>(rest);
        if (!body) return false;
        auto& to = image(header);
        const bool is_exec = header.type == RecordType::exec;
        const bool is_before = is_exec && (header.flags & kBefore) != 0;
        // It is known, or the pid was used again. Of several before an exec the last succeeded.
        if (is_exec && to.end && !(to.before_exec && is_before)) return true;
        to.end = *body;
        to.by_exec = is_exec;
        to.before_exec = is_before;
        if (is_exec) return true;
        to.late_bytes += header.size + std::clamp<std::int64_t>(body->behind, 0, kMostRecord);
        ++to.late_writes;
        add_tasks(to);
        return true;
      }
      case RecordType::threads: {
        auto& to = image(header);
        add_tasks(to);
        to.late_bytes += header.size;
        ++to.late_writes;
        return true;
      }
      case RecordType::libraries: {
        auto& to = image(header);
        while (!rest.empty()) {
          Library library;
          if (header.flags & kLookups) {
            library.name = next_text();
            library.path = next_text();
            library.failed = std::strtoll(next_text().c_str(), nullptr, 10);
          } else {
            library.path = next_text();
            library.name = library.path.substr(library.path.rfind('/') + 1);
          }
          to.libraries.push_back(std::move(library));
        }
        return true;
      }
      case RecordType::reaped: {
        const auto body = take<ReapedBody>(rest);
        if (body) reaped_.emplace_back(header.pid, *body);
        return body.has_value();
      }
    }
    return false;
  }

  /// The program that was to execute another one ended by itself, or was killed.
  void drop_failed_execs() {
    std::set<std::pair<std::int32_t, std::int64_t>> executed;
    for (const auto& image : images_)
      if (image.begun) executed.emplace(image.pid, image.begun->previous);
    for (auto& image : images_)
      if (image.before_exec && !executed.contains({image.pid, image.start})) {
        image.end.reset();
        image.by_exec = image.before_exec = false;
      }
    for (auto& image : images_) {
      if (!image.begun || (image.flags & kForeign) == 0) continue;
      const auto before = index_.find({image.pid, image.begun->previous});
      if (before == index_.end()) continue;
      const auto& program = images_[before->second];
      if (program.end && !program.by_exec) image.begun.reset();
    }
  }

  /// Each reaped process is the last program of its pid that started before, or one whose
  /// start was not seen.
  void match_reaped() {
    std::unordered_map<std::int32_t, std::vector<std::size_t>> of_pid;
    for (std::size_t i = 0; i < images_.size(); ++i)
      if (images_[i].begun) of_pid[images_[i].pid].push_back(i);
    for (auto& [pid, list] : of_pid)
      std::ranges::sort(list, {}, [&](std::size_t i) { return images_[i].start; });
    for (const auto& [pid, body] : reaped_) {
      Image* found = nullptr;
      const auto list = of_pid.find(pid);
      if (list != of_pid.end())
        for (const auto i : list->second)
          if (images_[i].start <= body.time) found = &images_[i];
      // Two parents cannot wait for one process: its pid was used again.
      if (found && !found->reaped) {
        found->reaped = body;
        continue;
      }
      Image unseen;
      unseen.pid = pid;
      unseen.reaped = body;
      unseen.start = std::max<std::int64_t>(0, body.time - body.usage.utime - body.usage.stime);
      images_.push_back(std::move(unseen));
    }
    // ld.so is static, too: the program that it starts writes its own record.
    for (const auto& [pid, list] : of_pid)
      for (std::size_t i = 0; i + 1 < list.size(); ++i)
        if (auto& image = images_[list[i]]; (image.flags & kForeign) != 0 && !image.reaped)
          image.begun.reset();
  }

  /// /proc/PID/io has the I/O of waited-for children, too (wait_task_zombie() of kernel/exit.c).
  void add_up_io_of_others() {
    // The program after an exec does not know what the collector wrote before.
    const auto count = [&](Image& image, std::int64_t bytes) {
      if (!image.end || !image.by_exec || image.end->usage.own_io[1] != 0) return;
      image.others_io[1] = std::min(image.others_io[1] + bytes, kMost);
      ++image.others_io[3];
    };
    for (auto& image : images_)
      if (image.begun) count(image, image.start_bytes);
    for (const auto& [pid, body] : reaped_)
      if (const auto at = index_.find({body.parent, body.parent_start}); at != index_.end())
        count(images_[at->second], sizeof(RecordHeader) + sizeof(ReapedBody));
    for (const auto& child : images_) {
      if (!child.reaped || !child.end || child.by_exec) continue;
      const auto parent = index_.find({child.reaped->parent, child.reaped->parent_start});
      if (parent == index_.end()) continue;
      const auto& usage = child.end->usage;
      const std::int64_t late[7] = {usage.late_io[0], child.late_bytes, usage.late_io[1],
                                    child.late_writes};
      for (unsigned i = 0; i < 7; ++i)
        if (usage.task.io[i] >= 0) {
          auto& sum = images_[parent->second].others_io[i];
          sum = std::clamp<std::int64_t>(sum + usage.task.io[i] + late[i], 0, kMost);
        }
    }
  }

  void index_children() {
    for (std::size_t i = 0; i < reaped_.size(); ++i)
      reaped_by_.emplace(std::pair{reaped_[i].second.parent, reaped_[i].second.parent_start}, i);
    for (std::size_t i = 0; i < images_.size(); ++i)
      if (images_[i].begun && images_[i].end && !images_[i].by_exec)
        children_.emplace(images_[i].begun->ppid, i);
  }

  /// What the kernel had counted when the program `before` executed the next one.
  static Metrics counted_before(const Image& before) {
    const auto& usage = before.end->usage;
    auto out = totals(usage);
    // The collector's own in the next program is counted from there.
    if (before.before_exec) {
      const std::int64_t late[] = {usage.late_io[0], kExecRecord, usage.late_io[1], 1};
      for (unsigned i = 0; i < 4; ++i)
        if (auto& io = out[k_io + i]) io = std::min(usage.task.io[i] + late[i], kMost);
    }
    return out;
  }

  const Image* previous(const Image& image) const {
    if (!image.begun || image.begun->previous <= 0) return nullptr;
    const auto at = index_.find({image.pid, image.begun->previous});
    if (at == index_.end()) return nullptr;
    const auto& before = images_[at->second];
    return before.by_exec && before.start < image.start ? &before : nullptr;
  }

  /// wait4(2) counts what the child waited for too.
  Usage without_children(const Image& image) const {
    Usage own = image.reaped->usage;
    const auto take_away = [&](const Usage& child) {
      own.utime = std::max<std::int64_t>(0, own.utime - child.utime);
      own.stime = std::max<std::int64_t>(0, own.stime - child.stime);
      own.minflt = std::max<std::int64_t>(0, own.minflt - child.minflt);
      own.majflt = std::max<std::int64_t>(0, own.majflt - child.majflt);
      own.inblock = std::max<std::int64_t>(0, own.inblock - child.inblock);
      own.oublock = std::max<std::int64_t>(0, own.oublock - child.oublock);
      own.nvcsw = std::max<std::int64_t>(0, own.nvcsw - child.nvcsw);
      own.nivcsw = std::max<std::int64_t>(0, own.nivcsw - child.nivcsw);
    };
    const auto [first, last] = reaped_by_.equal_range({image.pid, image.start});
    for (auto at = first; at != last; ++at) take_away(reaped_[at->second].second.usage);
    if (!image.begun || (image.flags & kForeign) != 0) {
      const auto [child, end] = children_.equal_range(image.pid);
      for (auto at = child; at != end; ++at) {
        const auto& usage = images_[at->second].end->usage;
        if (usage.time > image.reaped->time) continue;
        take_away(usage.self);
        take_away(usage.children);
      }
    }
    if (const auto* before = previous(image)) {
      take_away(before->end->usage.self);
      take_away(before->end->usage.children);
    }
    return own;
  }

  void add_row(const Image& image) {
    ProcessRow row;
    row.pid = image.pid;
    row.start = image.start;
    row.path = image.path;
    row.tags = image.tags;
    row.container = image.container;
    row.args = image.args;
    if (image.begun) {
      row.ppid = image.begun->ppid;
      row.pgid = image.begun->pgid;
      row.sid = image.begun->sid;
      row.failed_lookups = known(image.begun->failed_lookups);
    } else {
      row.ppid = image.reaped->parent;
    }
    int steps = 0;
    for (const auto* one = previous(image); one && ++steps < 10'000; one = previous(*one))
      if ((one->flags & kHeddle) == 0) ++row.generation;
    if (image.flags & kArgsCut) row.marks.emplace_back("args");
    const auto* before = previous(image);
    if (image.end) {
      const auto& end = *image.end;
      const auto base = before ? counted_before(*before) : Metrics();
      row.threads = threads_of(image, before ? &base : nullptr);
      row.finish = end.usage.time;
      row.pgid = end.pgid;
      row.sid = end.sid;
      // 1, or a subreaper, is the parent of an orphan.
      if (!image.begun) row.ppid = end.ppid;
      row.numtids = std::max<std::int64_t>(std::max(end.threads, 1),
                                           static_cast<std::int64_t>(image.tasks.size()));
      row.ended_by = image.by_exec ? "exec" : "self";
      if (end.failed_lookups >= 0) row.failed_lookups = end.failed_lookups;
      if (!image.by_exec && end.status >= 0) row.exitcode = end.status;
      row.exitsignal = 0;
      if (row.threads.back()[k_tid] == 0) row.marks.emplace_back("rest");
      if (end.perf_error != 0) out_.perf_error = end.perf_error;
    } else if (image.reaped) {
      Metrics metrics;
      put(metrics, without_children(image));
      metrics[k_tid] = image.pid;
      if (image.begun) {
        metrics[k_numranks] = known(image.begun->ranks);
        metrics[k_mpirank] = known(image.begun->rank);
      }
      row.threads.push_back(metrics);
      row.finish = image.reaped->time;
      row.ended_by = "parent";
      row.marks.emplace_back("partial");
    } else {
      Metrics metrics;
      metrics[k_tid] = image.pid;
      row.threads.push_back(metrics);
      row.marks.emplace_back(::kill(image.pid, 0) == 0 || errno == EPERM ? "running" : "partial");
    }
    if (image.reaped && !image.by_exec) {
      const int status = image.reaped->status;
      row.exitsignal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      row.exitcode = WIFEXITED(status) ? Number(WEXITSTATUS(status)) : Number();
    }
    // The clock may have been set back; submit refuses what ends before it starts.
    if (row.finish) row.finish = std::max(*row.finish, row.start);
    if (std::ranges::count(row.marks, "partial") > 0) ++out_.partial;
    if (!image.libraries.empty()) {
      const auto [at, is_new] = sets_.try_emplace(image.libraries, sets_.size() + 1);
      if (is_new) out_.libraries.push_back(image.libraries);
      row.libraries = static_cast<std::int64_t>(at->second);
    }
    out_.processes.push_back(std::move(row));
  }

  void add_sizes() {
    std::unordered_map<std::string, Number> known;
    for (auto& set : out_.libraries)
      for (auto& library : set) {
        const auto [at, is_new] = known.try_emplace(library.path);
        struct statx st {};
        // A size that the node knows needs no answer of a file server.
        if (is_new && library.path.starts_with('/') &&
            ::statx(AT_FDCWD, library.path.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE | STATX_SIZE,
                    &st) == 0 &&
            S_ISREG(st.stx_mode))
          at->second = static_cast<std::int64_t>(st.stx_size);
        library.size = at->second;
      }
  }

  struct Hash {
    std::size_t operator()(const std::pair<std::int32_t, std::int64_t>& key) const {
      return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(key.second) * 4194304 +
                                        static_cast<std::uint64_t>(key.first));
    }
  };

  std::string bytes_;
  std::vector<Image> images_;
  std::unordered_map<std::pair<std::int32_t, std::int64_t>, std::size_t, Hash> index_;
  std::vector<std::pair<std::int32_t, ReapedBody>> reaped_;
  std::unordered_multimap<std::pair<std::int32_t, std::int64_t>, std::size_t, Hash> reaped_by_;
  std::unordered_multimap<std::int32_t, std::size_t> children_;  ///< those that told their end
  std::map<std::vector<Library>, std::size_t> sets_;
  Collated out_;
};

}  // namespace

Result<Collated> collate(const std::string& path) {
  std::string bytes = TRY(read_file(path, std::size_t{8} << 30));
  return Reader(std::move(bytes)).run();
}

}  // namespace heddle::jobs
