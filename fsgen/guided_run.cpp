// SPDX-License-Identifier: MIT
#include "fsgen/guided_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <vector>

#include "base/escape.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "fsgen/app_mount.hpp"
#include "fsgen/app_trees.hpp"
#include "fsgen/guided_environment.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/stage_directory.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "fuseovl/service/leftovers.hpp"
#include "resolver/map/counters_format.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/learn_format.hpp"
#include "resolver/map/static_tls.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t ns_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
}

struct Unmap {
  void operator()(Counters* counters) const { ::munmap(counters, sizeof(Counters)); }
};

/// The file at `path`, mapped shared, that guided processes count in.
Result<std::unique_ptr<Counters, Unmap>> make_counters(const std::string& path) {
  // Owner-only: a user who can truncate it can kill each guided process by SIGBUS.
  const Fd fd = TRY(open_file(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  // posix_fallocate, not ftruncate: on a full disk a write to a hole raises SIGBUS.
  if (const int error = ::posix_fallocate(fd.get(), 0, sizeof(Counters)); error != 0)
    return fail_errno(path, "cannot write", error);
  void* page = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return fail_errno(path, "cannot map");
  std::unique_ptr<Counters, Unmap> counters(static_cast<Counters*>(page));
  std::memcpy(counters->magic, kCountersMagic, sizeof(kCountersMagic));
  return counters;
}

/// Whether each of the program's files is as the map records it. A changed file may need other
/// libraries from other directories, so that none of the program's names can be trusted.
bool is_as_mapped(const MapProgram& program, const Origins& origins) {
  const auto good = [&](ObjectId object) { return origins.files[object].as_mapped; };
  return good(program.object) && std::all_of(program.guided.begin(), program.guided.end(),
                                             [&](const auto& entry) { return good(entry.second); });
}

/// The index for Via::direct: every name leads to its original file. Programs with changed files
/// are left out; `drifts` are those files.
Result<void> write_direct_index(const PreparedMap& map, int fd, std::vector<Drift>& drifts) try {
  if (!map.index.empty()) return write_all(fd, map.index, "index");
  Origins origins = open_origins(map.content, 0);
  IndexInput input{map.content, "", {}, std::vector<bool>(map.content.objects.size(), true)};
  for (const auto& program : map.content.programs) {
    const bool good = is_as_mapped(program, origins);
    input.programs.push_back(good ? std::optional(origins.files[program.object].stamp)
                                  : std::nullopt);
  }
  for (const auto& origin : origins.files)
    input.objects.push_back(origin.usable ? std::optional(origin.stamp) : std::nullopt);
  drifts = std::move(origins.drifts);
  const std::string bytes = TRY(make_index(input));
  return write_all(fd, bytes, "index");
} catch (const Error& error) {  // the process that checks the files was ended
  return fail(Error(error));
} catch (const std::system_error& error) {
  return fail_errno("", "cannot check the files", error.code().value());
} catch (const std::bad_alloc&) {
  return fail_errno("", "cannot check the files", ENOMEM);
}

/// Why a mapped program was left to ld.so; `value` is the map's LD_LIBRARY_PATH.
std::string other_library_path(const std::string& value) {
  return "LD_LIBRARY_PATH leads to other files than the map, which was made " +
         (value.empty() ? "without one" : "with " + escape_for_terminal(value));
}

std::string stale_map(const std::string& map, const std::vector<Drift>& drifts) {
  return fmt::format("{} is out of date: {}: {}{}", escape_for_terminal(map),
                     escape_for_terminal(drifts[0].path), drifts[0].what,
                     drifts.size() == 1 ? "" : fmt::format(", and {} more", drifts.size() - 1));
}

/// Starts the prepared APP and waits for its end. Meanwhile what killed runs have left in $TMPDIR
/// is removed.
Result<void> run_app(RunReport& report, AppProcess& app, SignalRelay& signals,
                     const std::string& temporary_directory) {
  const auto begin = Clock::now();
  if (auto started = app.run(); !started) {
    if (started.error().cause() != Cause::exec) return fail(std::move(started.error()));
    report.exec_error = started.error().code();
  }
  if (!temporary_directory.empty()) start_sweep(temporary_directory);
  report.end = TRY(app.wait(signals));
  report.wall_ns = ns_since(begin);
  return {};
}

using BeforeExec = std::function<void(const RunReport&)>;

/// One guided run in one way.
class GuidedRun {
 public:
  /// `become`: null, or this process becomes APP.
  GuidedRun(const GenOptions& options, Via via, const std::string& app_path, const PreparedMap& map,
            const std::vector<TreePlace>& trees, TempDir& work, const BeforeExec* become)
      : options_(options),
        via_(via),
        app_path_(app_path),
        map_(map),
        trees_(trees),
        work_(work),
        before_exec_(become) {
    order_.no_child = become != nullptr;
  }
  Result<RunReport> run();
  /// Whether a failure concerns every way to mount: the map's files have changed or do not answer,
  /// or the mount itself succeeded.
  bool blocks_every_mount(const Error& error) const {
    return error.cause() == Cause::unfit || error.cause() == Cause::silent || lease_;
  }

 private:
  bool direct() const { return via_ == Via::direct; }
  bool is_reported() const { return !options_.quiet || !options_.json_file.empty(); }
  bool learns() const {
    return !before_exec_ && (options_.learn || (options_.learns && !map_.key.empty()));
  }
  Result<void> take_lease();
  RunReport first_report() const;
  Result<RunReport> become();
  Result<void> start_learning();
  Result<AppCommand> guided_command(const std::string& counters_path);
  AppSetup setup(Counters& counters) const;
  void finish(RunReport& report);
  void finish_daemon(RunReport& report);

  const GenOptions& options_;
  const Via via_;
  const std::string& app_path_;
  const PreparedMap& map_;
  const std::vector<TreePlace>& trees_;
  TempDir& work_;
  std::string work_path_ = work_.path();
  std::string mount_point_ = work_path_ + "/m";
  MountOrder order_{map_.path, map_.file.get(), map_.id, mount_options(options_, map_.serve),
                    options_.log};
  std::string direct_index_ = map_.index_path.empty() ? work_path_ + "/index" : map_.index_path;
  std::string stale_;  ///< Via::direct: which of the map's files have changed; empty: none
  const std::string learn_log_ = work_path_ + "/learned";
  Fd learned_;  ///< learns(): the log
  std::uint64_t lease_ns_ = 0;
  std::optional<MountLease> lease_;  ///< else APP's process mounts, and daemon_ serves
  std::optional<OwnDaemon> daemon_;
  const BeforeExec* const before_exec_;
};

/// The user's LD_AUDIT, GLIBC_TUNABLES and LD_LIBRARY_PATH are extended, not replaced.
Result<AppCommand> GuidedRun::guided_command(const std::string& counters_path) {
  Environment environment;
  const MapProgram* app = map_.app();
  if (options_.loader == LoaderKind::environment) {
    const auto& views = map_.content.views;
    environment.prepend("LD_LIBRARY_PATH", app && views.size() > 1
                                               ? mount_point_ + "/" + views[app->view].name
                                               : mount_point_);
    return AppCommand{app_path_, options_.command, environment.entries()};
  }
  const std::string audit_library = TRY(audit_library_path());
  environment.prepend("LD_AUDIT", audit_library);
  environment.set("HEDDLE_INDEX", direct() ? direct_index_ : mount_point_ + "/.heddle/index");
  if (!counters_path.empty()) environment.set("HEDDLE_COUNTERS", counters_path);
  if (learns()) environment.set(learn_format::kVariable, learn_log_);
  // For APP alone: the auditor restarts a child that needs more static TLS.
  if (app && app->static_tls_bytes != 0) {
    const auto tunables = environment.get("GLIBC_TUNABLES");
    environment.set(kSavedTunables, tunables ? "GLIBC_TUNABLES=" + *tunables : "");
    environment.set("GLIBC_TUNABLES", merge_tunables(tunables.value_or(""), app->static_tls_bytes));
  }
  return AppCommand{app_path_, options_.command, environment.entries()};
}

AppSetup GuidedRun::setup(Counters& counters) const {
  AppSetup setup;
  if (lease_) {
    setup.enter = [this]() -> Result<void> {
      TRY(lease_->enter());
      return cover_with_trees(mount_point_, trees_);
    };
  } else if (!direct()) {
    setup.mount = [this] { return mount_privately(mount_point_); };
    setup.enter = [this]() -> Result<void> {
      (void)warm_up(mount_point_);  // a cold mount is only slower
      return {};
    };
  }
  setup.before_exec = [&counters] {
    counters.app_pid = static_cast<std::uint64_t>(::getpid());
    counters.exec_ns = ns_since({});
  };
  return setup;
}

Result<void> GuidedRun::take_lease() {
  if (direct()) return {};
  const auto begin = Clock::now();
  auto lease = MountLease::take(
      via_ == Via::private_mount ? MountLease::Kind::privately : MountLease::Kind::fusermount,
      options_.share ? MountLease::Sharing::shared : MountLease::Sharing::own, order_);
  lease_ns_ = ns_since(begin);
  if (lease) {
    lease_.emplace(std::move(*lease));
    mount_point_ = lease_->mount_point();
    return {};
  }
  // Kernels before Linux 5.2 cannot copy a mount: APP's process mounts by itself, and nothing over
  // other paths.
  if (via_ != Via::private_mount || blocks_every_mount(lease.error()) || before_exec_)
    return fail(std::move(lease.error()));
  if (!trees_.empty())
    return fail(
        Error("", lease.error().message(), "",
              "directory trees, as this map has, need Linux 5.2 or newer: build one without --tree")
            .because(Cause::tree));
  return {};
}

Result<void> GuidedRun::start_learning() {
  if (!learns()) return {};
  (void)::unlink(learn_log_.c_str());  // left by a way that failed
  // Owner-only: another user who can write to the log chooses what later runs load. Kept open: the
  // daemon may remove the directory before it is read.
  learned_ = TRY(open_file(learn_log_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  return {};
}

RunReport GuidedRun::first_report() const {
  RunReport report;
  report.app = options_.command[0];
  report.resolve_ns = map_.resolve_ns;
  report.cached = map_.cached;
  report.not_cached = map_.not_cached;
  report.fast_files = options_.may_go_direct() && !map_.mount && !map_.known_names;
  report.loader = options_.loader == LoaderKind::audit ? "audit" : "environment";
  report.via = name_of(via_);
  report.limits = limits_of(via_);
  if (options_.loader == LoaderKind::environment) {
    report.limits.emplace_back("a DT_RPATH comes before LD_LIBRARY_PATH and is searched as ever");
    if (options_.plugin_directories.empty())
      report.limits.emplace_back(
          "a library that looks for plugins beside itself (dladdr) needs --plugins DIR");
  }
  report.shared = lease_ && lease_->joined();
  for (const auto& tree : trees_) report.trees.emplace_back(tree.path, tree.entries);
  report.guided = map_.app() != nullptr;
  report.unguided_reason = map_.unguided_reason;
  if (const MapProgram* app = map_.app()) {
    report.libraries = app->libraries.size();
    report.probes_without = app->probes_unguided;
  }
  return report;
}

Result<RunReport> GuidedRun::become() {
  auto report = first_report();
  if (direct() && map_.index_path.empty()) {
    // In memory, which ends with the last process that has it.
    const Fd memory(::memfd_create("heddle-index", MFD_CLOEXEC));
    if (!memory) return fail_errno("memfd", "cannot make the index");
    std::vector<Drift> drifts;
    TRY(write_direct_index(map_, memory.get(), drifts));
    if (!drifts.empty()) return fail(Error("", stale_map(map_.path, drifts)).because(Cause::unfit));
    direct_index_ = "/proc/self/fd/" + std::to_string(TRY(keep_over_exec(memory.get())));
  }
  const auto command = TRY(guided_command(""));
  if (lease_) {
    TRY(lease_->enter());
    TRY(cover_with_trees(mount_point_, trees_));
    TRY(lease_->keep_over_exec());
  }
  work_ = TempDir();
  (*before_exec_)(report);
  report.exec_error = execute(command);
  return report;
}

Result<RunReport> GuidedRun::run() {
  TRY(take_lease());
  if (before_exec_) return become();
  const auto begin = Clock::now();
  auto report = first_report();
  const std::string counters_path = work_path_ + "/counters";
  (void)::unlink(counters_path.c_str());  // left by a way that failed
  const auto counters = TRY(make_counters(counters_path));
  TRY(start_learning());
  if (direct() && map_.index_path.empty()) {
    std::vector<Drift> drifts;
    const Fd fd = TRY(open_file(direct_index_, O_WRONLY | O_CREAT | O_EXCL, 0644));
    TRY(write_direct_index(map_, fd.get(), drifts));
    if (!drifts.empty()) {
      stale_ = stale_map(map_.path, drifts);
      warn(Error("", stale_ + ": programs that use them run unguided", "",
                 "rebuild the map (fs-resolve build)"));
    }
  } else if (!direct() && !lease_ && ::mkdir(mount_point_.c_str(), 0755) != 0 && errno != EEXIST) {
    return fail_errno(mount_point_, "cannot make the mount point");
  }
  const auto command = TRY(guided_command(counters_path));

  auto signals = TRY(SignalRelay::start());
  auto app = TRY(AppProcess::start(command, setup(*counters), signals));
  if (!direct() && !lease_) {
    const Fd device = TRY(app.take_fuse_fd());
    daemon_.emplace(TRY(OwnDaemon::start(device, order_, mount_point_, work_path_)));
    (void)work_.release();  // the daemon removes it
  }
  report.mount_ns = lease_ns_ + ns_since(begin);
  TRY(run_app(report, app, signals, work_path_.substr(0, work_path_.rfind('/'))));
  report.counters = *counters;
  report.learned = learns();
  if (learned_)
    if (auto found = read_learned_run("/proc/self/fd/" + std::to_string(learned_.get())))
      report.learned_run = std::move(*found);
  finish(report);
  return report;
}

std::string why_not_audited(const MapProgram& app) {
  if (!app.missing.empty())
    return fmt::format("{} {} not there",
                       escape_for_terminal(fmt::format("{}", fmt::join(app.missing, ", "))),
                       app.missing.size() == 1 ? "is" : "are");
  return "its ld.so took no audit library (a setuid program), it started itself again without one "
         "(docs/limits.md: thread-local data), or it did not get as far as main";
}

void GuidedRun::finish(RunReport& report) {
  finish_daemon(report);
  const auto app_start = static_cast<AppStart>(report.counters.app_start);
  if (report.guided && app_start == AppStart::other_library_path) {
    report.guided = false;
    report.unguided_reason = other_library_path(map_.app()->library_path);
  } else if (report.guided && !stale_.empty() && app_start == AppStart::unguided) {
    report.guided = false;
    report.unguided_reason = stale_;
  } else if (report.guided && options_.loader == LoaderKind::audit &&
             report.counters.guided_processes == 0) {
    report.guided = false;
    const bool is_damaged = report.daemon && report.daemon->bad_frame_reads > 0;
    report.unguided_reason =
        is_damaged ? fmt::format(
                         "{} is damaged (fs-resolve verify names its damaged frames) and the "
                         "originals cannot be read: --fallback names another copy",
                         escape_for_terminal(map_.path))
                   : why_not_audited(*map_.app());
  }
}

void GuidedRun::finish_daemon(RunReport& report) {
  const Error ended_early("", "the mount ended before the program did", "",
                          "later reads of uncached pages failed with I/O errors");
  std::optional<DaemonCounters> counters;
  if (daemon_) {
    const auto end = daemon_->finish();
    counters = end.counters;
    report.left_running = end.still_used;
    if (!counters && !end.still_used) warn(ended_early);
    if (!end.still_used) (void)remove_tree(work_path_);  // a killed daemon leaves it
  } else if (lease_) {
    const auto end = lease_->finish();
    if (!end) return warn(ended_early);
    counters = end->counters;
    report.left_running = end->still_used;
    if (!counters && is_reported()) warn("the mount's daemon does not return its statistics");
  }
  if (!counters) return;
  report.daemon = std::move(*counters);
}

std::string on_one_line(std::string text) {
  for (auto at = text.find('\n'); at != text.npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  return text;
}

}  // namespace

Result<TempDir> make_work_dir() {
  auto work = TRY(WorkDirectory::make());
  static std::vector<Fd> locks;  // until this process ends
  locks.push_back(std::move(work.lock));
  return std::move(work.directory);
}

Result<void> check_stage(const GenOptions& options) {
  if (!options.stage.empty()) TRY(StageDirectory::open(options.stage));
  return {};
}

std::vector<Via> ways_for(const GenOptions& options, const PreparedMap& map) {
  if (options.may_go_direct() && !map.mount) return {Via::direct};
  const bool has_trees = options.may_have_trees() && !places_of(map.content.trees).empty();
  auto ways = ways_to_try(options.via, has_trees);
  if (!map.slow_libraries) std::erase(ways, Via::fusermount);
  // LD_LIBRARY_PATH can only lead into a mount.
  if (options.loader == LoaderKind::environment) std::erase(ways, Via::direct);
  return ways;
}

namespace {

Result<RunReport> run_in_best_way(const GenOptions& options, const std::string& app_path,
                                  const PreparedMap& map, TempDir work, const BeforeExec* become) {
  const auto& trees = map.content.trees;
  auto places = options.may_have_trees() ? places_of(trees) : std::vector<TreePlace>();
  std::string no_trees;  // why the map's are not served
  if (places.size() < trees.size()) no_trees = "they need a private mount and --loader audit";
  const auto say_no_trees = [&] {
    if (options.first_rank) warn(Error("", "continuing without directory trees", no_trees));
  };
  // A bundle's may be nowhere else.
  std::error_code ignored;
  if (!no_trees.empty() && !std::ranges::all_of(trees, [&](const MapTree& tree) {
        return std::filesystem::is_directory(tree.path, ignored);
      }))
    return fail(options.map, "its directory trees cannot be served", no_trees);
  if (!no_trees.empty()) say_no_trees();
  const auto ways = ways_for(options, map);
  std::vector<std::string> passed_over;
  std::vector<TempDir> earlier;  // of failed ways: the map may be in the first one
  for (auto way = ways.begin();;) {
    const BeforeExec last_work = [&](const RunReport& report) {
      earlier.clear();
      auto whole = report;
      whole.passed_over = passed_over;
      (*become)(whole);
    };
    GuidedRun run(options, *way, app_path, map, places, work, become ? &last_work : nullptr);
    auto done = run.run();
    if (done) {
      done->passed_over = std::move(passed_over);
      done->tree_notes = map.tree_notes;
      if (!no_trees.empty()) done->tree_notes.push_back("no trees: " + no_trees);
      return std::move(*done);
    }
    const Error& error = done.error();
    const bool is_full = error.code() == ENOSPC || error.code() == EDQUOT;
    const auto hint = error.cause() == Cause::unfit ? "rebuild the map (fs-resolve build)"
                      : is_full                     ? "TMPDIR names another directory"
                                                    : error.hint();
    const auto reason = name_of(*way) + ": " + on_one_line(error.message());
    const bool had_trees = !places.empty();
    const bool retries = error.cause() == Cause::tree;
    if ((way + 1 == ways.end() && !retries) || (had_trees && !options.map.empty()))
      return fail(Error::with_code(error.code(), {}, error.message(), {},
                                   hint.empty() ? hint_for(*way) : hint));
    if (had_trees) {
      no_trees = reason;
      places.clear();
    }
    if (!retries) {
      passed_over.push_back(reason);
      way = run.blocks_every_mount(error) ? ways.end() - 1 : way + 1;
    }
    // The daemon of a failed way may still remove the one that it had.
    earlier.push_back(std::move(work));
    work = TRY(make_work_dir());
    if (*way == Via::direct) {
      warn(Error("", reason, "continuing without a mount", hint));
    } else if (had_trees) {
      say_no_trees();
    }
  }
}

}  // namespace

Result<RunReport> run_best(const GenOptions& options, const std::string& app_path,
                           const PreparedMap& map, TempDir work) {
  if (map.content.programs.empty() && map.content.trees.empty())
    return run_plain(options, app_path, map.unguided_reason);
  return run_in_best_way(options, app_path, map, std::move(work), nullptr);
}

Result<RunReport> become_best(const GenOptions& options, const std::string& app_path,
                              const PreparedMap& map, TempDir work,
                              const std::function<void(const RunReport&)>& before_exec) {
  return run_in_best_way(options, app_path, map, std::move(work), &before_exec);
}

Result<RunReport> run_plain(const GenOptions& options, const std::string& app_path,
                            const std::string& reason) {
  RunReport report;
  report.app = options.command[0];
  report.unguided_reason = reason;
  report.via = "none";
  auto signals = TRY(SignalRelay::start());
  const AppCommand command{app_path, options.command, Environment().entries()};
  auto app = TRY(AppProcess::start(command, {}, signals));
  TRY(run_app(report, app, signals, ""));
  return report;
}

}  // namespace heddle
