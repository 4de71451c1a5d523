// SPDX-License-Identifier: MIT
#include "container-hooks/helper_program.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>

#include "container-hooks/sealed_program.hpp"

namespace heddle {
namespace {

/// Reads both pipes to their ends, so that neither can fill and stop the writer. Fails when there
/// is too much, or when the reader has gone.
Result<void> collect(const HelperRequest& request, const Fd& out, const Fd& err, std::size_t limit,
                     HelperAnswer& answer, std::string& talk) {
  std::array<pollfd, 3> entries{pollfd{out.get(), POLLIN, 0}, pollfd{err.get(), POLLIN, 0},
                                pollfd{request.reader, 0, 0}};
  char buffer[1U << 16];
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    if (::poll(entries.data(), entries.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return fail_errno(request.name, "cannot wait for it");
    }
    if (entries[2].revents != 0) return fail(request.name, "stopped", "nobody waits for it");
    for (std::size_t i = 0; i < 2; ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) continue;
      const ssize_t n = ::read(entries[i].fd, buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      std::string& text = i == 0 ? answer.out : talk;
      if (n <= 0)
        entries[i].fd = -1;
      else if (text.size() + static_cast<std::size_t>(n) > limit)
        return fail(request.name, "says too much");
      else
        text.append(buffer, static_cast<std::size_t>(n));
    }
  }
  return {};
}

/// `fs-resolve: a: b: c\nhint: d\n` as `a: b: c (d)`: a runtime shows one line.
std::string one_line(const std::string& name, const std::string& talk) {
  std::string out;
  for (std::size_t at = 0; at < talk.size();) {
    const auto end = std::min(talk.find('\n', at), talk.size());
    std::string line = talk.substr(at, end - at);
    at = end + 1;
    if (line.starts_with(name + ": ")) line.erase(0, name.size() + 2);
    if (line.empty()) continue;
    if (line.starts_with("hint: ")) line = "(" + line.substr(6) + ")";
    out += (out.empty() ? "" : line.starts_with('(') ? " " : "; ") + line;
  }
  return out;
}

/// fs-mount's static form starts in half the time: 1.2 ms of CPU time less, which ld.so takes for
/// the other (measured), at each container's start.
std::string path_of(const std::string& programs, const std::string& name) {
  const auto as_one_file = programs + "/../libexec/heddle/" + name + "-static";
  if (name == "fs-mount" && ::access(as_one_file.c_str(), X_OK) == 0) return as_one_file;
  return programs + "/" + name;
}

}  // namespace

Result<Child> start_helper(const HelperRequest& request) {
  const auto here = hook_program_dir();
  if (!here) return fail(here.error());
  std::vector<std::string> argv{request.name};
  argv.insert(argv.end(), request.arguments.begin(), request.arguments.end());
  SpawnOptions options;
  options.fds = request.fds;
  // LD_PRELOAD, LD_AUDIT and PATH of an image's environment reach the hook under some runtimes.
  options.environment = {"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C"};
  options.environment->insert(options.environment->end(), request.environment.begin(),
                              request.environment.end());
  return spawn(path_of(*here, request.name), argv, options);
}

Result<HelperAnswer> run_helper(const HelperRequest& request, std::size_t limit) {
  auto out = make_pipe();
  if (!out) return fail(std::move(out.error()));
  auto err = make_pipe();
  if (!err) return fail(std::move(err.error()));
  HelperRequest piped = request;
  piped.fds.emplace_back(out->write_end.get(), STDOUT_FILENO);
  piped.fds.emplace_back(err->write_end.get(), STDERR_FILENO);
  auto child = start_helper(piped);
  if (!child) return fail(std::move(child.error()));
  out->write_end.reset();
  err->write_end.reset();
  HelperAnswer answer;
  std::string talk;
  if (auto all = collect(request, out->read_end, err->read_end, limit, answer, talk); !all)
    return fail(std::move(all.error()));
  auto status = child->wait();
  if (!status) return fail(std::move(status.error()));
  answer.status = *status;
  answer.last_words = one_line(request.name, talk);
  return answer;
}

}  // namespace heddle
