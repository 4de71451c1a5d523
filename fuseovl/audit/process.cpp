// SPDX-License-Identifier: MIT
#include "fuseovl/audit/process.hpp"

#include <elf.h>

#include "base/rank_mark.hpp"
#include "fuseovl/audit/kernel.hpp"

namespace heddle::audit {
namespace {

constexpr char kTunables[] = "GLIBC_TUNABLES";
constexpr char kSaved[] = "HEDDLE_TUNABLES";  // static_tls.hpp: kSavedTunables
constexpr char kAudit[] = "LD_AUDIT";
constexpr char kOurFile[] = "libheddle-audit.so";
constexpr char kSelf[] = "/proc/self/exe";

/// The value in "name=value", or nullptr.
const char* value_of(const char* entry, const char* name) {
  const char* rest = behind(entry, name);
  return rest && *rest == '=' ? rest + 1 : nullptr;
}

/// Copies an LD_AUDIT list without the elements that name this library; returns the NUL's address.
char* copy_without_us(char* out, const char* list) {
  char* const begin = out;
  while (*list) {
    const char* end = list;
    const char* base = list;
    for (; *end && *end != ':'; ++end)
      if (*end == '/') base = end + 1;
    const char* rest = behind(base, kOurFile);
    if (!rest || rest != end) {
      if (out != begin) *out++ = ':';
      while (list != end) *out++ = *list++;
    }
    list = *end ? end + 1 : end;
  }
  *out = '\0';
  return out;
}

bool is_script(const char* path) {
  char head[2] = {};
  const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) syscall6(__NR_read, fd, as_long(head), sizeof head);
  if (fd >= 0) syscall6(__NR_close, fd);
  return head[0] == '#' && head[1] == '!';
}

/// The path and arguments that exec this program again, or a null path. Under the same name, but
/// for a program without one (fexecve, memfd, renamed): that is "exe" in ps then.
struct Command {
  const char* path = nullptr;
  char** argv = nullptr;

  explicit Command(const StartBlock& start) : argv(start.argv) {
    const auto* name = reinterpret_cast<const char*>(start.auxiliary(AT_EXECFN));
    struct stat self, named;
    // Without AT_BASE ld.so itself is the command, and argv has lost its arguments.
    if (!argv || !start.auxiliary(AT_BASE) || !stat_path(kSelf, self)) return;
    path = kSelf;
    if (!name || !stat_path(name, named)) return;
    if (named.st_dev == self.st_dev && named.st_ino == self.st_ino) {
      path = name;
      return;
    }
    // A script: the kernel has put the interpreter and its options in front of AT_EXECFN, in the
    // place of argv[0] (fs/binfmt_script.c), and does so again.
    char** script = argv;
    while (*script && !equal(*script, name)) ++script;
    if (!*script || !is_script(name)) return;
    path = name;
    argv = script;
  }
};

}  // namespace

StartBlock::StartBlock(int count, char** arguments, char** environment)
    : argc(count), argv(arguments), envp(environment) {
  if (!envp) return;
  char** end = envp;
  while (*end) ++end;
  auxv = reinterpret_cast<const unsigned long*>(end + 1);
}

const char* StartBlock::variable(const char* name) const {
  for (char** entry = envp; entry && *entry; ++entry)
    if (const char* value = value_of(*entry, name)) return value;
  return nullptr;
}

unsigned long StartBlock::auxiliary(unsigned long type) const {
  for (const unsigned long* pair = auxv; pair && pair[0] != AT_NULL; pair += 2)
    if (pair[0] == type) return pair[1];
  return 0;
}

void StartBlock::remove(const char* name) {
  char** out = envp;
  for (char** entry = envp; entry && *entry; ++entry)
    if (!value_of(*entry, name)) *out++ = *entry;
  if (out) *out = nullptr;
}

tls::Settings current_settings(const StartBlock& start) {
  // envp holds ld.so's unparsed copy (tunables_strdup()).
  const char* text = start.variable(kTunables);
  return text ? tls::read_settings(text, length(text)) : tls::Settings{};
}

void restore_environment(StartBlock& start) {
  const char* saved = start.variable(kSaved);
  if (!saved) return;
  start.remove(kSaved);
  if (!value_of(saved, kTunables)) {  // the user had none
    start.remove(kTunables);
    return;
  }
  for (char** entry = start.envp; *entry; ++entry)
    if (value_of(*entry, kTunables)) *entry = const_cast<char*>(saved);
}

namespace {

/// Builds the environment of a restart: the old one but for the variables that the restart sets.
class Restart {
 public:
  explicit Restart(const StartBlock& start) : start_(start), command_(start) {
    if (!command_.path) return;
    unsigned long count = 0, text = 0;
    for (; start.envp[count]; ++count) {
      // A new entry is an old value and at most 256 bytes.
      if (value_of(start.envp[count], kTunables) || value_of(start.envp[count], kAudit))
        text += 2 * length(start.envp[count]);
    }
    size_ = (count + 5) * sizeof(char*) + text + tls::kMergeRoom + 256;
    memory_ = allocate(size_);
    envp_ = reinterpret_cast<char**>(memory_);
    out_ = memory_ + (count + 5) * sizeof(char*);
  }
  Restart(const Restart&) = delete;
  Restart& operator=(const Restart&) = delete;
  ~Restart() {
    if (memory_) unmap(memory_, size_);
  }
  bool possible() const { return memory_ != nullptr; }

