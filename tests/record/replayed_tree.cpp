// SPDX-License-Identifier: MIT
#include "tests/record/replayed_tree.hpp"

#include <filesystem>

namespace heddle::test {

namespace fs = std::filesystem;

ReplayedTree::ReplayedTree(const std::string& work) : work_(work) {
  known_[work] = {true, {}};
  for (const auto& entry : fs::recursive_directory_iterator(work))
    known_[entry.path()] = {
        true, entry.is_symlink() ? fs::read_symlink(entry.path()).string() : std::string()};
}

ReplayedTree::Entry ReplayedTree::look(const std::string& path) const {
  if (const auto known = known_.find(path); known != known_.end()) return known->second;
  if (path.starts_with(work_ + "/")) return {};
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return {};
  return {true, fs::is_symlink(status) ? fs::read_symlink(path, error).string() : std::string()};
}

ReplayedTree::Walk ReplayedTree::walk(std::string rest, bool follow_last) const {
  std::string folder;  // "" is the root
  int links = 0;
  while (!rest.empty()) {
    const auto begin = rest.find_first_not_of('/');
    if (begin == std::string::npos) break;
    const auto end = std::min(rest.find('/', begin), rest.size());
    const std::string part = rest.substr(begin, end - begin);
    rest.erase(0, end);
    const bool last = rest.find_first_not_of('/') == std::string::npos;
    if (part == ".") continue;
    if (part == "..") {
      folder.resize(folder.empty() ? 0 : folder.rfind('/'));
      continue;
    }
    const std::string next = folder + "/" + part;
    const Entry entry = look(next);
    if (!entry.there) return {next, true, false};
    if (entry.link.empty() || (last && rest.empty() && !follow_last)) {
      folder = next;
      continue;
    }
    if (++links > 40) return {next, false, true};
    if (entry.link[0] == '/') folder.clear();
    rest = entry.link + "/" + rest;
    if (last && rest.ends_with('/')) rest.pop_back();
  }
  return {folder.empty() ? "/" : folder, false, false};
}

std::string ReplayedTree::first_missing(const std::string& path, bool follow_last) const {
  const Walk done = walk(path, follow_last);
  return done.missing ? done.end : std::string();
}

std::string ReplayedTree::place_of(const std::string& path) const { return walk(path, false).end; }

void ReplayedTree::move(const std::string& from, const std::string& to) {
  std::map<std::string, Entry> moved;
  for (auto at = known_.lower_bound(from); at != known_.end() && at->first.starts_with(from);) {
    if (at->first.size() > from.size() && at->first[from.size()] != '/') {
      ++at;
      continue;
    }
    moved[to + at->first.substr(from.size())] = at->second;
    at = known_.erase(at);
  }
  if (moved.empty()) moved[to] = look(from);
  known_[from] = {};
  for (auto& [path, entry] : moved) known_[path] = entry;
}

void ReplayedTree::apply(const FileCall& call) {
  if (!call.error.empty()) return;
  const auto& name = call.name;
  if (name.starts_with("mknod")) special_.insert(place_of(call.paths[0]));
  if (name == "creat" || call.has_flag("O_CREAT"))
    known_[walk(call.paths[0], true).end] = {true, {}};
  else if (name.starts_with("mkdir") || name.starts_with("mknod"))
    known_[place_of(call.paths[0])] = {true, {}};
  else if (name.starts_with("symlink"))
    known_[place_of(call.paths[0])] = {true, call.link_target};
  else if (name.starts_with("link"))
    known_[place_of(call.paths[1])] = {true, look(place_of(call.paths[0])).link};
  else if (name.starts_with("unlink") || name == "rmdir")
    known_[place_of(call.paths[0])] = {};
  else if (name.starts_with("rename"))
    move(place_of(call.paths[0]), place_of(call.paths[1]));
}

}  // namespace heddle::test
