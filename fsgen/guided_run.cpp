// SPDX-License-Identifier: MIT
#include "fsgen/guided_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include "base/escape.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "fsgen/counters_file.hpp"
#include "fsgen/mount_lease.hpp"
#include "fsgen/mount_ways.hpp"
#include "fsgen/overlay_daemon.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/keep/leftovers.hpp"
#include "fuseovl/mount/warm_up.hpp"
#include "resolver/map/index_writer.hpp"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

// The daemon sees the end of the mount within milliseconds of APP's last process; what is still
// used after this is used by processes that APP left behind.
constexpr std::chrono::milliseconds kDaemonEnd{1000};

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t ns_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
}

/// Whether every file that the map has for the program is still as it was. Else another search than
/// the map's may be right for all its names: what has changed may need others, from other folders.
bool is_as_mapped(const MapProgram& program, const Origins& origins) {
  const auto good = [&](ObjectId object) { return origins.files[object].as_mapped; };
  return good(program.object) && std::all_of(program.guided.begin(), program.guided.end(),
                                             [&](const auto& entry) { return good(entry.second); });
}

/// The index for Via::direct: every name leads to its original file, no mount is needed. Programs
/// whose files have changed are left out; `drifts` are those files.
Result<void> write_direct_index(const PreparedMap& map, const std::string& path,
                                std::vector<Drift>& drifts) {
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
  auto bytes = make_index(input);
  if (!bytes) return fail(std::move(bytes.error()));
  auto fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (!fd) return fail(std::move(fd.error()));
  return write_all(fd->get(), *bytes, path);
}

/// Why a program that the map knows was left to ld.so, with this LD_LIBRARY_PATH of the map's.
std::string other_library_path(const std::string& value) {
  return "LD_LIBRARY_PATH leads to other files than the map, which was made " +
         (value.empty() ? "without one" : "with " + escape_for_terminal(value));
}

std::string stale_map(const std::string& map, const std::vector<Drift>& drifts) {
  return fmt::format("{} is out of date: {}: {}{}", escape_for_terminal(map),
                     escape_for_terminal(drifts[0].path), drifts[0].what,
                     drifts.size() == 1 ? "" : fmt::format(", and {} more", drifts.size() - 1));
}

/// Lets APP go and waits for its end.
Result<void> run_app(RunReport& report, AppProcess& app, SignalRelay& signals) {
  const auto begin = Clock::now();
  if (auto started = app.run(); !started) {
    if (started.error().code() == 0) return fail(std::move(started.error()));  // never got to exec
    report.exec_error = started.error().code();
  }
  auto status = app.wait(signals);
  if (!status) return fail(std::move(status.error()));
  report.end = {*status, signals.ended_by()};
  report.wall_ns = ns_since(begin);
  return {};
}

/// Everything of one guided run; its members end in the reverse of the order in which they began.
class GuidedRun {
 public:
  GuidedRun(const GenOptions& options, Via via, const std::string& app_path, const PreparedMap& map,
            TempDir& work)
      : options_(options), via_(via), app_path_(app_path), map_(map), work_(work) {}
  Result<RunReport> run();

 private:
  bool direct() const { return via_ == Via::direct; }
  /// Whether anybody reads the report.
  bool is_told() const { return !options_.quiet || !options_.json_file.empty(); }
  Result<void> take_lease();
  Result<RunReport> run_with_mount();
  Result<AppCommand> guided_command(const std::string& counters_path);
  AppSetup setup(Counters& counters) const;
  Result<std::optional<OverlayDaemon>> mount_for(AppProcess& app);
  void finish(RunReport& report, std::optional<OverlayDaemon>& daemon);
  void finish_lease(RunReport& report);
  void finish_own(RunReport& report, OverlayDaemon& daemon);

