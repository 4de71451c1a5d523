// SPDX-License-Identifier: MIT
#include "tests/audit/guided_world.hpp"

#include <set>

#include "resolver/map/index_writer.hpp"
#include "resolver/map/library_path.hpp"
#include "resolver/search/search.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

std::string audit_library() {
  const char* path = std::getenv("HEDDLE_AUDIT_LIBRARY");
  if (!path) throw Error("HEDDLE_AUDIT_LIBRARY", "not set", "run this by meson test");
  return path;
}

namespace {

/// (name, path) of all libraries that ld.so maps for `program`, ld.so included.
GuidedWorld::Libraries closure_of(const std::string& program, const std::vector<std::string>& env) {
  RunOptions options;
  options.env = env;
  options.env.push_back("LD_TRACE_LOADED_OBJECTS=1");
  std::istringstream lines(run_checked({program}, options).out);
  GuidedWorld::Libraries out;
  for (std::string line; std::getline(lines, line);) {
    // "\tNAME => PATH (0x...)" or "\tPATH (0x...)"
    const auto address = line.rfind(" (0x");
    if (line.empty() || address == std::string::npos) continue;
    line = line.substr(1, address - 1);
    const auto arrow = line.find(" => ");
    const std::string name = line.substr(0, arrow);
    const std::string path = arrow == std::string::npos ? name : line.substr(arrow + 4);
    if (path.front() == '/') out.emplace_back(name, path);
  }
  return out;
}

}  // namespace

GuidedWorld::GuidedWorld(std::string directory) : directory_(std::move(directory)) {
  fs::create_directories(directory_);
}

void GuidedWorld::add_program(const std::string& program, const Libraries& more,
                              const std::vector<std::string>& env) {
  Libraries libraries = closure_of(program, env);
  libraries.insert(libraries.end(), more.begin(), more.end());
  const char* ours = std::getenv("LD_LIBRARY_PATH");
  std::string library_path = ours ? ours : "";
  for (const std::string& entry : env)
    if (entry.starts_with("LD_LIBRARY_PATH=")) library_path = entry.substr(entry.find('=') + 1);
  std::string absolute;
  library_path::put_absolute(
      library_path.data(), library_path.size(), fs::current_path().c_str(),
      [&](const char* bytes, std::size_t size) { absolute.append(bytes, size); });
  added_.push_back({program, std::move(libraries), std::move(absolute)});
}

void GuidedWorld::publish() {
  // A real path stands for a (dev, ino).
  std::map<std::string, ObjectId> objects;
  for (const Added& added : added_) {
    objects[fs::canonical(added.program)];
    for (const auto& [name, path] : added.libraries) objects[fs::canonical(path)];
  }
  MapContent content;
  for (auto& [path, id] : objects) {
    id = static_cast<ObjectId>(content.objects.size());
    content.objects.emplace_back().path = path;
  }
  std::set<std::pair<std::string, ObjectId>> paths;
  fs::remove_all(flat());
  for (const Added& added : added_) {
    MapView view;
    view.name = "view" + std::to_string(content.views.size());
    std::map<std::string, ObjectId> names, guided;
    for (const auto& [name, path] : added.libraries) {
      const ObjectId object = objects.at(fs::canonical(path));
      names.emplace(name.substr(name.rfind('/') + 1), object);
      guided.emplace(name, object);
      for (const std::string& p : {path, content.objects[object].path}) {
        guided.emplace(p, object);
        paths.emplace(p, object);
      }
    }
    view.names.assign(names.begin(), names.end());
    MapProgram program;
    program.path = added.program;
    program.object = objects.at(fs::canonical(added.program));
    program.view = static_cast<ViewId>(content.views.size());
    program.interpreter = kNativeLoader;
    program.library_path = added.library_path;
    program.guided.assign(guided.begin(), guided.end());
    program.static_tls_bytes = static_tls;
    const fs::path root = added_.size() > 1 ? flat() + "/" + view.name : flat();
    fs::create_directories(root);
    // No links to the originals: libc's ctime would change, and what other tests cached with it.
    std::map<ObjectId, fs::path> copies;
    for (const auto& [name, object] : view.names) {
      const auto [first, is_new] = copies.try_emplace(object, root / name);
      if (is_new)
        fs::copy_file(content.objects[object].path, root / name);
      else
        fs::create_hard_link(first->second, root / name);
    }
    content.views.push_back(std::move(view));
    content.programs.push_back(std::move(program));
  }
  content.paths.assign(paths.begin(), paths.end());
  IndexInput input{content, flat(), {}, {}};
  for (const MapProgram& program : content.programs) {
    struct stat st {};
    const auto executed = executed_file(program.path);
    if (::stat(executed.c_str(), &st) != 0) throw Error::from_errno(executed, "stat");
    input.programs.push_back(file_stamp(st));
  }
  input.direct.resize(content.objects.size());
  for (const MapObject& object : content.objects) {
    struct stat st {};
    if (::stat(object.path.c_str(), &st) != 0) throw Error::from_errno(object.path, "stat");
    input.objects.push_back(file_stamp(st));
  }
  write_text_file(index_path(), value_or_throw(make_index(input)));
  reset_counters();
}

void GuidedWorld::reset_counters() const {
  Counters counters{};
  std::copy(std::begin(kCountersMagic), std::end(kCountersMagic), counters.magic);
  write_text_file(counters_path(),
                  std::string(reinterpret_cast<const char*>(&counters), sizeof counters));
}

Counters GuidedWorld::counters() const {
  const std::string bytes = value_or_throw(read_file(counters_path()));
  Counters out{};
  std::memcpy(&out, bytes.data(), std::min(bytes.size(), sizeof out));
  return out;
}

std::vector<std::string> GuidedWorld::env() const {
  return {"LD_AUDIT=" + audit_library(), "HEDDLE_INDEX=" + index_path(),
          "HEDDLE_COUNTERS=" + counters_path()};
}

RunResult GuidedWorld::run(const std::vector<std::string>& argv,
                           std::vector<std::string> more_env) const {
  RunOptions options;
  options.env = env();
  options.env.insert(options.env.end(), more_env.begin(), more_env.end());
  return test::run(argv, options);
}

StraceResult GuidedWorld::strace(const std::vector<std::string>& argv,
                                 std::vector<std::string> more_env) const {
  // env(1) sets the variables, so that strace itself is not audited.
  std::vector<std::string> wrapped = {"/usr/bin/env"};
  for (const auto& list : {env(), more_env})
    wrapped.insert(wrapped.end(), list.begin(), list.end());
  wrapped.insert(wrapped.end(), argv.begin(), argv.end());
  return strace_counts(wrapped);
}

}  // namespace heddle::test
