// SPDX-License-Identifier: MIT
#include "tests/fault/traced_run.hpp"

#include <fcntl.h>
#include <poll.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <sstream>

#include "base/child.hpp"

namespace heddle::test {
namespace {

/// The process that traces; it and its tracees share nothing with the test but the pipe.
class Tracer {
 public:
  Tracer(pid_t program, std::optional<Fault> fault, TracedRun::Scope scope, unsigned wrappers,
         int told)
      : program_(program),
        fault_(std::move(fault)),
        scope_(scope),
        wrappers_(wrappers),
        told_(told) {}

  void run() {
    int status = 0;
    ::waitpid(program_, &status, __WALL);
    known_[program_];
    ::ptrace(PTRACE_SETOPTIONS, program_, 0,
             PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                 PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    go_on(program_, 0);
    for (pid_t thread; (thread = ::waitpid(-1, &status, __WALL)) > 0;) stopped(thread, status);
    std::ostringstream text;
    text << "all";
    for (const auto& [call, count] : counts_) text << ' ' << call << ' ' << count;
    tell(text.str());
  }

 private:
  enum class At : std::uint8_t { outside, inside, in_fault };

  void stopped(pid_t thread, int status) {
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      known_.erase(thread);
      if (thread == program_) tell("program " + std::to_string(exit_status(status)));
      return;
    }
    const int signal = WSTOPSIG(status);
    const bool is_new = known_.find(thread) == known_.end();
    At& at = known_[thread];
    if (signal == (SIGTRAP | 0x80)) {
      at_call(thread, at);
      go_on(thread, 0);
    } else if (begun_ && scope_ == TracedRun::Scope::until_exec && is_exec(status)) {
      known_.erase(thread);
      ::ptrace(PTRACE_DETACH, thread, 0, 0);
    } else if ((status >> 16) != 0 || (is_new && signal == SIGSTOP)) {
      // Its own start, a fork or an exec: none of the program's signals.
      execs_ += is_exec(status);
      go_on(thread, 0);
    } else {
      go_on(thread, signal);
    }
  }

  void at_call(pid_t thread, At& at) {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, thread, 0, &registers);
    if (at == At::outside) {
      at = At::inside;
      const auto call = static_cast<long>(registers.orig_rax);
      // The last that ld.so asks for: what it did so far is not the program's.
      begun_ = begun_ || (execs_ > wrappers_ && call == SYS_prlimit64);
      if (!begun_) return;
      const unsigned number = ++counts_[call];
      if (!fault_ || call != fault_->call || number != fault_->nth) return;
      at = At::in_fault;
      asked_ = registers;
      spoil(call, registers);
    } else if (at == At::inside) {
      at = At::outside;
      return;
    } else {
      at = At::outside;
      // A call leaves its arguments' registers as they were, and compilers rely on it.
      registers.rdi = asked_.rdi;
      registers.rdx = asked_.rdx;
      registers.r8 = asked_.r8;
      if (fault_->kind == Fault::Kind::error && fault_->call != SYS_brk)
        registers.rax = static_cast<unsigned long long>(-fault_->error_number);
    }
    ::ptrace(PTRACE_SETREGS, thread, 0, &registers);
  }

  void spoil(long call, user_regs_struct& registers) const {
    if (fault_->kind == Fault::Kind::cut) {
      // What goes from a pipe to the device is one answer: the kernel takes all of it or nothing.
      const bool is_answer = call == SYS_splice && registers.rsi == 0;
      auto& length = call == SYS_splice ? registers.r8 : registers.rdx;
      if (!is_answer && length > 1) length /= 2;
    } else if (call == SYS_brk) {
      registers.rdi = 0;             // the kernel's way to refuse: the break stays where it is
    } else if (call != SYS_close) {  // one that fails has closed all the same (close(2))
      registers.orig_rax = static_cast<unsigned long long>(-1);
    }
  }

  static bool is_exec(int status) { return (status >> 8) == (SIGTRAP | (PTRACE_EVENT_EXEC << 8)); }
  static void go_on(pid_t thread, int signal) { ::ptrace(PTRACE_SYSCALL, thread, 0, signal); }
  void tell(const std::string& line) const {
    const std::string text = line + "\n";
    (void)!::write(told_, text.data(), text.size());
  }

