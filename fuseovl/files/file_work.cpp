// SPDX-License-Identifier: MIT
#include "fuseovl/files/file_work.hpp"

#include <map>

#include "fuseovl/files/local_files.hpp"

namespace heddle {
namespace {

using State = WorkResult::State;
using Pieces = std::vector<std::size_t>;

/// Leaves out of `left` what lies on a file system of which nothing has come back since one of
/// `pieces` was waited for.
void leave_silent_out(const FileWork& files, const Pieces& pieces,
                      const std::vector<WorkResult>& results, Pieces& left) {
  const auto mounts = list_mounts().value_or(std::vector<MountEntry>());
  const auto mount = [&](std::size_t piece) -> const MountEntry* {
    const auto path = files.path_of(piece);
    return path.empty() ? nullptr : mount_of(path, mounts);
  };
  std::map<const MountEntry*, std::int64_t> waits_since;
  for (const auto piece : pieces)
    if (results[piece].state == State::late)
      waits_since.emplace(mount(piece), results[piece].at_ms);
  if (waits_since.empty()) return;
  for (const auto piece : pieces) {
    const auto silent = waits_since.find(mount(piece));
    if (results[piece].state == State::done && silent != waits_since.end() &&
        results[piece].at_ms > silent->second)
      waits_since.erase(silent);
  }
  std::erase_if(left, [&](std::size_t piece) { return waits_since.contains(mount(piece)); });
}

}  // namespace

std::vector<WorkResult> work_on_files(std::size_t count, const FileWork& files) {
  std::vector<WorkResult> results(count);
  Pieces todo(count);
  for (std::size_t piece = 0; piece < count; ++piece) todo[piece] = piece;
  while (!todo.empty()) {
    auto round = do_within(
        files.limit, todo.size(),
        [&](std::size_t at, WorkPlace& place) { files.work(todo[at], place); }, files.kept,
        files.threads);
    Pieces left;
    bool some_are_late = false;
    for (std::size_t at = 0; at < todo.size(); ++at) {
      some_are_late |= round[at].state == State::late;
      if (round[at].state == State::not_begun) left.push_back(todo[at]);
      results[todo[at]] = std::move(round[at]);
    }
    if (some_are_late && !files.with_others) break;
    leave_silent_out(files, todo, results, left);
    todo = std::move(left);
  }
  return results;
}

}  // namespace heddle
