// SPDX-License-Identifier: MIT
#include "fsgen/doctor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/landlock.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/child.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/mount_service.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/run_directory.hpp"
#include "base/run_program.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "fsgen/run_cache.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/mpi/find_mpi.hpp"

namespace heddle {
namespace {

enum class State : std::uint8_t {
  works,
  absent,  ///< what only some need
  broken,
};

struct Finding {
  const char* check;
  State state = State::works;
  std::string text;
  std::string remedy{};  ///< empty: none is needed, or known
};

Finding broken(const char* check, const Error& error) {
  return {check, State::broken, error.message(), error.hint()};
}

constexpr std::chrono::seconds kRunLimit{30};
constexpr const char* kWhole = "bin, lib and libexec of heddle belong together: unpack all of it";

/// The word of --via.
const char* word_of(Via way) {
  return way == Via::private_mount ? "private" : way == Via::fusermount ? "fusermount" : "direct";
}

}  // namespace

Result<void> try_way(Via way) {
  // Nothing of this needs a file: $TMPDIR may be what is broken.
  const auto app = find_program("true");
  if (!app) return fail("true", "not found", "PATH has none");
  Environment environment;
  environment.set("HEDDLE", "");
  environment.set("OMPI_COMM_WORLD_RANK", "0");  // a job's other ranks write no report
  const auto done = run_and_read(
      "/proc/self/exe",
      {"fs-gen", "--via", word_of(way), "--no-cache", "--no-share", "--python", "off", "-q",
       "--json", "-", "--", *app},
      {.limit = kRunLimit, .messages = Messages::collected, .environment = environment.entries()});
  if (!done) return fail(Error(done.error()));
  if (done->status == exit_done) {
    const auto report = nlohmann::json::parse(done->out, nullptr, false);
    if (report.is_object() && report.value("guided", false)) return {};
    return fail(*app, "runs unguided",
                report.is_object() ? report.value("unguided_reason", "") : std::string());
  }
  auto text = fmt::format("fs-gen ends with status {}", done->status);
  std::string remedy;
  std::istringstream lines(done->err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("fs-gen: ")) text = line.substr(8);
    if (line.starts_with("hint: ")) remedy = line.substr(6);
  }
  return fail(Error("", text, "", remedy));
}

namespace {

/// docs/limits.md, Kernels.
void check_kernel(std::vector<Finding>& out) {
  utsname name{};
  ::uname(&name);
  out.push_back({"kernel", State::works, std::string(name.sysname) + " " + name.release});
  const auto lacks = [&out](const char* what, const char* since, const char* without) {
    out.push_back(
        {"kernel", State::absent,
         fmt::format("no {} (Linux {}, or a sandbox forbids it): {}", what, since, without)});
  };
  const auto is_missing = [](long number, auto... arguments) {
    return ::syscall(number, arguments...) < 0 && errno == ENOSYS;
  };
  if (is_missing(SYS_open_tree, -1, "", 0))
    lacks("open_tree", "5.2", "fs-gens of root share no mount; no --node, no fs-hook");
  if (is_missing(SYS_openat2, -1, "", nullptr, 0))
    lacks("openat2", "5.6", "no fs-hook; paths below another root are walked");
  if (is_missing(SYS_mount_setattr, -1, "", 0, nullptr, 0))
    lacks("mount_setattr", "5.12", "no directories of the host in containers (fs-hook)");
  if (::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) < 0)
    lacks("Landlock", "5.13", "seccomp and capabilities alone confine workers");
  // PIDFD_THREAD came with FUSE_NOTIFY_RESEND.
  if (const Fd thread(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), O_EXCL))); !thread)
    lacks("FUSE_NOTIFY_RESEND", "6.9", "a mount ends when its worker dies");
}

void check_libraries(std::vector<Finding>& out) {
  ResolverSession session;
  const auto loader = read_loader_profile(session.world, LoaderProfile{}.interpreter);
  if (!loader) {
    out.push_back({"libc", State::broken, loader.error().message(),
                   "heddle guides programs of glibc; those of another libc run unguided"});
    return;
  }
  out.push_back({"libc", State::works,
                 fmt::format("glibc 2.{}: {}", loader->glibc_minor, loader->interpreter)});
  const auto installs = find_mpi(session.world, "");
  if (!installs) {
    out.push_back(broken("mpi", installs.error()));
    return;
  }
  for (const auto& install : *installs)
    out.push_back(
        {"mpi", State::works,
         fmt::format("{} {} ({}): {}", mpi_family_title(install.identity.family),
                     install.identity.version, install.identity.abi, install.library.path)});
  if (installs->empty())
    out.push_back({"mpi", State::absent, "none found by PATH, mpicc and ld.so.cache",
                   "load the module of an MPI first"});
}

