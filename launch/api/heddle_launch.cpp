// SPDX-License-Identifier: MIT
// libheddle-launch: each call runs fs-launch, so that the library needs nothing but libc, cannot
// fall behind the program, and leaves the tool's process as it is: no threads, no signals.

#include "launch/api/heddle_launch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern char** environ;

struct heddle_job {
  pid_t launcher = -1;
  std::string hold;
  bool ended = false;
  int status = 0;
};

struct heddle_session {
  std::string id;
  std::string directory;  ///< of daemons; empty: this process's
};

namespace {

using Words = std::vector<std::string>;
thread_local std::string last_error;

int failed(std::string why) {
  while (why.ends_with('\n')) why.pop_back();
  std::ranges::replace(why, '\n', ' ');
  last_error = why.starts_with("fs-launch: ") ? why.substr(11) : why;
  return 1;
}

/// Nothing escapes into C.
template <class Body>
int guarded(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

std::string program() {
  if (const char* given = std::getenv("HEDDLE_FS_LAUNCH")) return given;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&heddle_version), &info) != 0 && info.dli_fname) {
    const std::string path = info.dli_fname;
    const auto lib = path.substr(0, path.rfind('/'));
    const auto bin = lib.substr(0, lib.rfind('/')) + "/bin/fs-launch";
    if (::access(bin.c_str(), X_OK) == 0) return bin;
  }
  return "fs-launch";
}

void append(Words& words, const char* const* list) {
  for (; list && *list; ++list) words.emplace_back(*list);
}

struct File {
  explicit File(int number) : fd(number) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

/// Of a process that is started; NULL: this one's.
struct Start {
  const int* fds = nullptr;
  const char* directory = nullptr;
  const char* const* environment = nullptr;  ///< added to this process's
};

/// This process's environment with `added`, which win.
std::vector<char*> environment_with(const char* const* added) {
  std::vector<char*> out;
  const auto name = [](const char* entry) {
    return std::string_view(entry, std::strcspn(entry, "="));
  };
  for (char** own = ::environ; own && *own; ++own) {
    const auto* at = added;
    while (at && *at && name(*at) != name(*own)) ++at;
    if (!at || !*at) out.push_back(*own);
  }
  for (; added && *added; ++added) out.push_back(const_cast<char*>(*added));
  out.push_back(nullptr);
  return out;
}

/// The first of `environment` that is not NAME=VALUE, or NULL.
const char* not_a_variable(const char* const* environment) {
  for (; environment && *environment; ++environment)
    if (**environment == '=' || !std::strchr(*environment, '=')) return *environment;
  return nullptr;
}

/// The pid of fs-launch with `words`, or -1.
pid_t start(const Words& words, const Start& as) {
  const int* const fds = as.fds;
  const auto path = program();
  std::vector<char*> argv{const_cast<char*>("fs-launch")};
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  // Above 2 first, so that none is overwritten before it is needed.
  int moved[3] = {-1, -1, -1};
  for (int i = 0; fds && i < 3; ++i) {
    moved[i] = ::fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
    ::posix_spawn_file_actions_adddup2(&actions, moved[i], i);
  }
  if (as.directory) ::posix_spawn_file_actions_addchdir_np(&actions, as.directory);
  auto environment = environment_with(as.environment);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t defaults;
  ::sigfillset(&defaults);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, path.c_str(), &actions, &attributes, argv.data(), environment.data());
  for (const int fd : moved)
    if (fd >= 0) ::close(fd);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) return pid;
  failed(path + ": cannot be started" + (as.directory ? std::string(" in ") + as.directory : "") +
         ": " + std::strerror(error));
  return -1;
}

