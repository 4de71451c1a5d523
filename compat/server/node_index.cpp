// SPDX-License-Identifier: MIT
#include "compat/server/node_index.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/fd.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "resolver/search/search.hpp"

namespace heddle::compat {
namespace {

namespace fs = std::filesystem;

/// A change must be noticed within two seconds, also in unwatched directories.
constexpr std::chrono::milliseconds kTimedLife{1000};
constexpr std::size_t kChunk = 128;

bool is_library_name(const std::string& name) {
  const auto at = name.find(".so");
  return at != name.npos && at > 0 && (at + 3 == name.size() || name[at + 3] == '.');
}

/// The node's own loader; without one, a default profile.
const LoaderProfile& loader_of(NodeTarget& target) {
  static const LoaderProfile kNone;
  const auto loader = target.loader(kNone.interpreter);
  return loader ? **loader : kNone;
}

/// The absolute paths in ld.so.cache, found as strings in any of its formats.
std::vector<std::string> cached_paths(NodeTarget& target) {
  std::vector<std::string> out;
  const auto bytes = target.world().read(loader_of(target).cache_path).value_or("");
  for (std::size_t at = 0; at < bytes.size();) {
    const auto end = std::min(bytes.find('\0', at), bytes.size());
    if (bytes[at] == '/') out.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

/// Calls `take` with each entry of a directory that has a library's name.
void visit_libraries(NodeTarget& target, const std::string& directory,
                     const std::function<void(const fs::directory_entry&)>& take) {
  std::error_code error;
  for (fs::directory_iterator it(target.outside(directory), error), end; !error && it != end;
       it.increment(error))
    if (is_library_name(it->path().filename().string())) take(*it);
}

/// Whether the verdict depends on watched directories only.
bool searches_watched_directories_only(const Artifact& artifact) {
  for (const auto& program : artifact.programs) {
    if (program.elf.rpath || program.elf.runpath) return false;
    for (const auto& dependency : program.elf.dependencies)
      if (dependency.name.find('/') != dependency.name.npos) return false;
    for (const auto& library : program.libraries)
      if (library.dlopened) return false;
  }
  return true;
}

FactsOptions facts_options(const NodeIndexOptions& options) {
  auto facts = value_or_throw(facts_below(options.root));
  facts.pool.worker_path = options.worker_path;
  facts.cache_dir = options.cache_dir;
  // A directory given for this root is for this trust domain only.
  if (!options.cache_dir.empty()) facts.cache = CacheUse::read_write;
  return facts;
}

}  // namespace

NodeIndex::Snapshot::Snapshot(FactsSource& facts, const NodeIndexOptions& options,
                              std::shared_ptr<const LibraryDirectories> allowed)
    : target(value_or_throw(NodeTarget::open(facts, options.root, {}))), checker(target) {
  target.open_only(std::move(allowed));
}

NodeIndex::NodeIndex(NodeIndexOptions options)
    : options_(std::move(options)), facts_(facts_options(options_)) {
  value_or_throw(snapshot(true).target.loader(LoaderProfile{}.interpreter));
}

NodeIndex::Snapshot& NodeIndex::snapshot(bool watched) {
  auto& slot = watched ? watched_ : timed_;
  if (!watched && slot && std::chrono::steady_clock::now() - slot->made > kTimedLife) {
    slot.reset();
    facts_.renew();
  }
  if (!allowed_) allowed_ = library_directories();
  if (!slot) slot = std::make_unique<Snapshot>(facts_, options_, allowed_);
  return *slot;
}

std::shared_ptr<const LibraryDirectories> NodeIndex::library_directories() {
  auto target = value_or_throw(NodeTarget::open(facts_, options_.root, {}));
  const auto& loader = loader_of(target);
  LibraryDirectories out;
  // The directories of loaders and libraries of all distributions and machines.
  for (const char* directory : {"/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32",
                                "/usr/lib64", "/usr/libx32"})
    out.add(directory);
  for (const auto& directory : options_.library_dirs) out.add(directory);
  for (const auto& directory : loader.default_directories) out.add(directory);
  for (const auto& path : cached_paths(target)) out.add(directory_of(path));
  for (const auto& path : split_preload_file(target.world().read(loader.preload_path).value_or("")))
    if (path.starts_with('/')) out.add(directory_of(path));
  for (const auto& directory : avoided_) out.leave_out(directory);
  out.on_look = options_.on_look;
  return std::make_shared<const LibraryDirectories>(std::move(out));
}

std::vector<std::string> NodeIndex::libraries() {
  auto& target = snapshot(true).target;
  auto paths = cached_paths(target);
  for (const auto& directory : loader_of(target).default_directories)
    visit_libraries(target, directory, [&](const fs::directory_entry& entry) {
      paths.push_back(directory + entry.path().filename().string());
    });
  std::set<std::string> files;  // each file once
  for (const auto& path : paths)
    if (auto real = target.world().real_path(path); !real.empty()) files.insert(std::move(real));
  return {files.begin(), files.end()};
}

std::size_t NodeIndex::fill() {
  const auto all = libraries();
  std::size_t good = 0;
  for (std::size_t at = 0; at < all.size(); at += kChunk) {
    const auto end = std::min(at + kChunk, all.size());
    const std::vector<std::string> chunk(all.begin() + static_cast<std::ptrdiff_t>(at),
                                         all.begin() + static_cast<std::ptrdiff_t>(end));
    for (const auto detail : {FactsDetail::symbols, FactsDetail::loader})
      facts_.prefetch(chunk, detail);
    for (const auto& path : chunk) {
      good += facts_.facts(path, FactsDetail::symbols).has_value();
      static_cast<void>(facts_.facts(path, FactsDetail::loader));
    }
    facts_.cache().save();
  }
  facts_.cache().end_workers();
  return good;
}

NodeIndex::Answer NodeIndex::check(const Artifact& artifact) {
  const bool watched = searches_watched_directories_only(artifact);
  try {
    return {snapshot(watched).checker.check(artifact), watched};
  } catch (const Error& error) {
    return {fail(error), watched};
  }
}

void NodeIndex::open() {
  try {
    static_cast<void>(snapshot(true));
  } catch (const std::exception&) {  // check() says so
  }
}

void NodeIndex::invalidate(std::vector<std::string> avoided) {
  avoided_ = std::move(avoided);
  watched_.reset();
  timed_.reset();
  allowed_.reset();
  facts_.renew();
}

std::vector<std::string> NodeIndex::directories() {
  auto& target = snapshot(true).target;
  const auto& loader = loader_of(target);
  std::set<std::string> inside = {"/etc", "/etc/alternatives", "/etc/ld.so.conf.d",
                                  directory_of(loader.interpreter)};
  for (const auto& directory : loader.default_directories) {  // with a slash at its end
    inside.insert(directory_of(directory));
    for (const auto& level : loader.hwcaps) {
      inside.insert(directory + "glibc-hwcaps");
      inside.insert(directory + "glibc-hwcaps/" + level);
    }
  }
  for (const auto& path : cached_paths(target)) inside.insert(directory_of(path));
  for (const auto& path : libraries()) inside.insert(directory_of(path));  // links resolved
  std::set<std::string> led_to;  // the targets' directories of links, dangling ones too
  for (const auto& directory : inside)
    visit_libraries(target, directory, [&](const fs::directory_entry& entry) {
      std::error_code none;
      if (!entry.is_symlink(none)) return;
      const auto to = (directory / fs::read_symlink(entry.path(), none)).lexically_normal();
      led_to.insert(to.parent_path().string());
    });
  inside.merge(led_to);
  std::set<std::string> out;
  for (const auto& directory : inside) {
    if (directory.empty()) continue;
    out.insert(target.root() + directory);  // may be missing, or a link
    if (auto real = target.world().real_path(directory); !real.empty())
      out.insert(target.root() + real);
  }
  return {out.begin(), out.end()};
}

}  // namespace heddle::compat