  const GenOptions& options_;
  const Via via_;
  const std::string& app_path_;
  const PreparedMap& map_;
  TempDir& work_;
  std::string work_path_ = work_.path();
  std::string mount_point_ = work_path_ + "/m";
  std::string stale_;  ///< Via::direct: which files are not the map's any more; empty: none
  std::uint64_t lease_ns_ = 0;
  std::optional<MountLease> lease_;  ///< else APP's process mounts, and a daemon of our own serves
};

Result<AppCommand> GuidedRun::guided_command(const std::string& counters_path) {
  auto audit = audit_library_path();
  if (!audit) return fail(std::move(audit.error()));
  Guidance guidance;
  guidance.loader = options_.loader;
  guidance.audit_library = *audit;
  guidance.index_path = direct() ? work_path_ + "/index" : mount_point_ + "/.heddle/index";
  guidance.counters_path = counters_path;
  guidance.learn_log = options_.learn_log;
  // Of APP alone: the audit library starts a child that needs more with what it needs.
  guidance.static_tls_bytes = map_.app() ? map_.app()->static_tls_bytes : 0;
  guidance.view_path = mount_point_;
  if (map_.app() && map_.content.views.size() > 1)
    guidance.view_path += "/" + map_.content.views[map_.app()->view].name;
  auto environment = Environment::current();
  guide(environment, guidance);
  return AppCommand{app_path_, options_.command, environment.entries()};
}

AppSetup GuidedRun::setup(Counters& counters) const {
  AppSetup setup;
  if (!direct()) {
    if (!lease_) {
      const auto kind = via_ == Via::user ? NamespaceKind::user_and_mount : NamespaceKind::mount;
      setup.mount = [this, kind] { return mount_privately(mount_point_, kind); };
    }
    setup.enter = [this]() -> Result<void> {
      if (lease_)
        if (auto entered = lease_->enter(); !entered) return entered;
      // A cold mount is a slower one, no more: APP starts all the same.
      if (lease_ && lease_->mount().warm) return {};
      if (warm_up(mount_point_) && lease_) lease_->tell_warm();
      return {};
    };
  }
  setup.before_exec = [&counters] {
    counters.app_pid = static_cast<std::uint64_t>(::getpid());
    counters.exec_ns = monotonic_ns();
  };
  return setup;
}

Result<std::optional<OverlayDaemon>> GuidedRun::mount_for(AppProcess& app) {
  if (direct() || lease_) return std::optional<OverlayDaemon>();
  auto fuse = app.take_fuse_fd();
  if (!fuse) return fail(std::move(fuse.error()));
  DaemonRequest request{map_.path, mount_point_, work_path_, mount_options(options_)};
  auto daemon = OverlayDaemon::start(*fuse, request);
  if (!daemon) return fail(std::move(daemon.error()));
  (void)work_.release();  // the daemon's to remove now
  return std::optional<OverlayDaemon>(std::move(*daemon));
}

Result<void> GuidedRun::take_lease() {
  LeaseRequest request;
  request.kind = via_ == Via::mount ? KeepKind::privately : KeepKind::fusermount;
  request.sharing = options_.share ? Sharing::shared : Sharing::own;
  request.map_path = map_.path;
  request.mount_options = mount_options(options_);
  for (;;) {
    auto lease = MountLease::take(request);
    if (lease) {
      lease_.emplace(std::move(*lease));
      break;
    }
    // That others cannot be found, or do not answer, is no reason against a mount.
    const int code = lease.error().code();
    if (code == 0 || code == ESTALE || request.sharing == Sharing::own)
      return fail(std::move(lease.error()));
    request.sharing = Sharing::own;
  }
  mount_point_ = lease_->mount().mount_point;
  return {};
}

Result<RunReport> GuidedRun::run() {
  const auto begin = Clock::now();
  if (via_ == Via::mount || via_ == Via::fusermount) {
    // As root APP's process can mount by itself, on kernels that cannot copy a mount (< 5.2) too.
    if (auto taken = take_lease();
        !taken && (via_ == Via::fusermount || taken.error().code() == ESTALE))
      return fail(std::move(taken.error()));
  }
  lease_ns_ = ns_since(begin);
  auto report = run_with_mount();
  if (report || !lease_) return report;
  return fail(Error::with_code(ECANCELED, {}, report.error().message(), {}, report.error().hint()));
}

