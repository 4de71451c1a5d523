// SPDX-License-Identifier: MIT
// fs-job watch: what a running job's processes on this node do now, from /proc and the collector's
// records.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <thread>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/try.hpp"
#include "jobs/collector/record_format.hpp"
#include "jobs/commands.hpp"
#include "jobs/spool.hpp"

namespace heddle::jobs {
namespace {

using Clock = std::chrono::steady_clock;

struct Sample {
  std::int64_t ticks = 0, rss = 0, read = 0, written = 0, threads = 0;
  std::string name;
  char state = '?';
};

/// Of a live process; nullopt: it has ended.
std::optional<Sample> sample(std::int32_t pid) {
  const auto directory = "/proc/" + std::to_string(pid);
  const auto stat = read_file(directory + "/stat", 4096);
  if (!stat) return std::nullopt;
  const auto open = stat->find('('), close = stat->rfind(')');
  if (close == stat->npos || close + 2 >= stat->size()) return std::nullopt;
  Sample out;
  out.name = stat->substr(open + 1, close - open - 1);
  out.state = (*stat)[close + 2];
  if (out.state == 'Z' || out.state == 'X') return std::nullopt;
  long long utime = 0, stime = 0, threads = 0, rss = 0;
  std::sscanf(
      stat->c_str() + close + 4,
      "%*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %*d %*d %*d %*d %lld %*d %*u %*u %lld",
      &utime, &stime, &threads, &rss);
  out.ticks = utime + stime;
  out.threads = threads;
  out.rss = rss * ::sysconf(_SC_PAGESIZE);
  if (const auto io = read_file(directory + "/io", 4096)) {
    long long rchar = 0, wchar = 0;
    std::sscanf(io->c_str(), "rchar: %lld wchar: %lld", &rchar, &wchar);
    out.read = rchar;
    out.written = wchar;
  }
  return out;
}

/// The processes in the records, which it follows as the file grows.
class Followed {
 public:
  explicit Followed(Fd file) : file_(std::move(file)) {}
  void update() {
    char buffer[1U << 16];
    for (ssize_t n; (n = ::read(file_.get(), buffer, sizeof buffer)) > 0;)
      rest_.append(buffer, static_cast<std::size_t>(n));
    std::size_t at = 0;
    for (RecordHeader header{}; rest_.size() - at >= sizeof header;) {
      std::memcpy(&header, rest_.data() + at, sizeof header);
      if (header.magic != kRecordMagic || header.size < sizeof header) {
        ++at;  // damaged
        continue;
      }
      if (rest_.size() - at < header.size) break;
      const auto* body = rest_.data() + at + sizeof header;
      const auto size = header.size - sizeof header;
      if (header.type == RecordType::start && size >= sizeof(StartBody)) {
        StartBody start{};
        std::memcpy(&start, body, sizeof start);
        alive_[header.pid] = {};
        ++started_;
        if (start.failed_lookups > 0) failed_ += start.failed_lookups;
        with_lookups_ |= start.failed_lookups >= 0;
      } else if (header.type == RecordType::end || header.type == RecordType::reaped) {
        alive_.erase(header.pid);
      }
      at += header.size;
    }
    rest_.erase(0, at);
  }
  std::map<std::int32_t, Sample>& alive() { return alive_; }
  std::int64_t started() const { return started_; }
  std::int64_t failed() const { return failed_; }
  bool with_lookups() const { return with_lookups_; }