/// The fs-hook that a file of hooks or devices starts; empty: none.
std::string hook_in(const std::string& path) {
  constexpr std::size_t kLimit = 1U << 20;
  const auto file = open_regular(path);
  const auto text = file ? read_all(file->get(), path, kLimit).value_or("") : std::string();
  constexpr std::string_view kName = "/fs-hook\"";
  const auto end = text.find(kName);
  if (end == text.npos) return {};
  const auto begin = text.rfind('"', end) + 1;  // npos + 1: 0
  return text.substr(begin, end + kName.size() - 1 - begin);
}

void check_hooks(std::vector<Finding>& out) {
  std::vector<std::string> directories = {
      "/etc/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d", "/etc/cdi", "/run/cdi"};
  const auto own = below_home("XDG_CONFIG_HOME", "/.config", "/containers/oci/hooks.d");
  if (!own.empty()) directories.push_back(own);
  const auto before = out.size();
  for (const auto& directory : directories) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      const auto path = entry.path().string();
      if (!path.ends_with(".json")) continue;
      const auto program = hook_in(path);
      if (program.empty()) continue;
      if (::access(program.c_str(), X_OK) == 0)
        out.push_back({"hook", State::works, path + ": " + program});
      else
        out.push_back({"hook", State::broken, path + " names " + program + ": cannot be executed",
                       "fs-hook install writes it anew; without it remove the file"});
    }
  }
  if (out.size() == before)
    out.push_back({"hook", State::absent, "no container runtime has fs-hook",
                   "fs-hook install, if containers are to use this machine's MPI"});
}

void check_directories(std::vector<Finding>& out) {
  const auto cache = RunCache::open();
  const auto usable = cache ? cache->check() : Result<void>(fail(Error(cache.error())));
  if (usable)
    out.push_back({"cache", State::works, default_cache_dir()});
  else
    out.push_back({"cache", cache ? State::broken : State::absent,
                   usable.error().message() + ": each run resolves anew",
                   cache ? usable.error().hint()
                         : "XDG_CACHE_HOME or HOME: a directory that you alone may write to"});
  if (const auto directory = RunDirectory::open())
    out.push_back({"sharing", State::works, directory->path()});
  else
    out.push_back({"sharing", State::absent,
                   directory.error().message() + ": each fs-gen has a mount of its own",
                   "XDG_RUNTIME_DIR: a directory that you alone may write to"});
}

void check_services(std::vector<Finding>& out) {
  const auto socket = std::string(kNodeDirectory) + "/" + kNodeSocket;
  if (::access(socket.c_str(), F_OK) == 0)
    out.push_back({"node", State::works, socket});
  else
    out.push_back({"node", State::absent, "no fs-mount --node: each container has its own mount",
                   "systemctl start heddle-node, if many containers use one map"});
  if (const auto srun = find_program("srun"))
    out.push_back({"slurm", State::works, *srun});
  else
    out.push_back({"slurm", State::absent, "no srun in PATH"});
}

void check_pmix(std::vector<Finding>& out) {
  if (const auto version = pmix_version())
    out.push_back({"pmix", State::works, *version});
  else
    out.push_back({"pmix", State::absent, version.error().message() + ": no fs-launch pmix",
                   version.error().hint()});
}

/// Parts of heddle that not every installation has: what needs libraries of the host is apart.
void check_components(std::vector<Finding>& out) {
  constexpr const char* kServer = "install the package heddle-server";
  struct {
    const char* check;
    const char* file;
    const char* without;
    const char* remedy;
  } const components[] = {
      {"fs-launch", "fs-launch", "no ranks of mpirun and srun are guided", kWhole},
      {"fs-job", "fs-job", "no archives of jobs",
       "unpack the whole archive, or install the package heddle-job"},
      {"spank", "../lib/heddle/spank_heddle.so", "srun needs fs-launch before it",
       "install the package heddle-slurm, or build heddle with -Dspank=enabled for this Slurm"},
      {"registry", "../libexec/heddle/oci-client", "no push, pull and oci:", kServer},
      {"server", "../libexec/heddle/compat-client", "no compat-check --server", kServer},
  };
  const auto here = own_program_dir().value_or("");
  for (const auto& one : components) {
    const auto path = here + "/" + one.file;
    if (::access(path.c_str(), R_OK) == 0)
      out.push_back({one.check, State::works, path});
    else
      out.push_back({one.check, State::absent, path + ": " + ::strerror(errno) + ": " + one.without,
                     one.remedy});
  }
}

