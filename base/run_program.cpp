// SPDX-License-Identifier: MIT
#include "base/run_program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "base/backoff.hpp"
#include "base/child.hpp"
#include "base/try.hpp"

namespace heddle {
namespace {

constexpr std::chrono::seconds kEndWithin{2};

/// What read_output() and run_and_read() wait for; -1: not for that.
struct Sources {
  int out = -1;
  int err = -1;
  int ended = -1;  ///< readable at the program's end
  int reader = -1;
};

/// Appends what the pipe `fd` has now; `fd` becomes -1 at its end.
Result<void> drain(int& fd, std::string& text, const std::string& name, std::size_t most) {
  char buffer[1U << 14];
  while (fd >= 0) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) fd = -1;
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    if (text.size() > most)
      return fail(Error::with_code(EFBIG, name, "stopped", "it prints too much"));
  }
  return {};
}

/// Until the program's end, or without `ended` until both pipes end.
Result<void> collect(const std::string& name, const Sources& from, std::chrono::milliseconds limit,
                     std::size_t most, Output& output) {
  for (const int fd : {from.out, from.err})
    if (fd >= 0 && ::fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
      return fail_errno(name, "cannot read what it prints");
  std::array<pollfd, 4> entries{pollfd{from.out, POLLIN, 0}, pollfd{from.err, POLLIN, 0},
                                pollfd{from.ended, POLLIN, 0}, pollfd{from.reader, 0, 0}};
  const auto start = monotonic_ms();
  for (;;) {
    const auto left = limit == kNoLimit ? -1 : start + limit.count() - monotonic_ms();
    if (limit != kNoLimit && left <= 0)
      return fail(Error::with_code(ETIMEDOUT, name, "stopped",
                                   fmt::format("it takes longer than {:.1f} s",
                                               std::chrono::duration<double>(limit).count())));
    if (::poll(entries.data(), entries.size(),
               static_cast<int>(std::min<std::int64_t>(left, INT_MAX))) < 0) {
      if (errno == EINTR) continue;
      return fail_errno(name, "cannot wait for it");
    }
    if (entries[3].revents != 0) return fail_errno(name, "stopped", ECANCELED);
    TRY(drain(entries[0].fd, output.out, name, most));
    TRY(drain(entries[1].fd, output.err, name, most));
    if (from.ended >= 0 ? entries[2].revents != 0 : entries[0].fd < 0 && entries[1].fd < 0)
      return {};
  }
}

}  // namespace

Result<Output> run_and_read(const std::string& path, const std::vector<std::string>& argv,
                            const ReadOptions& options) {
  SpawnOptions how;
  how.fds = options.fds;
  how.environment = options.environment;
  const auto is_named = [&](int fd) {
    return std::ranges::count(options.fds, fd, &std::pair<int, int>::second) != 0;
  };
  const Fd null = TRY(open_file("/dev/null", O_RDWR));
  Pipe out, err;
  if (!is_named(STDIN_FILENO)) how.fds.emplace_back(null.get(), STDIN_FILENO);
  if (!is_named(STDOUT_FILENO)) {
    out = TRY(make_pipe());
    how.fds.emplace_back(out.write_end.get(), STDOUT_FILENO);
  }
  if (options.messages == Messages::collected) err = TRY(make_pipe());
  if (options.messages != Messages::shown)
    how.fds.emplace_back(err.write_end ? err.write_end.get() : null.get(), STDERR_FILENO);

  Child child = TRY(spawn(path, argv, how));
  out.write_end.reset();
  err.write_end.reset();
  const Fd ended = TRY(watch_child_end(child.pid()));
  Output output;
  const auto collected =
      collect(argv[0], {out.read_end.get(), err.read_end.get(), ended.get(), options.reader},
              options.limit, options.most_bytes, output);
  if (!collected) {
    if (collected.error().code() == ETIMEDOUT && ::kill(child.pid(), SIGTERM) == 0)
      (void)child.wait_for(kEndWithin);
    child.abandon();
    return fail(collected.error());
  }
  output.status = TRY(child.wait());
  return output;
}

Result<Output> read_output(const std::string& name, const Fd& out, const Fd& err,
                           std::chrono::milliseconds limit, std::size_t most_bytes) {
  Output output;
  TRY(collect(name, {.out = out.get(), .err = err.get()}, limit, most_bytes, output));
  return output;
}

Result<Fd> memory_file(std::string_view text) {
  Fd file(::memfd_create("text", MFD_CLOEXEC));
  if (!file) return fail_errno("memfd", "cannot be made");
  TRY(write_all(file.get(), text, "memfd"));
  if (::lseek(file.get(), 0, SEEK_SET) != 0) return fail_errno("memfd", "cannot be rewound");
  return file;
}

}  // namespace heddle
