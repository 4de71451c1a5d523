// SPDX-License-Identifier: MIT
#include "fuseovl/audit/process.hpp"

#include <elf.h>
#include <sys/prctl.h>

#include "fuseovl/audit/kernel.hpp"

namespace heddle::audit {
namespace {

constexpr char kTunables[] = "GLIBC_TUNABLES";
constexpr char kSaved[] = "HEDDLE_TUNABLES";  // static_tls.hpp: kSavedTunables
constexpr char kComm[] = "HEDDLE_COMM";
constexpr char kAudit[] = "LD_AUDIT";
constexpr char kOurFile[] = "libheddle-audit.so";

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

/// A path that execs this program: the one it was started by, else /proc/self/exe.
const char* own_path(const StartBlock& start) {
  static constexpr char kSelf[] = "/proc/self/exe";
  const auto* path = reinterpret_cast<const char*>(start.auxiliary(AT_EXECFN));
  struct stat self, named;
  if (!stat_path(kSelf, self)) return nullptr;
  // AT_EXECFN of a script is the script, not its interpreter.
  const bool same =
      path && stat_path(path, named) && named.st_dev == self.st_dev && named.st_ino == self.st_ino;
  return same ? path : kSelf;
}

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

bool was_raised(const StartBlock& start) { return start.variable(kSaved) != nullptr; }

void restore_environment(StartBlock& start) {
  if (const char* name = start.variable(kComm)) {
    syscall6(__NR_prctl, PR_SET_NAME, as_long(name));
    start.remove(kComm);
  }
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
  explicit Restart(const StartBlock& start) : start_(start) {
    // Without AT_BASE ld.so itself is the command, and argv has lost its arguments.
    path_ = start.argv && start.auxiliary(AT_BASE) ? own_path(start) : nullptr;
    if (!path_) return;
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
      if (!value_of(*entry, a) && !value_of(*entry, b) && !value_of(*entry, kComm))
        envp_[filled_++] = *entry;
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
    if (path_ != reinterpret_cast<const char*>(start_.auxiliary(AT_EXECFN))) {
      char* comm = begin(kComm);  // the kernel would name the process "exe"
      syscall6(__NR_prctl, PR_GET_NAME, as_long(comm));
    }
    syscall6(__NR_execve, as_long(path_), as_long(start_.argv), as_long(envp_));
  }

 private:
  const StartBlock& start_;
  const char* path_ = nullptr;
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

}  // namespace heddle::audit