Result<RunReport> GuidedRun::run_with_mount() {
  const auto begin = Clock::now();
  RunReport report;
  report.app = options_.command[0];
  report.resolve_ns = map_.resolve_ns;
  report.loader = options_.loader == LoaderKind::audit ? "audit" : "environment";
  report.via = name_of(via_);
  report.limits = limits_of(via_);
  if (options_.loader == LoaderKind::environment)
    report.limits.emplace_back("a DT_RPATH comes before LD_LIBRARY_PATH and is searched as ever");
  report.shared = lease_ && lease_->joined();
  const std::string counters_path = work_path_ + "/counters";
  (void)::unlink(counters_path.c_str());  // of another way, which did not work
  auto counters = CountersFile::create(counters_path);
  if (!counters) return fail(std::move(counters.error()));
  if (direct()) {
    std::vector<Drift> drifts;
    if (auto written = write_direct_index(map_, work_path_ + "/index", drifts); !written)
      return fail(std::move(written.error()));
    if (!drifts.empty()) {
      stale_ = stale_map(map_.path, drifts);
      warn(Error("", stale_ + ": programs that use them run as they are", "",
                 "make the map anew (fs-resolve build)"));
    }
  } else if (!lease_ && ::mkdir(mount_point_.c_str(), 0755) != 0) {
    return fail_errno(mount_point_, "cannot make the mount point");
  }
  auto command = guided_command(counters_path);
  if (!command) return fail(std::move(command.error()));

  auto signals = SignalRelay::start();
  if (!signals) return fail(std::move(signals.error()));
  auto app = AppProcess::start(*command, setup(counters->live()), *signals);
  if (!app) return fail(std::move(app.error()));
  auto daemon = mount_for(*app);
  if (!daemon) return fail(std::move(daemon.error()));
  report.mount_ns = lease_ns_ + ns_since(begin);
  if (auto ran = run_app(report, *app, *signals); !ran) return fail(std::move(ran.error()));
  report.counters = counters->snapshot();
  report.learned = !options_.learn_log.empty();
  finish(report, *daemon);
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

void GuidedRun::finish(RunReport& report, std::optional<OverlayDaemon>& daemon) {
  report.guided = map_.app() != nullptr;
  report.unguided_reason = map_.unguided_reason;
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
    report.unguided_reason = why_not_audited(*map_.app());
  }
  if (const MapProgram* app = map_.app()) {
    report.libraries = app->libraries.size();
    report.probes_without = app->probes_unguided;
    // A view is one folder: what a library sees beside itself there is not what lies beside it.
    if (!direct() && report.guided && is_told())
      report.suspects = find_plugin_suspects(map_.content, *app);
  }
  if (daemon) finish_own(report, *daemon);
  if (lease_) finish_lease(report);
}

namespace {
Error ended_early() {
  return Error("", "the mount ended before the program did", "",
               "what it read from there since then, and was not cached, gave I/O errors");
}
}  // namespace

void GuidedRun::finish_own(RunReport& report, OverlayDaemon& daemon) {
  auto counters = daemon.finish(kDaemonEnd);
  if (!counters) return warn(counters.error());
  report.left_running = !counters->has_value();
  if (!*counters) return;
  if ((*counters)->empty()) warn(ended_early());
  add_daemon_counters(report, **counters);
  (void)remove_tree(work_path_);  // nothing is left of it, unless the daemon was killed
}

