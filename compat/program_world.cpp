// SPDX-License-Identifier: MIT
#include "compat/program_world.hpp"

#include <filesystem>

#include "base/folder_of.hpp"

namespace heddle::compat {
namespace {

constexpr std::size_t kMostRefused = 8;

class Look {
 public:
  Look(const LibraryFolders* allowed, std::string_view folder)
      : observer_(allowed == nullptr ? nullptr : allowed->observer) {
    if (observer_ != nullptr) observer_->begin(folder);
  }
  ~Look() {
    if (observer_ != nullptr) observer_->end();
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

 private:
  LookObserver* observer_;
};

std::string with_slash(const std::string& folder) {
  auto name = normal_path(folder);
  while (name.ends_with('/')) name.pop_back();
  return name + "/";
}

}  // namespace

std::string normal_path(std::string_view path) {
  if (!path.starts_with('/') || path.find('\0') != path.npos) return {};
  return std::filesystem::path(path).lexically_normal().string();
}

void LibraryFolders::add(const std::string& folder) {
  if (auto name = with_slash(folder); name != "/") folders_.insert(std::move(name));
}

void LibraryFolders::leave_out(const std::string& folder) {
  if (auto name = with_slash(folder); name != "/") left_out_.insert(std::move(name));
}

bool LibraryFolders::contain(const std::string& path) const {
  const auto name = normal_path(path) + "/";
  bool found = false;
  // The folders above it, one by one: a path has few, and there may be many folders.
  for (auto end = name.find('/', 1); end != name.npos; end = name.find('/', end + 1)) {
    const auto above = name.substr(0, end + 1);
    if (left_out_.contains(above)) return false;
    found = found || folders_.contains(above);
  }
  return found;
}

bool ProgramWorld::refuse(const std::string& path) {
  if (may_open(path)) return false;
  if (refused_.size() < kMostRefused) refused_.insert(path);
  return true;
}

World::DirId ProgramWorld::directory(std::string_view path) {
  if (allowed_ == nullptr) return base_.directory(path);
  if (refuse(std::string(path))) return kRefused;
  auto name = normal_path(path);
  if (!name.ends_with('/')) name += '/';
  const Look look(allowed_, name);
  return base_.directory(name);
}

World::DirId ProgramWorld::subdirectory(DirId base, std::string_view relative) {
  return base == kRefused ? kRefused : base_.subdirectory(base, relative);
}

World::DirState ProgramWorld::state(DirId dir) {
  return dir == kRefused ? DirState{ENOENT, false} : base_.state(dir);
}

World::Presence ProgramWorld::entry(DirId dir, const EntryName& name) {
  return dir == kRefused ? Presence::absent : base_.entry(dir, name);
}

Result<FileFacts> ProgramWorld::facts(const std::string& path) {
  if (path == path_) return file_;
  if (allowed_ == nullptr) return base_.facts(path);
  if (!may_open(path)) {
    refuse(folder_of(path));
    return fail_errno(path, "not looked at", ENOENT);
  }
  const auto name = normal_path(path);
  {
    // Opens it. To wait for who parses it is no look: a slow parse says nothing of the folder.
    const Look look(allowed_, folder_of(name));
    base_.prefetch({name});
  }
  return base_.facts(name);
}

void ProgramWorld::prefetch(const std::vector<std::string>& paths) {
  if (allowed_ == nullptr) return base_.prefetch(paths);
  for (const auto& path : paths) {
    if (!may_open(path)) continue;
    const auto name = normal_path(path);
    const Look look(allowed_, folder_of(name));
    base_.prefetch({name});
  }
}

Result<std::string> ProgramWorld::head(const std::string& path) {
  if (!may_open(path)) return fail_errno(path, "not looked at", ENOENT);
  return base_.head(allowed_ == nullptr ? path : normal_path(path));
}

std::string ProgramWorld::real_path(const std::string& path) {
  const auto real = [&](const std::string& name) {
    return may_open(name) ? base_.real_path(allowed_ == nullptr ? name : normal_path(name)) : "";
  };
  if (path != path_) return real(path);
  const auto slash = path_.rfind('/');
  if (slash == path_.npos || slash == 0) return path_;
  const auto above = path_.substr(0, slash);
  const Look look(allowed_, above);
  const auto folder = real(above);
  return folder.empty() ? path_ : (folder == "/" ? "" : folder) + path_.substr(slash);
}

}  // namespace heddle::compat
