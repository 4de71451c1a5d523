// SPDX-License-Identifier: MIT

// libheddle-audit.so: the rtld-audit(7) entry points. ld.so loads it before libc exists, so it has
// no libc, no thread-local storage and no lazy binding, and its state is set before la_version
// returns. A program that the index does not know searches as usual. la_version does not answer 0
// there: ld.so would unload this library after it has sized static TLS for an auditor, and
// the size would stay wrong (tls_guard.cpp).
//
// ld.so calls la_objsearch and la_objopen with its lock held, also for a dlopen in any thread, but
// at exit la_objclose without it (dl-fini.c).

#include <link.h>
#include <linux/limits.h>

#include "fuseovl/audit/index_view.hpp"
#include "fuseovl/audit/isatty.hpp"
#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/process.hpp"
#include "resolver/map/counters_format.hpp"
#include "resolver/map/learn_format.hpp"

namespace heddle::audit {
namespace {

// The learn log.

// Not on the stack: a thread of PTHREAD_STACK_MIN may call dlopen. Guarded by ld.so's lock.
constinit char record_bytes[4 * PATH_MAX];
constinit char one_path[PATH_MAX];

/// Builds one record at a time; one that is too long is dropped.
class Record {
 public:
  void add(const char* field) {
    const unsigned long size = length(field) + 1;
    if (size > sizeof record_bytes - used_) {
      whole_ = false;
      return;
    }
    copy(record_bytes + used_, field);
    used_ += size;
  }
  void add_program() {
    const long n = syscall6(__NR_readlinkat, AT_FDCWD, as_long("/proc/self/exe"), as_long(one_path),
                            sizeof one_path - 1);
    one_path[n > 0 ? n : 0] = '\0';
    if (n <= 0) whole_ = false;
    add(one_path);
  }
  void append_to(const char* file) const {
    if (!whole_) return;
    // Opened for each record: a program may close or reuse any descriptor.
    const long fd = syscall6(__NR_openat, AT_FDCWD, as_long(file),
                             O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return;
    // A write at the limit of a file's size is answered with SIGXFSZ. Others append meanwhile.
    constexpr long kOthers = 64L << 10;
    struct stat st;
    rlimit limit;
    if (syscall6(__NR_fstat, fd, as_long(&st)) == 0 && S_ISREG(st.st_mode) &&
        st.st_size < learn_format::kMostBytes &&
        syscall6(__NR_prlimit64, 0, RLIMIT_FSIZE, 0, as_long(&limit)) == 0 &&
        static_cast<unsigned long>(st.st_size + kOthers) <= limit.rlim_cur)
      syscall6(__NR_write, fd, as_long(record_bytes), static_cast<long>(used_));
    syscall6(__NR_close, fd);
  }

 private:
  unsigned long used_ = 0;
  bool whole_ = true;
};

void log(const char* file, const char* kind, const char* caller, const char* name,
         const char* path) {
  Record record;
  record.add(kind);
  record.add_program();
  record.add(caller);
  record.add(name);
  record.add(path);
  record.append_to(file);
}

/// Appends what this process is and loads to the file that HEDDLE_LEARN names, for the map of the
/// next run (resolver/map/learn_format.hpp). Does nothing without that variable. Guarded by ld.so's
/// lock.
class LearnLog {
 public:
  constexpr LearnLog() = default;
  explicit LearnLog(const StartBlock& start) : path_(start.variable(learn_format::kVariable)) {
    if (path_) log(path_, learn_format::kProgram, "", "", "");
  }
  /// ld.so begins its own search for `name`.
  void search(const char* name, const link_map& requester) {
    if (!path_) return;
    pending_ = name;
    caller_ = requester.l_name ? requester.l_name : "";
  }
  /// The next object that ld.so maps is the map's.
  void guided() { pending_ = nullptr; }
  /// An object was mapped.
  void opened(const link_map& map) {
    if (!pending_) return;
    const char* name = pending_;
    pending_ = nullptr;
    // A relative path may name another file in the next run.
    if (map.l_name && *map.l_name == '/')
      log(path_, learn_format::kLibrary, caller_, name, map.l_name);
  }

