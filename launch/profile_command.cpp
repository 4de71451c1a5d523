// SPDX-License-Identifier: MIT
#include "launch/sub_commands.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bounded_json.hpp"
#include "base/child.hpp"
#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/run_main.hpp"
#include "base/run_program.hpp"
#include "base/try.hpp"
#include "launch/profile.hpp"

namespace heddle::launch {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

struct Options {
  bool system = false;
  bool none = false;
  bool json = false;
  std::string name;
  Words names;
  std::string file;  ///< of import
  std::string mpi;   ///< a prefix
  std::string trace;
  Profile profile;
  Words variables;  ///< NAME=VALUE
  Words cleared;
};

ProfileDirectory directory_of(const Options& o) {
  return o.system ? ProfileDirectory::of_system() : value_or_throw(ProfileDirectory::of_user());
}

/// What `fs-resolve mpi --json OPTIONS` prints: its first installation. Its messages go to stderr.
Result<Profile::Mpi> find_mpi(const Words& options) {
  const auto here = TRY(own_program_dir());
  Words argv = {"fs-resolve", "mpi", "--json"};
  argv.insert(argv.end(), options.begin(), options.end());
  const auto done = TRY(run_and_read(here + "/fs-resolve", argv, {.limit = kNoLimit}));
  const auto found = Json::parse(done.out, nullptr, false);
  if (done.status != 0)  // it has said why
    return fail("", "the profile is not made without the MPI installation", "",
                "--mpi DIR names it");
  if (!found.is_array() || found.empty())
    return fail("mpi", "no installation for the profile", "",
                "fs-resolve mpi prints what is found; --mpi DIR names another prefix");
  const auto& first = found[0];
  return Profile::Mpi{first.value("family", ""), first.value("version", ""),
                      first.value("path", "")};
}

bool is_shell_name(const std::string& name) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
  return !name.empty() && std::string_view(kLetters).find(name[0]) != std::string_view::npos &&
         name.find_first_not_of(std::string(kLetters) + "0123456789") == name.npos;
}

/// For an option; empty: it is NAME=VALUE.
std::string check_variable(const std::string& text) {
  const auto equals = text.find('=');
  if (equals != text.npos && is_shell_name(text.substr(0, equals))) return "";
  return escape_for_terminal(text) +
         " is no NAME=VALUE, with a name of letters, digits and '_' that begins with no digit";
}

/// Other nodes may have what this one has not.
void warn_of_missing(const Profile& profile) {
  std::error_code error;
  Words paths = {profile.map, profile.container.source};
  for (const auto& file : profile.files) paths.push_back(file.substr(0, file.find(':')));
  for (const auto& path : paths)
    if (!path.empty() && !fs::exists(path, error)) warn(path + ": is not on this node");
}