  void keep_but(const char* a, const char* b) {
    for (char** entry = start_.envp; *entry; ++entry)
      if (!value_of(*entry, a) && !value_of(*entry, b)) envp_[filled_++] = *entry;
  }
  /// Starts the entry "name="; returns where its value goes.
  char* begin(const char* name) {
    envp_[filled_++] = out_;
    return copy(copy(out_, name), "=");
  }
  /// Removes the last entry.
  void drop() { envp_[--filled_] = nullptr; }
  /// Ends the entry's text at `nul`.
  void end(char* nul) {
    *nul = '\0';
    out_ = nul + 1;
  }
  void exec() {
    syscall6(__NR_execve, as_long(command_.path), as_long(command_.argv), as_long(envp_));
  }

 private:
  const StartBlock& start_;
  const Command command_;
  char* memory_ = nullptr;
  unsigned long size_ = 0;
  char** envp_ = nullptr;
  char* out_ = nullptr;
  unsigned long filled_ = 0;
};

}  // namespace

void start_again(const StartBlock& start, unsigned long optional) {
  Restart restart(start);
  if (!restart.possible()) return;
  const char* own = start.variable(kTunables);
  restart.keep_but(kTunables, kSaved);
  char* out = restart.begin(kTunables);
  restart.end(out + tls::merge_optional(out, own ? own : "", own ? length(own) : 0, optional));
  out = restart.begin(kSaved);
  if (own) out = copy(copy(copy(out, kTunables), "="), own);
  restart.end(out);
  restart.exec();
}

void start_unaudited(const StartBlock& start) {
  const char* list = start.variable(kAudit);
  Restart restart(start);
  if (!list || !restart.possible()) return;
  restart.keep_but(kAudit, kSaved);
  char* value = restart.begin(kAudit);
  char* nul = copy_without_us(value, list);
  restart.end(nul);
  if (nul == value) restart.drop();  // even an empty list makes glibc size TLS early
  // The list names this library by another file name: the restart would repeat without end.
  if (static_cast<unsigned long>(nul - value) + sizeof kOurFile - 1 > length(list)) return;
  restart.exec();
}

void enter_rank(const StartBlock& start) {
  const char* launch = start.variable(kLaunchVariable);
  if (!launch || start.argc < 1) return;
  // env(1) of fs-launch's hook in a launcher, which sets the variable for the rank.
  for (int i = 1; i < start.argc && i <= 2; ++i)
    if (value_of(start.argv[i], kLaunchVariable)) return;
  const auto mark = rank_mark([&](const char* name) { return start.variable(name); });
  if (mark == 0) return;
  unsigned long agent = 0;
  while (launch[agent] && launch[agent] != kSeparator) ++agent;
  if (!launch[agent]) return;
  bool is_same = true;  // the mark of fs-launch itself
  for (unsigned i = 0; i < kMarkDigits && is_same; ++i)
    is_same =
        launch[agent + 1 + i] == "0123456789abcdef"[(mark >> (4 * (kMarkDigits - 1 - i))) & 15];
  const Command command(start);
  // By /proc/self/exe the agent would execute itself.
  if (is_same || !command.path || command.path == kSelf) return;
  const char* rest = command.path;  // the agent itself, where it is no static program
  for (unsigned long i = 0; rest && i < agent; ++i) rest = *rest == launch[i] ? rest + 1 : nullptr;
  if (rest && !*rest) return;
  unsigned long count = 0;
  while (command.argv[count]) ++count;
  const unsigned long size = (count + 4) * sizeof(char*) + agent + 1;
  char* memory = allocate(size);
  if (!memory) return;
  char** argv = reinterpret_cast<char**>(memory);
  char* path = memory + (count + 4) * sizeof(char*);
  for (unsigned long i = 0; i < agent; ++i) path[i] = launch[i];
  argv[0] = path;
  argv[1] = const_cast<char*>(kRankOption);
  argv[2] = const_cast<char*>(command.path);
  for (unsigned long i = 0; i < count; ++i) argv[3 + i] = command.argv[i];
  syscall6(__NR_execve, as_long(path), as_long(argv), as_long(start.envp));
  unmap(memory, size);
}

void hide_from_children(StartBlock& start) {
  for (char** entry = start.envp; entry && *entry; ++entry) {
    char* value = const_cast<char*>(value_of(*entry, kAudit));
    if (value && copy_without_us(value, value) == value) return start.remove(kAudit);
  }
}

}  // namespace heddle::audit