int exit_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// fs-launch with `words`: its exit status, or -1, and what it writes.
int run(const Words& words, std::string& out, std::string& err) {
  int outs[2], errs[2];
  if (::pipe2(outs, O_CLOEXEC) != 0) return failed(std::strerror(errno)), -1;
  File out_read(outs[0]), out_write(outs[1]);
  if (::pipe2(errs, O_CLOEXEC) != 0) return failed(std::strerror(errno)), -1;
  File err_read(errs[0]), err_write(errs[1]);
  const File null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fds[] = {null.fd, out_write.fd, err_write.fd};
  const pid_t pid = start(words, {.fds = fds});
  if (pid < 0) return -1;
  for (auto* file : {&out_write, &err_write}) ::close(std::exchange(file->fd, -1));
  pollfd entries[] = {{out_read.fd, POLLIN, 0}, {err_read.fd, POLLIN, 0}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) continue;
      char bytes[65536];
      const auto got = ::read(entries[i].fd, bytes, sizeof bytes);
      if (got > 0)
        (i == 0 ? out : err).append(bytes, static_cast<std::size_t>(got));
      else if (got == 0 || errno != EINTR)
        entries[i].fd = -1;
    }
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    // A tool that ignores SIGCHLD has no children to wait for: what was written decides.
    if (errno != EINTR) return err.empty() ? 0 : 3;
  return exit_status(status);
}

/// As run(), for a command that succeeds with 0. Result: 0 or 1.
int command(const Words& words, std::string& out) {
  std::string err;
  const int status = run(words, out, err);
  if (status == 0) return 0;
  if (status > 0) failed(err.empty() ? "fs-launch failed" : err);
  return 1;
}

int command(const Words& words) {
  std::string out;
  return command(words, out);
}

int make_session(Words words, const char* const* options, heddle_session** session) {
  return guarded([&] {
    append(words, options);
    words.insert(words.end(), {"--tool", std::to_string(::getpid())});
    std::string out;
    if (command(words, out) != 0) return 1;
    while (out.ends_with('\n')) out.pop_back();
    *session = new heddle_session{out, ""};
    return 0;
  });
}

int add(const heddle_session* session, const char* kind, const char* path) {
  return guarded([&] { return command({"session", "add", session->id, kind, path}); });
}

/// One block: the array, then the strings.
int parse_ranks(const std::string& text, heddle_rank** ranks, std::size_t* count) {
  std::vector<std::pair<heddle_rank, Words>> found;
  std::istringstream lines(text);
  std::size_t size = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    heddle_rank rank{};
    Words texts(3);
    if (!(words >> rank.rank >> rank.pid >> texts[0] >> texts[1])) continue;
    std::getline(words >> std::ws, texts[2]);
    for (const auto& each : texts) size += each.size() + 1;
    found.emplace_back(rank, std::move(texts));
  }
  auto* block = static_cast<char*>(std::malloc(found.size() * sizeof(heddle_rank) + size + 1));
  if (!block) throw std::bad_alloc();
  auto* list = reinterpret_cast<heddle_rank*>(block);
  char* at = block + found.size() * sizeof(heddle_rank);
  for (std::size_t i = 0; i < found.size(); ++i) {
    list[i] = found[i].first;
    const char** to[] = {&list[i].node, &list[i].job, &list[i].program};
    for (int k = 0; k < 3; ++k) {
      *to[k] = at;
      at = std::copy_n(found[i].second[k].c_str(), found[i].second[k].size() + 1, at);
    }
  }
  *ranks = list;
  *count = found.size();
  return 0;
}

void poll_job(heddle_job* job, int flags) {
  int status = 0;
  pid_t got = 0;
  if (job->ended) return;
  while ((got = ::waitpid(job->launcher, &status, flags)) < 0 && errno == EINTR) {
  }
  if (got == 0) return;
  job->ended = true;
  job->status = got < 0 ? 0 : exit_status(status);
}

/// The job of held ranks as `release --list` prints it. Result: 0 or 1.
int held_job(const heddle_job* job, std::string& name) {
  if (job->hold.empty()) return failed("the ranks are not held");
  std::string out, err;
  if (run({"release", "--list", job->hold}, out, err) < 0) return 1;
  std::istringstream words(out);
  std::string rank, pid, node;
  if (words >> rank >> pid >> node >> name) return 0;
  return failed(err.empty() ? "no rank is held" : err);
}