 private:
  const char* path_ = nullptr;
  /// ld.so's string; it lives until the object is mapped (dl-load.c, _dl_map_object).
  const char* pending_ = nullptr;
  const char* caller_ = nullptr;
};

// Original names.

/// Gives libraries that ld.so opened in the mount their original path in link_map::l_name: dladdr,
/// backtraces and core files name files that exist after the run too, as without this library.
/// ld.so frees the name that it has set, so that one comes back before (dl-close.c: la_objclose,
/// then free). expect() and set() are guarded by ld.so's lock. reset() is not: at exit dl-fini.c
/// calls la_objclose without it, while another thread may be in dlopen. It changes only the entry
/// of its own map, which it finds by the address of the name.
class OriginalNames {
 public:
  constexpr OriginalNames() = default;
  /// ld.so is sent to `target`.
  void expect(const char* target) { expected_ = target; }
  /// Whether `map` is what ld.so was sent to.
  bool is_expected(const link_map& map) const {
    return expected_ && map.l_name && equal(map.l_name, expected_);
  }
  /// `map` is_expected().
  void set(link_map& map, const IndexView& index) {
    const char* original = index.original(expected_);
    Entry* entry = original ? entry_for(original) : nullptr;
    if (!entry) return;
    entry->served = map.l_name;
    map.l_name = entry->name;
  }
  void reset(link_map& map) {
    Entry* entry = entry_of(map);
    if (!entry) return;
    map.l_name = entry->served;
    __atomic_store_n(&entry->served, nullptr, __ATOMIC_RELEASE);
    __atomic_store_n(&any_closed_, true, __ATOMIC_RELEASE);
  }
  bool has(const link_map& map) const { return entry_of(map) != nullptr; }

 private:
  struct Entry {
    Entry* next;
    char* served;  ///< nullptr: the library is closed
    char name[1];
  };
  struct Chunk {
    Chunk* next;
    char bytes[65536 - sizeof(Chunk*)];
  };
  Entry* entry_of(const link_map& map) const {
    const Chunk* chunk = __atomic_load_n(&chunks_, __ATOMIC_ACQUIRE);
    for (; chunk; chunk = chunk->next)
      if (map.l_name >= chunk->bytes && map.l_name < chunk->bytes + sizeof chunk->bytes)
        return reinterpret_cast<Entry*>(map.l_name - __builtin_offsetof(Entry, name));
    return nullptr;
  }
  /// That of a closed library, or a new one in anonymous memory: a core file has no mapped files.
  Entry* entry_for(const char* name) {
    if (__atomic_load_n(&any_closed_, __ATOMIC_ACQUIRE))
      for (Entry* old = entries_; old; old = old->next)
        if (!__atomic_load_n(&old->served, __ATOMIC_ACQUIRE) && equal(old->name, name)) return old;
    const unsigned long size = (sizeof(Entry) + length(name) + 7) & ~7UL;
    if (!chunks_ || size > sizeof chunks_->bytes - filled_) {
      auto* chunk = reinterpret_cast<Chunk*>(allocate(sizeof(Chunk)));
      if (!chunk || size > sizeof chunk->bytes) return nullptr;
      chunk->next = chunks_;
      __atomic_store_n(&chunks_, chunk, __ATOMIC_RELEASE);
      filled_ = 0;
    }
    auto* entry = reinterpret_cast<Entry*>(chunks_->bytes + filled_);
    filled_ += size;
    copy(entry->name, name);
    entry->next = entries_;
    entries_ = entry;
    return entry;
  }