 private:
  Fd file_;
  std::string rest_;
  std::map<std::int32_t, Sample> alive_;
  std::int64_t started_ = 0, failed_ = 0;
  bool with_lookups_ = false;
};

std::string bytes(double value) {
  const char* units[] = {"B", "K", "M", "G", "T"};
  unsigned unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return fmt::format("{:.{}f}{}", value, unit == 0 ? 0 : 1, units[unit]);
}

std::string screen(Followed& job, const std::string& jobid, double seconds, std::int64_t started,
                   std::int64_t failed, std::size_t rows) {
  struct Line {
    std::int32_t pid;
    double cpu, read, written;
    Sample now;
  };
  std::vector<Line> lines;
  const auto show = [&](std::pair<const std::int32_t, Sample>& entry) {
    const auto now = sample(entry.first);
    if (!now) return true;
    const auto& before = entry.second;
    const bool is_new = before.name.empty();
    const auto rate = [&](std::int64_t a, std::int64_t b) {
      return is_new ? 0.0 : std::max(0.0, static_cast<double>(a - b) / seconds);
    };
    lines.push_back(
        {entry.first,
         100 * rate(now->ticks, before.ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
         rate(now->read, before.read), rate(now->written, before.written), *now});
    entry.second = *now;
    return false;
  };
  auto& alive = job.alive();
  for (auto at = alive.begin(); at != alive.end();)
    at = show(*at) ? alive.erase(at) : std::next(at);
  std::ranges::sort(lines, [](const Line& a, const Line& b) {
    return a.cpu != b.cpu ? a.cpu > b.cpu : a.pid < b.pid;
  });
  double cpu = 0, rss = 0, read = 0, written = 0;
  for (const auto& line : lines) {
    cpu += line.cpu;
    rss += static_cast<double>(line.now.rss);
    read += line.read;
    written += line.written;
  }
  auto out = fmt::format(
      "job {}: {} process{}, {:.1f} starts/s, CPU {:.0f} %, memory {}, read {}/s, written {}/s",
      escape_for_terminal(jobid), lines.size(), lines.size() == 1 ? "" : "es",
      static_cast<double>(job.started() - started) / seconds, cpu, bytes(rss), bytes(read),
      bytes(written));
  out += job.with_lookups() ? fmt::format(", failed look-ups {:.0f}/s\n",
                                          static_cast<double>(job.failed() - failed) / seconds)
                            : ", failed look-ups unknown (--lookups)\n";
  out += "    PID S THREADS   CPU%   MEMORY   READ/S  WRITE/S  PROGRAM\n";
  for (std::size_t i = 0; i < std::min(rows, lines.size()); ++i) {
    const auto& line = lines[i];
    fmt::format_to(std::back_inserter(out), "{:>7} {} {:>7} {:>6.1f} {:>8} {:>8} {:>8}  {}\n",
                   line.pid, line.now.state, line.now.threads, line.cpu,
                   bytes(static_cast<double>(line.now.rss)), bytes(line.read), bytes(line.written),
                   escape_for_terminal(line.now.name));
  }
  if (lines.size() > rows) out += fmt::format("... and {} more\n", lines.size() - rows);
  return out;
}

}  // namespace

int watch_command(int argc, char** argv) {
  std::string jobid;
  double interval = 1;
  int count = 0;
  unsigned rows = 20;
  CLI::App app("Show the processes of a running job on this node until it is staged.",
               "fs-job watch");
  set_usage(app, "fs-job watch [OPTIONS] [JOB]");
  app.add_option("job", jobid, "The job (default: SLURM_JOB_ID, PBS_JOBID, or this session)")
      ->type_name("JOB");
  app.add_option("--interval", interval, "Seconds between two pictures (default: 1)")
      ->type_name("S")
      ->check(number_from(0.05, 3600.0));
  app.add_option("--count", count, "End after N pictures")
      ->type_name("N")
      ->check(number_from(1, 1000000000));
  app.add_option("--rows", rows,
                 "Show at most N processes, those with the most CPU first (default: 20)")
      ->type_name("N");
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  const auto spool = Spool::at(value_or_throw(job_id(jobid)));
  auto file = open_file(spool.records(), O_RDONLY | O_NOFOLLOW);
  if (!file) throw Error(spool.jobid(), "cannot watch the job", "it does not run on this node");
  Followed job(std::move(*file));
  const bool is_terminal = ::isatty(STDOUT_FILENO) != 0;
  job.update();
  (void)screen(job, jobid, interval, 0, 0, rows);
  auto last = Clock::now();
  for (int shown = 0; count == 0 || shown < count; ++shown) {
    const auto started = job.started(), failed = job.failed();
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
    if (::access(spool.records().c_str(), F_OK) != 0) break;  // staged
    job.update();
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    value_or_throw(write_all(STDOUT_FILENO,
                             (is_terminal ? "\033[H\033[J" : "") +
                                 screen(job, spool.jobid(), seconds, started, failed, rows),
                             "stdout"));
  }
  return exit_done;
}

}  // namespace heddle::jobs