  pid_t program_;
  std::optional<Fault> fault_;
  TracedRun::Scope scope_;
  unsigned wrappers_;
  int told_;
  std::map<pid_t, At> known_;
  unsigned execs_ = 0;
  bool begun_ = false;
  user_regs_struct asked_{};  ///< before the fault
  TracedRun::Counts counts_;
};

[[noreturn]] void become(const std::vector<std::string>& argv,
                         const std::vector<std::string>& environment, const std::string& output) {
  std::vector<char*> arguments;
  for (const auto& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (const auto& entry : environment) variables.push_back(const_cast<char*>(entry.c_str()));
  variables.push_back(nullptr);
  const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int in = ::open("/dev/null", O_RDONLY);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(out, 2);
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  ::setpgid(0, 0);
  ::ptrace(PTRACE_TRACEME, 0, 0, 0);
  ::raise(SIGSTOP);
  ::execve(arguments[0], arguments.data(), variables.data());
  ::_exit(127);
}

/// Calls that cannot fail (a futex that wakes nobody is a thread lost), or whose failure no program
/// could live with.
const std::set<long> kSpared = {
    SYS_exit,     SYS_exit_group,      SYS_rt_sigreturn, SYS_restart_syscall, SYS_getpid,
    SYS_gettid,   SYS_getppid,         SYS_getuid,       SYS_geteuid,         SYS_getgid,
    SYS_getegid,  SYS_set_tid_address, SYS_umask,        SYS_futex,           SYS_sched_yield,
    SYS_munmap,   SYS_rt_sigprocmask,  SYS_rt_sigaction, SYS_arch_prctl,      SYS_set_robust_list,
    SYS_setfsuid, SYS_setfsgid,        SYS_rseq};

const std::set<long> kReadsAndWrites = {SYS_read, SYS_pread64, SYS_write, SYS_pwrite64, SYS_splice};

std::string name_of(long call) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      ::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(call)), &std::free);
  return name ? name.get() : std::to_string(call);
}

}  // namespace

TracedRun TracedRun::start(const std::vector<std::string>& argv,
                           const std::vector<std::string>& environment, const std::string& output,
                           const std::optional<Fault>& fault, Scope scope, unsigned wrappers) {
  Pipe told = value_or_throw(make_pipe());
  const pid_t tracer = ::fork();
  if (tracer < 0) throw Error::from_errno(argv.at(0), "cannot be started");
  if (tracer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t program = ::fork();
    if (program == 0) become(argv, environment, output);
    told.read_end.reset();
    Tracer(program, fault, scope, wrappers, told.write_end.get()).run();
    ::_exit(0);
  }
  return {tracer, std::move(told.read_end)};
}

TracedRun::~TracedRun() {
  if (!told_) return;  // moved from
  ::kill(tracer_, SIGKILL);
  ::waitpid(tracer_, nullptr, 0);
}

std::optional<std::string> TracedRun::line(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (const auto end = read_.find('\n'); end != std::string::npos) {
      std::string out = read_.substr(0, end);
      read_.erase(0, end + 1);
      return out;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{told_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0)
      return std::nullopt;
    char buffer[4096];
    const ssize_t n = ::read(told_.get(), buffer, sizeof(buffer));
    if (n <= 0) return std::nullopt;
    read_.append(buffer, static_cast<std::size_t>(n));
  }
}

std::optional<int> TracedRun::wait_for_program(std::chrono::milliseconds limit) {
  const auto told = line(limit);
  int status = 0;
  if (!told || std::sscanf(told->c_str(), "program %d", &status) != 1) return std::nullopt;
  return status;
}

std::optional<TracedRun::Counts> TracedRun::wait_for_all(std::chrono::milliseconds limit) {
  const auto told = line(limit);
  if (!told) return std::nullopt;
  std::istringstream text(*told);
  std::string word;
  text >> word;
  if (word != "all") return std::nullopt;
  Counts counts;
  for (long call = 0; text >> call;) text >> counts[call];
  return counts;
}

std::string to_text(const Fault& fault) {
  const std::string how =
      fault.kind == Fault::Kind::cut ? "cut short" : ::strerrorname_np(fault.error_number);
  return name_of(fault.call) + " number " + std::to_string(fault.nth) + ": " + how;
}

std::vector<Fault> all_faults(const TracedRun::Counts& counts) {
  std::vector<Fault> out;
  for (const auto& [call, count] : counts) {
    if (kSpared.count(call) != 0) continue;
    for (unsigned nth = 1; nth <= count; ++nth) {
      for (const int error : {EIO, ENOSPC, ENOMEM, EMFILE, EINTR})
        if (call != SYS_brk || error == ENOMEM)
          out.push_back({call, nth, Fault::Kind::error, error});
      if (kReadsAndWrites.count(call) != 0) out.push_back({call, nth, Fault::Kind::cut, 0});
    }
  }
  return out;
}

void try_faults(std::vector<Fault> faults, const std::function<void(const Fault&)>& live) {
  const char* asked = std::getenv("HEDDLE_FAULTS");
  const bool sample = !asked;
  if (asked && std::string_view(asked) != "all")
    std::erase_if(faults,
                  [&](const Fault& f) { return to_text(f).find(asked) == std::string::npos; });
  if (sample) std::shuffle(faults.begin(), faults.end(), std::mt19937_64(std::random_device()()));
  const char* seconds = std::getenv("HEDDLE_TEST_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 4);
  std::size_t tried = 0;
  for (const auto& fault : faults) {
    if (sample && std::chrono::steady_clock::now() > end) break;
    live(fault);
    if (++tried % 100 == 0) std::cerr << tried << " of " << faults.size() << '\n';
  }
  std::cerr << tried << " of " << faults.size() << " faults tried\n";
}

}  // namespace heddle::test