/// Slurm's JOB.STEP. Other launchers' names: a number, HOST:PORT, ...
bool is_step(const std::string& name) {
  return name.find('.') != name.npos && name.find_first_not_of("0123456789.") == name.npos;
}

int start_daemon(const heddle_session* session, const char* const* argv,
                 const char* const* environment, Words options, std::string& out,
                 std::string& err) {
  Words words = {"session", "daemon", session->id};
  if (!session->directory.empty()) words.insert(words.end(), {"--cwd", session->directory});
  for (; environment && *environment; ++environment)
    words.insert(words.end(), {"--env", *environment});
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  append(words, argv);
  return run(words, out, err);
}

}  // namespace

extern "C" {

const char* heddle_version(void) { return HEDDLE_VERSION; }
const char* heddle_error(void) { return last_error.c_str(); }

int heddle_job_launch(const char* const* argv, const char* hold, const int* fds, heddle_job** job) {
  return heddle_job_launch_in(nullptr, nullptr, argv, hold, fds, job);
}

int heddle_job_launch_in(const char* directory, const char* const* environment,
                         const char* const* argv, const char* hold, const int* fds,
                         heddle_job** job) {
  return guarded([&] {
    if (const auto* wrong = not_a_variable(environment))
      return failed(std::string(wrong) + ": is not NAME=VALUE");
    auto made = std::make_unique<heddle_job>();
    Words words;
    if (hold) {
      unsigned number = 0;
      if (::getrandom(&number, sizeof number, 0) != sizeof number)
        return failed(std::strerror(errno));
      char id[32];
      std::snprintf(id, sizeof id, "lib-%d-%08x", static_cast<int>(::getpid()), number);
      made->hold = id;
      words = {"--hold", hold, "--hold-id", id, "--tool", std::to_string(::getpid())};
    }
    words.emplace_back("--");
    append(words, argv);
    made->launcher = start(words, {fds, directory, environment});
    if (made->launcher < 0) return 1;
    *job = made.release();
    return 0;
  });
}

int heddle_job_wait_held(heddle_job* job, unsigned seconds) {
  return guarded([&] {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::seconds(seconds);
    for (;;) {
      std::string out, err;
      if (run({"release", "--list", job->hold}, out, err) == 0) return 0;
      poll_job(job, WNOHANG);
      if (job->ended) return failed("the launcher has ended");
      if (Clock::now() >= end) return failed("not all ranks are held yet");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
}

int heddle_job_step(heddle_job* job, char** step) {
  return guarded([&] {
    std::string name;
    if (held_job(job, name) != 0) return 1;
    if (!is_step(name)) return failed("no rank of a Slurm step is held");
    *step = ::strdup(name.c_str());
    return *step ? 0 : failed(std::strerror(ENOMEM));
  });
}

int heddle_job_release(heddle_job* job) {
  return guarded([&] {
    if (job->hold.empty()) return failed("the ranks are not held");
    return command({"release", job->hold});
  });
}

int heddle_job_signal(heddle_job* job, int signal) {
  poll_job(job, WNOHANG);
  if (job->ended) return failed("the launcher has ended");
  return ::kill(job->launcher, signal) == 0 ? 0 : failed(std::strerror(errno));
}

int heddle_job_wait(heddle_job* job, int* status) {
  poll_job(job, 0);
  if (status) *status = job->status;
  return 0;
}

void heddle_job_free(heddle_job* job) { delete job; }

int heddle_session_create(const char* job, const char* const* options, heddle_session** session) {
  Words words = {"session", "create"};
  if (job) words.insert(words.end(), {"--job", job});
  return make_session(std::move(words), options, session);
}

int heddle_session_attach(const char* step, const char* const* options, heddle_session** session) {
  return make_session({"session", "attach", step}, options, session);
}

int heddle_job_session(heddle_job* job, const char* const* options, heddle_session** session) {
  return guarded([&] {
    std::string name;
    if (held_job(job, name) != 0) return 1;
    if (is_step(name)) return heddle_session_attach(name.c_str(), options, session);
    Words words = {"session", "create"};
    if (name != "-") words.insert(words.end(), {"--ranks", name});
    return make_session(std::move(words), options, session);
  });
}

int heddle_session_open(const char* id, heddle_session** session) {
  return guarded([&] {
    std::string out;
    if (command({"session", "ranks", id}, out) != 0) return 1;
    *session = new heddle_session{id, ""};
    return 0;
  });
}

void heddle_session_close(heddle_session* session) { delete session; }

int heddle_session_set_directory(heddle_session* session, const char* directory) {
  return guarded([&] {
    session->directory = directory ? directory : "";
    return 0;
  });
}

const char* heddle_session_id(const heddle_session* session) { return session->id.c_str(); }

int heddle_session_add_binary(heddle_session* session, const char* path) {
  return add(session, "--binary", path);
}
int heddle_session_add_library(heddle_session* session, const char* path) {
  return add(session, "--library", path);
}
int heddle_session_add_directory(heddle_session* session, const char* path) {
  return add(session, "--directory", path);
}
int heddle_session_add_file(heddle_session* session, const char* path) {
  return add(session, "--file", path);
}

int heddle_session_ship(heddle_session* session, unsigned long long* bytes) {
  return guarded([&] {
    std::string out;
    if (command({"session", "ship", session->id}, out) != 0) return 1;
    if (bytes) *bytes = std::strtoull(out.c_str(), nullptr, 10);
    return 0;
  });
}

int heddle_session_daemon(heddle_session* session, const char* const* argv,
                          const char* const* environment, const char* log) {
  return guarded([&] {
    std::string out, err;
    Words options;
    if (log) options = {"--log", log};
    const int status = start_daemon(session, argv, environment, options, out, err);
    return status == 0 ? 0 : status < 0 ? 1 : failed(err);
  });
}

int heddle_session_run(heddle_session* session, const char* const* argv,
                       const char* const* environment, char** output, int* status) {
  return guarded([&] {
    std::string out, err;
    const int ended = start_daemon(session, argv, environment, {"--wait"}, out, err);
    if (ended < 0) return 1;
    if (!err.empty()) return failed(err);
    if (status) *status = ended;
    if (output && !(*output = ::strdup(out.c_str()))) return failed(std::strerror(ENOMEM));
    return 0;
  });
}

int heddle_session_ranks(heddle_session* session, heddle_rank** ranks, std::size_t* count) {
  return guarded([&] {
    std::string out;
    if (command({"session", "ranks", session->id}, out) != 0) return 1;
    return parse_ranks(out, ranks, count);
  });
}

void heddle_ranks_free(heddle_rank* ranks) { std::free(ranks); }

int heddle_session_signal(heddle_session* session, int signal, std::size_t* count) {
  return guarded([&] {
    std::string out, err;
    const int status = run({"session", "signal", session->id, std::to_string(signal)}, out, err);
    if (status != 0 && !err.empty()) return failed(err);
    if (status < 0) return 1;
    if (count) *count = std::strtoul(out.c_str(), nullptr, 10);
    return 0;
  });
}

int heddle_session_destroy(heddle_session* session) {
  if (!session) return 0;
  const int status = guarded([&] { return command({"session", "destroy", session->id}); });
  delete session;
  return status;
}

const char* heddle_daemon_session(void) { return std::getenv("HEDDLE_SESSION"); }
const char* heddle_daemon_directory(void) { return std::getenv("HEDDLE_SESSION_DIR"); }
const char* heddle_daemon_step(void) { return std::getenv("HEDDLE_SESSION_STEP"); }
const char* heddle_daemon_node(void) { return std::getenv("HEDDLE_SESSION_NODE"); }

int heddle_daemon_ranks(heddle_rank** ranks, std::size_t* count) {
  return guarded([&] {
    if (!heddle_daemon_session()) return failed("this is no daemon of a session");
    Words words = {"session", "ranks", "--here"};
    const char* step = heddle_daemon_step();
    if (step && *step) words.insert(words.end(), {"--step", step});
    std::string out;
    if (command(words, out) != 0) return 1;
    return parse_ranks(out, ranks, count);
  });
}

}  // extern "C"