  const char* expected_ = nullptr;
  Entry* entries_ = nullptr;  ///< the newest first; none is ever removed
  bool any_closed_ = false;
  Chunk* chunks_ = nullptr;   ///< likewise
  unsigned long filled_ = 0;  ///< of the newest chunk
};

// The state of this process.

constinit StartBlock start;
constinit IndexView index;
constinit Counters* counters = nullptr;
constinit TlsGuard guard;
constinit LearnLog learn;
constinit OriginalNames names;
constinit const uintptr_t* main_cookie = nullptr;  ///< of the program's own link map
constinit const link_map* libpython = nullptr;     ///< of the program's start
constinit bool libpython_is_next = false;          ///< ld.so searches for it
constinit bool started = false;                    ///< code of libraries may have run
constinit bool is_fresh = false;                   ///< the map's files were just looked at
constinit bool searching = false;                  ///< ld.so tries paths for a name
constinit bool other_path = false;  ///< known, but under another LD_LIBRARY_PATH or hwcaps tunable
/// Whether names of one caller are guided: all objects are the index's, so that no other one's
/// RPATH counts (ld.so searches those of all that led to the caller).
constinit bool by_caller = true;

void count(std::uint64_t Counters::*counter) {
  if (counters) __atomic_fetch_add(&(counters->*counter), 1, __ATOMIC_RELAXED);
}

/// The last component of a path.
const char* base_of(const char* path) {
  const char* base = path;
  for (; *path; ++path)
    if (*path == '/') base = path + 1;
  return base;
}

bool is_valgrind() {
  const auto* path = reinterpret_cast<const char*>(start.auxiliary(AT_EXECFN));
  return path && behind(base_of(path), "valgrind");
}

void open_counters() {
  const char* path = start.variable("HEDDLE_COUNTERS");
  unsigned long size = 0;
  void* memory = path ? map_file(path, Mapping::writable, size) : nullptr;
  if (!memory) return;
  auto* page = static_cast<Counters*>(memory);
  bool good = size >= sizeof(Counters);
  for (unsigned i = 0; good && i < sizeof kCountersMagic; ++i)
    good = page->magic[i] == kCountersMagic[i];
  if (good)
    counters = page;
  else
    unmap(memory, size);
}

void open_index() {
  const char* path = start.variable("HEDDLE_INDEX");
  struct stat self;
  unsigned long size = 0, device = 0;
  if (!path || !stat_path("/proc/self/exe", self)) return;
  void* bytes = map_file(path, Mapping::whole, size, &device);
  if (!bytes) return;
  const bool known = index.open(bytes, size, device) &&
                     index.choose(self.st_dev, self.st_ino,
                                  self.st_mtim.tv_sec * INT64_C(1000000000) + self.st_mtim.tv_nsec);
  const LibraryPath fit = known ? compare_library_path(index, start) : LibraryPath::other;
  other_path = known && !(hwcaps_agree(index, start) && fit != LibraryPath::other);
  if (known && !other_path) return;
  // An unguided process must not keep the mount busy: `fs-mount -u`, started by a shell that
  // --print-env guides, is one.
  index = IndexView();
  unmap(bytes, size);
}

__attribute__((constructor)) void keep_start(int argc, char** argv, char** envp) {
  start = StartBlock(argc, argv, envp);
}

/// From here on code of the program's libraries may run. A start that ended in a restart is not
/// counted.
void mark_started() {
  if (started) return;
  started = true;
  count(index.chosen() ? &Counters::guided_processes : &Counters::unguided_processes);
  if (other_path) count(&Counters::other_library_path);
}

/// Starts the program again if an auditor makes its static TLS too small.
void act_on(TlsGuard::Fit fit) {
  if (fit == TlsGuard::Fit::good) return;
  if (fit == TlsGuard::Fit::too_small && index.chosen()) {
    if (guard.wanted() > guard.optional()) start_again(start, guard.wanted());
    return;
  }
  mark_started();  // it is not seen again
  count(&Counters::left);
  start_unaudited(start);
}

/// Unless it is set already, by a program that this process ran before an exec.
void set_once(std::uint64_t& counter, std::uint64_t value) {
  std::uint64_t unset = 0;
  __atomic_compare_exchange_n(&counter, &unset, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

}  // namespace

#define HEDDLE_EXPORT extern "C" __attribute__((visibility("default")))

HEDDLE_EXPORT unsigned la_version(unsigned version) {
  enter_rank(start);
  open_index();
  guard = TlsGuard(start);  // before restore_environment() hides the tunables of this start
  const unsigned long needed = index.optional_static_tls();
  const bool enough = needed <= current_settings(start).optional;
  restore_environment(start);
  if (!enough) start_again(start, needed);
  open_counters();
  const auto app = counters ? __atomic_load_n(&counters->app_pid, __ATOMIC_RELAXED) : 0;
  is_fresh =
      app == 0 || (own_pid() == app && __atomic_load_n(&counters->ready_ns, __ATOMIC_RELAXED) == 0);
  learn = LearnLog(start);
  if (!index.chosen()) act_on(guard.fit(find_tls_need(start, guard.area_align())));
  // Under any auditor valgrind reports an invalid free() in glibc (_dl_find_object_freeres).
  if (is_valgrind()) hide_from_children(start);
  // LAV_CURRENT is 2 since glibc 2.35; version 1 has the same functions that are used here.
  return version < 2 ? version : 2;
}

HEDDLE_EXPORT unsigned la_objopen(link_map* map, Lmid_t space, uintptr_t* cookie) {
  if (searching) count(&Counters::found);
  searching = false;
  learn.opened(*map);
  const bool is_program = !map->l_name || !*map->l_name;
  const bool is_library = !is_program && map->l_addr != start.auxiliary(AT_BASE) &&
                          map->l_addr != start.auxiliary(AT_SYSINFO_EHDR);
  if (is_library && !names.is_expected(*map))
    by_caller = false;
  else if (is_library)
    names.set(*map, index);
  if (space != LM_ID_BASE || started) return 0;
  if (is_program) main_cookie = cookie;
  // The program's and ld.so's blocks are counted by glibc (rtld.c, init_tls); the vDSO has none.
  if (is_library) act_on(guard.take(*map));
  if (is_library && libpython_is_next && !libpython) libpython = map;
  return 0;
}

HEDDLE_EXPORT unsigned la_objclose(uintptr_t* cookie) {
  names.reset(*reinterpret_cast<link_map*>(*cookie));
  return 0;
}

HEDDLE_EXPORT void la_activity(uintptr_t* cookie, unsigned flag) {
  // rtld.c: after relocation, before the first constructor. Other namespaces have other cookies.
  if (flag == LA_ACT_CONSISTENT && cookie == main_cookie) mark_started();
}

HEDDLE_EXPORT char* la_objsearch(const char* name, uintptr_t* cookie, unsigned flag) {
  const char* target = index.target(name);
  names.expect(target);
  if (flag != LA_SER_ORIG) {
    // A candidate of ld.so's own search may be a served file, which must not be mapped twice.
    count(index.chosen() ? &Counters::probes : &Counters::probes_unguided);
    searching = true;
    return const_cast<char*>(target ? target : name);
  }
  searching = false;
  libpython_is_next = behind(base_of(name), "libpython") != nullptr;
  // dl-object.c: a cookie that la_objopen did not change is the link map.
  const auto& requester = *reinterpret_cast<const link_map*>(*cookie);
  if (!target) target = find_by_path(index, name, requester, names.has(requester));
  if (target && !index.owns(target)) by_caller = false;
  if (!target && by_caller && requester.l_name) target = index.target(name, requester.l_name);
  // ld.so fails when the answer does not exist. The mount may have ended since this program began,
  // or have had many other maps (fs-mount --reload keeps the names of the last 16), and without a
  // mount a library may have been moved. During a start only children of fs-gen's APP check that:
  // the call costs a twentieth of it.
  if ((started || !is_fresh) && target && !path_exists(target)) target = nullptr;
  names.expect(target);
  if (target) {
    count(&Counters::names_guided);
    learn.guided();
  } else {
    if (index.chosen()) count(&Counters::names_unknown);
    learn.search(name, requester);
  }
  return const_cast<char*>(target ? target : name);
}

HEDDLE_EXPORT void la_preinit(uintptr_t* cookie) {
  mark_started();  // where ld.so was the command the program has a name, so main_cookie is not set
  const auto& program = *reinterpret_cast<const link_map*>(*cookie);
  answer_isatty(start, program, libpython);
  if (!counters || own_pid() != __atomic_load_n(&counters->app_pid, __ATOMIC_RELAXED)) return;
  // Before ready_ns: a program executed by this one finds that set.
  if (__atomic_load_n(&counters->ready_ns, __ATOMIC_RELAXED) == 0)
    __atomic_store_n(&counters->start_probes, __atomic_load_n(&counters->probes, __ATOMIC_RELAXED),
                     __ATOMIC_RELAXED);
  set_once(counters->ready_ns, monotonic_ns());
  const AppStart how = index.chosen() ? AppStart::guided
                       : other_path   ? AppStart::other_library_path
                                      : AppStart::unguided;
  set_once(counters->app_start, static_cast<std::uint64_t>(how));
}

}  // namespace heddle::audit
