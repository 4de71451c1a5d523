// SPDX-License-Identifier: MIT
#include "tests/search/fake_world.hpp"

#include "tests/search/plain_facts.hpp"

namespace heddle::test {

void FakeWorld::add(const std::string& path, const TinyElf& elf) { add_text(path, elf.bytes()); }

void FakeWorld::add_text(const std::string& path, const std::string& content) {
  files_[path] = content;
  const auto slash = path.rfind('/');
  directories_[path.substr(0, slash + 1)].insert(path.substr(slash + 1));
}

void FakeWorld::fail_with(const std::string& path, int code) {
  add_text(path, "");
  failing_[path] = code;
}

World::DirId FakeWorld::directory(std::string_view path) {
  if (const auto known = by_path_.find(path); known != by_path_.end()) return known->second;
  ids_.emplace_back(path);
  asked.emplace_back(path);
  return by_path_.emplace(path, static_cast<DirId>(ids_.size() - 1)).first->second;
}

World::DirId FakeWorld::subdirectory(DirId base, std::string_view relative) {
  return directory(ids_[base] + std::string(relative));
}

World::DirState FakeWorld::state(DirId dir) {
  const auto& path = ids_[dir];
  if (directories_.contains(path)) return {};
  const bool file = files_.contains(path.substr(0, path.size() - 1));
  return {file ? 0 : ENOENT, false};
}

World::Presence FakeWorld::entry(DirId dir, const EntryName& name) {
  const auto directory = directories_.find(ids_[dir]);
  return directory != directories_.end() && directory->second.contains(name.text)
             ? Presence::present
             : Presence::absent;
}

Result<FileFacts> FakeWorld::facts(const std::string& path) {
  opened.push_back(path);
  if (const auto failing = failing_.find(path); failing != failing_.end())
    return fail_errno(path, "cannot open", failing->second);
  const auto file = files_.find(path);
  if (file == files_.end()) return fail_errno(path, "cannot open", ENOENT);
  auto elf = parse_elf(file->second);
  if (!elf) return fail(elf.error());
  FileFacts facts;
  facts.elf = std::move(*elf);
  facts.mode = 0100755;
  facts.stamp.id = {1, static_cast<std::uint64_t>(std::distance(files_.begin(), file)) + 1};
  return facts;
}

void FakeWorld::prefetch(const std::vector<std::string>& paths) {
  prefetched.insert(prefetched.end(), paths.begin(), paths.end());
}

Result<std::string> FakeWorld::read(const std::string& path, Part part) {
  const auto file = files_.find(path);
  if (file == files_.end()) return fail_errno(path, "cannot open", ENOENT);
  return file->second.substr(0, part == Part::head ? 64 : std::string::npos);
}

std::string FakeWorld::real_path(const std::string& path) {
  return path == "." ? "/here" : files_.contains(path) ? path : std::string();
}

}  // namespace heddle::test