/// Whether APP can be guided at all, and how.
bool check_ways(std::vector<Finding>& out) {
  const auto audit = audit_library_path();
  struct statvfs place {};
  if (!audit) {
    out.push_back(broken("install", audit.error()));
    out.back().remedy = kWhole;
  } else if (::statvfs(audit->c_str(), &place) == 0 && (place.f_flag & ST_NOEXEC) != 0) {
    out.push_back({"install", State::broken, *audit + ": on a file system mounted noexec",
                   "unpack heddle in a directory without it (findmnt -T DIR)"});
  }
  const auto worker = own_program_dir().value_or("") + "/../libexec/heddle/elf-worker";
  if (::access(worker.c_str(), X_OK) != 0)
    out.push_back(
        {"install", State::broken, worker + ": cannot be executed: " + ::strerror(errno), kWhole});
  if (auto device = open_fuse_device())
    out.push_back({"fuse", State::works, "/dev/fuse"});
  else
    out.push_back(broken("fuse", device.error()));
  if (usable_namespace_kind() == NamespaceKind::user_and_mount) {
    const auto entered = run_in_child(std::chrono::seconds(5), {}, []() -> Result<void> {
      return enter_private_namespace(NamespaceKind::user_and_mount);
    });
    if (entered)
      out.push_back({"userns", State::works, "users may make user namespaces"});
    else
      out.push_back(broken("userns", entered.error()));
  }
  bool works = false;
  for (const auto way : {Via::direct, Via::private_mount, Via::fusermount}) {
    const auto tried = try_way(way);
    out.push_back(tried ? Finding{word_of(way), State::works, "works"}
                        : broken(word_of(way), tried.error()));
    works |= tried.has_value();
  }
  return works;
}

const char* name_of(State state) {
  switch (state) {
    case State::works:
      return "ok";
    case State::absent:
      return "absent";
    case State::broken:
      break;
  }
  return "FAILS";
}

}  // namespace

Result<std::string> pmix_version() {
  const auto program = TRY(own_program_dir()) + "/../libexec/heddle/heddle-pmix";
  if (::access(program.c_str(), X_OK) != 0)
    return fail_errno(
        "heddle-pmix", "is not installed", errno,
        "install the package heddle-pmix, or build heddle with libpmix (libpmix-dev)");
  const auto done = TRY(run_and_read(program, {"heddle-pmix", "--check"},
                                     {.limit = kRunLimit, .messages = Messages::collected}));
  auto text = done.status == exit_done ? done.out : done.err;
  text.erase(std::min(text.find('\n'), text.size()));
  if (done.status == exit_done) return text;
  // ld.so's, 127: "heddle-pmix: error while loading shared libraries: libpmix.so.2: cannot ..."
  constexpr std::string_view kLoader = "error while loading shared libraries: ";
  if (const auto at = text.find(kLoader); at != text.npos) text.erase(0, at + kLoader.size());
  return fail("heddle-pmix", "cannot run", text,
              text.starts_with("libpmix") ? "install libpmix (Debian: libpmix2)" : "");
}

int examine_node(OutputFile* json) {
  std::vector<Finding> found;
  const bool works = check_ways(found);
  check_directories(found);
  check_kernel(found);
  check_libraries(found);
  check_hooks(found);
  check_services(found);
  check_components(found);
  check_pmix(found);

  const auto here = own_program_dir().value_or("?");
  std::string text = fmt::format("heddle {} in {}\n", HEDDLE_VERSION, escape_for_terminal(here));
  nlohmann::json checks = nlohmann::json::array();
  for (const auto& one : found) {
    text += fmt::format("{:<7} {:<11} {}{}\n", name_of(one.state), one.check,
                        escape_for_terminal(one.text),
                        one.remedy.empty() ? "" : "; hint: " + escape_for_terminal(one.remedy));
    checks.push_back({{"check", one.check},
                      {"state", one.state == State::broken ? "fails" : name_of(one.state)},
                      {"text", to_json_text(one.text)},
                      {"hint", to_json_text(one.remedy)}});
  }
  text += works ? "fs-gen guides programs here\n" : "fs-gen cannot guide any program here\n";
  if (json)
    value_or_throw(json->write(nlohmann::json{{"version", HEDDLE_VERSION},
                                              {"directory", to_json_text(here)},
                                              {"works", works},
                                              {"checks", std::move(checks)}}
                                   .dump(2) +
                               "\n"));
  else
    value_or_throw(write_all(STDOUT_FILENO, text, "stdout"));
  return works ? exit_done : exit_failure;
}

}  // namespace heddle