/// Adds the options of create and edit to `profile`.
Result<void> apply(const Options& o, Profile& profile) {
  for (const auto& field : o.cleared) {
    if (field == "map") profile.map.clear();
    if (field == "mpi") profile.mpi = {};
    if (field == "files") profile.files.clear();
    if (field == "environment") profile.environment.clear();
    if (field == "container") profile.container = {};
  }
  const auto set = [](std::string& to, const std::string& from) {
    if (!from.empty()) to = from;
  };
  const auto& given = o.profile;
  if (!given.map.empty()) profile.map = fs::absolute(given.map);
  set(profile.container.backend, given.container.backend);
  set(profile.container.image, given.container.image);
  if (!given.container.source.empty())
    profile.container.source = fs::absolute(given.container.source);
  for (const auto& file : given.files)
    if (std::ranges::find(profile.files, file) == profile.files.end())
      profile.files.push_back(file);
  for (const auto& variable : o.variables) {
    const auto equals = variable.find('=');
    profile.environment[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  if (!o.mpi.empty()) profile.mpi = TRY(find_mpi({"--prefix", o.mpi}));
  if (!o.trace.empty()) profile.mpi = TRY(find_mpi({"--trace", o.trace}));
  return {};
}

int run_create(const Options& o) {
  // Before a job of --trace runs.
  if (!o.name.empty()) value_or_throw(directory_of(o).check_free(o.name));
  Profile profile;
  value_or_throw(apply(o, profile));
  warn_of_missing(o.profile);
  // A profile of something else is for any MPI: that of an image may not be the machine's first.
  if (profile.mpi.library.empty() && (o.name.empty() || profile == Profile()))
    profile.mpi = value_or_throw(find_mpi({}));
  auto name = o.name;
  if (name.empty()) name = profile.mpi.family + "-" + profile.mpi.version;
  value_or_throw(directory_of(o).create({{name, profile}}));
  fmt::print("{}\n", name);
  return exit_done;
}

int run_list(const Options& o) {
  const auto selected = selected_profile();
  if (!selected) warn(selected.error());
  constexpr auto kLine = "{} {:24} {:6} {:20} {:30} {}\n";
  bool has_head = false;
  Json all = Json::array();
  int status = exit_done;
  Words seen;
  for (const auto& directory : ProfileDirectory::all()) {
    for (const auto& name : value_or_throw(directory.names())) {
      const bool hidden = std::ranges::find(seen, name) != seen.end();
      seen.push_back(name);
      const auto profile = directory.load(name);
      if (!profile) {
        report(profile.error());
        status = exit_failure;
        continue;
      }
      const bool is_selected = !hidden && selected.value_or("") == name;
      if (o.json) {
        all.push_back({{"name", name},
                       {"system", directory.is_system()},
                       {"selected", is_selected},
                       {"profile", Json::parse(to_json(*profile))}});
        continue;
      }
      const auto& mpi = profile->mpi;
      const auto cell = [](const std::string& text) {
        return text.empty() ? "-" : escape_for_terminal(text);
      };
      if (!std::exchange(has_head, true))
        fmt::print(kLine, ' ', "name", "level", "MPI", "map", "image");
      fmt::print(kLine, is_selected ? '*' : ' ', name, directory.is_system() ? "system" : "user",
                 cell(mpi.family.empty() ? "" : mpi.family + " " + mpi.version), cell(profile->map),
                 cell(profile->container.image));
    }
  }
  if (o.json) fmt::print("{}\n", all.dump(2));
  if (!o.json && seen.empty()) say("there is no profile: fs-launch profile create");
  return status;
}

int run_show(const Options& o) {
  const auto name = o.name.empty() ? value_or_throw(selected_profile()) : o.name;
  if (name.empty())
    throw Error("profile", "none is selected", "", "name one: fs-launch profile list");
  fmt::print("{}", to_json(value_or_throw(load_profile(name))));
  return exit_done;
}

int run_use(const Options& o) {
  if (!o.none)
    value_or_throw(o.system ? ProfileDirectory::of_system().load(o.name) : load_profile(o.name));
  value_or_throw(directory_of(o).select(o.none ? "" : o.name));
  return exit_done;
}

int run_delete(const Options& o) {
  value_or_throw(directory_of(o).remove(o.names));
  return exit_done;
}

int run_edit(const Options& o) {
  if (o.profile == Profile() && o.variables.empty() && o.mpi.empty() && o.trace.empty() &&
      o.cleared.empty())
    throw Error(o.name, "nothing to change", "", "fs-launch profile edit --help");
  warn_of_missing(o.profile);
  value_or_throw(directory_of(o).edit(o.name, [&](Profile& profile) { return apply(o, profile); }));
  return exit_done;
}

/// A profile of e4s-cl; what fs-launch finds out by itself, or has not, is said and left out.
Profile import_one(const std::string& name, const Json& from) {
  const auto wrong = [&](const char* key) {
    return Error(name, "no profile of e4s-cl", std::string(key) + " is of the wrong kind");
  };
  const auto text = [&](const char* key) -> std::string {
    const auto at = from.find(key);
    if (at == from.end() || at->is_null()) return {};
    if (!at->is_string()) throw wrong(key);
    return at->get<std::string>();
  };
  const auto list = [&](const char* key) {
    Words out;
    const auto at = from.find(key);
    if (at == from.end() || at->is_null()) return out;
    if (!at->is_array()) throw wrong(key);
    for (const auto& each : *at) {
      if (!each.is_string()) throw wrong(key);
      out.push_back(each.get<std::string>());
    }
    return out;
  };
  const auto left_out = [&](const std::string& what) { warn(name + ": left out: " + what); };
  Profile out;
  out.container.image = text("image");
  out.container.source = text("source");
  out.container.backend = text("backend");
  if (out.container.backend == "barebones" || out.container.backend == "containerless") {
    left_out("backend " + out.container.backend + ": without an image fs-launch needs none");
    out.container.backend.clear();
  }
  for (const char* key : {"backend_args", "wi4mpi"})
    if (!text(key).empty()) left_out(key);
  out.files = list("files");
  // The libraries are what MPI needs, which heddle finds by itself.
  for (const auto& path : list("libraries")) {
    const auto file = fs::path(path).filename().string();
    if (!out.mpi.library.empty() || !file.starts_with("libmpi") ||
        ::access(path.c_str(), R_OK) != 0)
      continue;
    if (auto found = find_mpi({"--root", path}); found && !found->family.empty())
      out.mpi = std::move(*found);
  }
  if (out.mpi.library.empty() && !list("libraries").empty())
    left_out("libraries: none of them is an MPI library of this machine");
  return out;
}

/// Profiles of e4s-cl by their names: those of its database (user.json), of `e4s-cl profile dump`
/// or a single one. The file may be another user's; the worst it can do is name an image or script,
/// which list and show print.
std::map<std::string, Profile> read_e4s_cl(const Options& o) {
  // As e4s-cl's own names of MPI installations.
  const auto without_blanks = [](std::string name) {
    std::ranges::replace(name, ' ', '_');
    return name;
  };
  constexpr std::size_t kLargest = 64UL << 20;
  const auto file = value_or_throw(open_regular(o.file));
  const auto text = value_or_throw(read_all(file.get(), o.file, kLargest));
  if (const char* why = beyond({}, text)) throw Error(o.file, "no profiles of e4s-cl", why);
  const auto json = Json::parse(text, nullptr, false);
  std::vector<Json> found;
  if (json.is_array())
    found.assign(json.begin(), json.end());
  else if (json.is_object() && json.contains("Profile") && json["Profile"].is_object())
    for (const auto& each : json["Profile"].items()) found.push_back(each.value());
  else if (json.is_object())
    found.push_back(json);
  std::map<std::string, Profile> out;
  for (const auto& each : found) {
    if (!each.is_object() || !each.contains("name") || !each["name"].is_string()) {
      if (!o.names.empty()) continue;
      throw Error(o.file, "no profiles of e4s-cl", "one has no name");
    }
    auto name = each["name"].get<std::string>();
    if (!o.names.empty() && std::ranges::find(o.names, name) == o.names.end()) continue;
    name = without_blanks(std::move(name));
    if (!out.emplace(name, import_one(name, each)).second)
      throw Error(o.file, "no profiles of e4s-cl", "two are named " + name);
  }
  for (const auto& name : o.names)
    if (!out.contains(without_blanks(name))) throw Error(o.file, "has no profile " + name);
  if (out.empty()) throw Error(o.file, "no profiles of e4s-cl");
  return out;
}

int run_import(const Options& o) {
  const auto profiles = read_e4s_cl(o);
  value_or_throw(directory_of(o).create(profiles));
  for (const auto& [name, profile] : profiles) fmt::print("{}\n", name);
  return exit_done;
}

void add_fields(CLI::App& sub, Options& o) {
  auto& profile = o.profile;
  sub.add_option("--map", profile.map, "The map or bundle that guides the ranks")->type_name("MAP");
  sub.add_option("--mpi", o.mpi,
                 "The MPI installation below this directory (default: the first one found)")
      ->type_name("DIR");
  sub.add_option("--trace", o.trace,
                 "The MPI installation that a run of two ranks of this program loads")
      ->type_name("PROGRAM");
  sub.add_option("--image", profile.container.image, "Run the ranks in containers of this image")
      ->type_name("IMAGE");
  std::vector<std::pair<std::string, std::string>> backends;
  for (const auto* name : kBackends) backends.emplace_back(name, name);
  add_choice<std::string>(sub, "--backend", profile.container.backend, backends,
                          "What runs the containers");
  sub.add_option("--source", profile.container.source,
                 "A script that a shell in the container reads before the program starts")
      ->type_name("SCRIPT");
  sub.add_option("--file", profile.files,
                 "Mount this file or directory in the containers (repeatable)")
      ->type_name("PATH[:PATH]")
      ->allow_extra_args(false);
  sub.add_option("--env", o.variables, "Set this variable in the ranks (repeatable)")
      ->type_name("NAME=VALUE")
      ->check(check_variable)
      ->allow_extra_args(false);
}

}  // namespace

int profile_main(int argc, const char* const* argv) {
  CLI::App app("Keep what the jobs on this machine need under a name.", "fs-launch profile");
  set_usage(app, "");
  app.require_subcommand(1);
  Options o;
  int (*action)(const Options&) = nullptr;
  CLI::App* sub = nullptr;
  const auto add = [&](const char* name, const char* text, int (*run)(const Options&)) {
    sub = app.add_subcommand(name, text);
    sub->callback([&action, run] { action = run; });
  };
  const auto add_name = [&](const char* text) {
    return sub->add_option("NAME", o.name, text)->type_name("");
  };
  const auto add_system = [&] {
    sub->add_flag("--system", o.system, "In /etc/heddle/profiles, which all users read");
  };
  add("create", "Make a profile; without options one for this machine's MPI", run_create);
  add_name("Its name (default: the MPI's family and version)");
  add_fields(*sub, o);
  add_system();
  add("list", "Print the profiles; * marks the selected one", run_list);
  sub->add_flag("--json", o.json, "As JSON");
  add("show", "Print a profile", run_show);
  add_name("Its name (default: the selected one)");
  add("use", "Select the profile of jobs that name none", run_use);
  auto* name = add_name("Its name");
  auto* none = sub->add_flag("--none", o.none, "Select none");
  sub->parse_complete_callback([name, none] {
    if (name->count() + none->count() != 1) throw CLI::RequiredError("NAME, or --none");
  });
  add_system();
  add("delete", "Delete profiles", run_delete);
  sub->add_option("NAME", o.names, "Their names")->required()->type_name("");
  add_system();
  add("edit", "Change fields of a profile", run_edit);
  add_name("Its name")->required();
  add_fields(*sub, o);
  sub->add_option("--clear", o.cleared,
                  "First remove map, mpi, files, environment or container (repeatable)")
      ->type_name("FIELD")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"map", "mpi", "files", "environment", "container"}));
  add_system();
  add("import", "Make profiles of e4s-cl's", run_import);
  sub->add_option("FILE", o.file, "Its user.json, or what e4s-cl profile dump prints")
      ->required()
      ->type_name("");
  sub->add_option("NAME", o.names, "Only these")->type_name("");
  add_system();
  for (auto* each : app.get_subcommands([](const CLI::App*) { return true; }))
    forbid_empty_values(*each);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  const int status = action(o);
  value_or_throw(flush_stdout());
  return status;
}

}  // namespace heddle::launch
