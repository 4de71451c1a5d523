// SPDX-License-Identifier: MIT
#include "tests/fault/traced_run.hpp"

#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>

namespace heddle::test {
namespace {

/// The tracing process. It and its tracees share only a pipe with the test.
class Tracer {
 public:
  Tracer(pid_t program, std::optional<Fault> fault, TracedRun::Scope scope, unsigned wrappers,
         int reports)
      : program_(program),
        fault_(std::move(fault)),
        scope_(scope),
        wrappers_(wrappers),
        reports_(reports) {}

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
    report(text.str());
  }

 private:
  enum class At : std::uint8_t { outside, inside, in_fault };

  void stopped(pid_t thread, int status) {
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      known_.erase(thread);
      if (thread == program_) report("program " + std::to_string(exit_status(status)));
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
      // A ptrace event and not a signal of the program.
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
      // The last call of ld.so; earlier ones are not the program's.
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
      // The kernel preserves the argument registers, and compilers rely on it.
      registers.rdi = asked_.rdi;
      registers.rdx = asked_.rdx;
      registers.r8 = asked_.r8;
      if (fault_->kind == Fault::Kind::error)
        registers.rax = static_cast<unsigned long long>(-fault_->error_number);
    }
    ::ptrace(PTRACE_SETREGS, thread, 0, &registers);
  }

  void spoil(long call, user_regs_struct& registers) const {
    if (fault_->kind == Fault::Kind::cut) {
      // A splice to the FUSE device is one answer, which the kernel takes whole.
      const bool is_answer = call == SYS_splice && registers.rsi == 0;
      auto& length = call == SYS_splice ? registers.r8 : registers.rdx;
      if (!is_answer && length > 1) length /= 2;
    } else if (call != SYS_close) {  // a failing close(2) closes the descriptor too
      registers.orig_rax = static_cast<unsigned long long>(-1);
    }
  }

  static bool is_exec(int status) { return (status >> 8) == (SIGTRAP | (PTRACE_EVENT_EXEC << 8)); }
  static void go_on(pid_t thread, int signal) { ::ptrace(PTRACE_SYSCALL, thread, 0, signal); }
  void report(const std::string& line) const {
    const std::string text = line + "\n";
    (void)!::write(reports_, text.data(), text.size());
  }

  pid_t program_;
  std::optional<Fault> fault_;
  TracedRun::Scope scope_;
  unsigned wrappers_;
  int reports_;
  std::map<pid_t, At> known_;
  unsigned execs_ = 0;
  bool begun_ = false;
  user_regs_struct asked_{};  ///< before the fault
  TracedRun::Counts counts_;
};

[[noreturn]] void become(const Strings& argv, const Strings& environment,
                         const std::string& output) {
  const auto arguments = to_c_array(argv);
  const auto variables = to_c_array(environment);
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

/// Calls that cannot fail, or whose failure no program survives: a futex that wakes no thread; brk,
/// as glibc's malloc aborts when only the second of two is refused (sysmalloc()'s correction).
const std::set<long> kSpared = {
    SYS_exit,           SYS_exit_group,   SYS_rt_sigreturn, SYS_restart_syscall,
    SYS_getpid,         SYS_gettid,       SYS_getppid,      SYS_getuid,
    SYS_geteuid,        SYS_getgid,       SYS_getegid,      SYS_set_tid_address,
    SYS_umask,          SYS_futex,        SYS_sched_yield,  SYS_munmap,
    SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_arch_prctl,   SYS_set_robust_list,
    SYS_setfsuid,       SYS_setfsgid,     SYS_rseq,         SYS_brk};

const std::set<long> kReadsAndWrites = {SYS_read, SYS_pread64, SYS_write, SYS_pwrite64, SYS_splice};

std::string name_of(long call) {
  const std::unique_ptr<char, decltype(&std::free)> name(
      ::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(call)), &std::free);
  return name ? name.get() : std::to_string(call);
}

}  // namespace

void separate_mounts() {
  static const bool done = ::unshare(CLONE_NEWNS) == 0 &&
                           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  if (!done) throw Error::from_errno("", "no mount namespace", errno);
}

TracedRun TracedRun::start(const Strings& argv, const Strings& environment,
                           const std::string& output, const std::optional<Fault>& fault,
                           Scope scope, unsigned wrappers) {
  Pipe reports = value_or_throw(make_pipe());
  const pid_t tracer = ::fork();
  if (tracer < 0) throw Error::from_errno(argv.at(0), "cannot be started");
  if (tracer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t program = ::fork();
    if (program == 0) become(argv, environment, output);
    reports.read_end.reset();
    Tracer(program, fault, scope, wrappers, reports.write_end.get()).run();
    ::_exit(0);
  }
  return {tracer, std::move(reports.read_end)};
}

TracedRun::~TracedRun() {
  if (!reports_) return;  // moved from
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
    pollfd entry{reports_.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0)
      return std::nullopt;
    char buffer[4096];
    const ssize_t n = ::read(reports_.get(), buffer, sizeof(buffer));
    if (n <= 0) return std::nullopt;
    read_.append(buffer, static_cast<std::size_t>(n));
  }
}

std::optional<int> TracedRun::wait_for_program(std::chrono::milliseconds limit) {
  const auto report = line(limit);
  int status = 0;
  if (!report || std::sscanf(report->c_str(), "program %d", &status) != 1) return std::nullopt;
  return status;
}

std::string TracedRun::left() const {
  std::string out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto status = read_file(entry.path() / "status").value_or("");
    if (status.find("TracerPid:\t" + std::to_string(tracer_) + "\n") == std::string::npos) continue;
    std::error_code error;
    for (const auto& task : fs::directory_iterator(entry.path() / "task", error)) {
      const auto text = [&](const char* name) {
        return read_file(task.path() / name).value_or("?");
      };
      out += "\n" + task.path().string() + ": " + text("stat").substr(0, 40) + "; wchan " +
             text("wchan") + "; syscall " + text("syscall");
    }
  }
  return out;
}

std::optional<TracedRun::Counts> TracedRun::wait_for_all(std::chrono::milliseconds limit) {
  const auto report = line(limit);
  if (!report) {
    std::cerr << "left:" << left() << '\n';
    return std::nullopt;
  }
  std::istringstream text(*report);
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

namespace {

std::vector<Fault> all_faults(const TracedRun::Counts& counts) {
  std::vector<Fault> out;
  for (const auto& [call, count] : counts) {
    if (kSpared.count(call) != 0) continue;
    for (unsigned nth = 1; nth <= count; ++nth) {
      for (const int error : {EIO, ENOSPC, ENOMEM, EMFILE, EINTR})
        out.push_back({call, nth, Fault::Kind::error, error});
      if (kReadsAndWrites.count(call) != 0) out.push_back({call, nth, Fault::Kind::cut, 0});
    }
  }
  return out;
}

}  // namespace

void try_faults(const std::function<TracedRun::Counts(const std::optional<Fault>&)>& live) {
  auto faults = all_faults(live(std::nullopt));
  if (::testing::Test::HasFailure()) return;
  EXPECT_GT(faults.size(), 500U);
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
    (void)live(fault);
    if (++tried % 100 == 0) std::cerr << tried << " of " << faults.size() << '\n';
  }
  std::cerr << tried << " of " << faults.size() << " faults tried\n";
}

}  // namespace heddle::test