void GuidedRun::finish_lease(RunReport& report) {
  const auto end = lease_->finish(kDaemonEnd);
  if (!end && end.error().code() == ETIMEDOUT) {
    if (is_told()) warn("the mount's daemon is too busy to say what it served");
    return;
  }
  if (!end) return warn(ended_early());
  report.left_running = end->still_used;
  const auto& before = lease_->mount();
  add_daemon_counters(report, end->counters, before.requests, before.bytes_read);
}

/// A daemon's words are a message and a hint in one text; the hint may name what we have not.
Error in_own_words(const Error& theirs) {
  std::string text = theirs.message();
  std::string hint = theirs.hint();
  if (const auto at = text.rfind("\nhint: "); at != text.npos) {
    hint = text.substr(at + 7);
    text.resize(at);
  }
  if (const auto at = hint.find(", or mount with --on-drift"); at != hint.npos) hint.resize(at);
  return Error::with_code(theirs.code(), {}, text, {}, hint);
}

std::string on_one_line(std::string text) {
  for (auto at = text.find('\n'); at != text.npos; at = text.find('\n', at))
    text.replace(at, 1, "; ");
  return text;
}

}  // namespace

Result<RunReport> run_guided(const GenOptions& options, Via via, const std::string& app_path,
                             const PreparedMap& map, TempDir& work) {
  return GuidedRun(options, via, app_path, map, work).run();
}

Result<TempDir> make_work_dir() {
  // Short: ld.so compares each library's path, and it begins with this.
  auto work = TempDir::create("hd");
  // Others than the owner may have to come through: children of APP that change their user.
  if (work) ::chmod(work->path().c_str(), 0755);
  // Locked as long as we live: should we be killed, daemons of this user see that the folder is
  // nobody's (fuseovl/keep/leftovers.hpp).
  static std::vector<Fd> locks;
  if (work)
    if (auto lock = lock_folder(work->path())) locks.push_back(std::move(*lock));
  return work;
}

Result<RunReport> run_best(const GenOptions& options, const std::string& app_path,
                           const PreparedMap& map, TempDir work) {
  if (map.content.programs.empty()) return run_plain(options, app_path, map.unguided_reason);
  auto ways = ways_to_try(options.via);
  // LD_LIBRARY_PATH can only lead into a mount.
  if (options.loader == LoaderKind::environment) std::erase(ways, Via::direct);
  std::vector<std::string> passed_over;
  std::string hint;  // of the last of them
  for (auto way = ways.begin();; ++way) {
    const bool last = way + 1 == ways.end();
    if (last && !passed_over.empty()) {
      // What is left of the others is their daemon's to remove.
      auto fresh = make_work_dir();
      if (!fresh) return fail(std::move(fresh.error()));
      work = std::move(*fresh);
      if (*way == Via::direct)
        warn(Error("", passed_over.back(), "going on without a mount", hint));
    }
    auto done = run_guided(options, *way, app_path, map, work);
    if (done) {
      done->passed_over = std::move(passed_over);
      return done;
    }
    const Error error = in_own_words(done.error());
    if (last) {
      if (!error.hint().empty() || error.code() == ESTALE) return fail(error);
      return fail(Error::with_code(error.code(), {}, error.message(), {}, hint_for(*way)));
    }
    hint = error.hint();
    passed_over.push_back(name_of(*way) + ": " + on_one_line(error.message()));
    if (error.code() == ESTALE || error.code() == ECANCELED) way = ways.end() - 2;
  }
}

Result<RunReport> run_plain(const GenOptions& options, const std::string& app_path,
                            const std::string& reason) {
  RunReport report;
  report.app = options.command[0];
  report.unguided_reason = reason;
  report.via = "none";
  auto signals = SignalRelay::start();
  if (!signals) return fail(std::move(signals.error()));
  const AppCommand command{app_path, options.command, Environment::current().entries()};
  auto app = AppProcess::start(command, {}, *signals);
  if (!app) return fail(std::move(app.error()));
  if (auto ran = run_app(report, *app, *signals); !ran) return fail(std::move(ran.error()));
  return report;
}

}  // namespace heddle
