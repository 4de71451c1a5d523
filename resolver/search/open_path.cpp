// SPDX-License-Identifier: MIT
#include <linux/limits.h>
#include <sys/stat.h>

#include "resolver/search/name_search.hpp"

// open_path of glibc's elf/dl-load.c with every odd rule. A change here that makes the probes
// differ from LD_DEBUG=libs is a wrong answer somewhere, even if the closure stays the same:
// directory status is shared, so one probe too few changes the outcome of later searches.

namespace heddle {

void NameSearch::note(std::string_view path, FoundBy by, std::size_t searched_by,
                      Probe::Outcome outcome) {
  if (record != nullptr) record->push_back({std::string(path), by, searched_by, outcome});
}

void NameSearch::open(const std::string& path, FoundBy by, std::size_t searched_by,
                      Attempt& attempt) {
  auto& candidate = attempt.found.candidate;
  candidate = verify_candidate(world_, loader_, path);
  using Verdict = Candidate::Verdict;
  using Outcome = Probe::Outcome;
  ++(candidate.verdict == Verdict::no_file ? probes.opens_failed : probes.opens_done);
  // dl-load.c, open_path: a secure program's preload must be set-user-ID; ignored like a missing
  // one.
  if (candidate.verdict == Verdict::usable && attempt.preload && options_.secure &&
      (candidate.file->mode & S_ISUID) == 0 && by != FoundBy::path) {
    candidate = {};
    candidate.error = ENOENT;
  }
  switch (candidate.verdict) {
    case Verdict::usable:
      attempt.found.path = path;
      attempt.found.by = by;
      if (by == FoundBy::rpath || by == FoundBy::runpath) attempt.found.searched_by = searched_by;
      note(path, by, searched_by, Outcome::found);
      break;
    case Verdict::no_file:
      note(path, by, searched_by,
           candidate.error == ENOENT ? Outcome::missing : Outcome::unreadable);
      break;
    case Verdict::passed_over:
      if (!candidate.reason.empty()) attempt.other_class = candidate.reason;
      note(path, by, searched_by, Outcome::wrong_class);
      break;
    case Verdict::fatal:
      attempt.found.path = path;
      note(path, by, searched_by, Outcome::not_elf);
      break;
  }
}

bool NameSearch::try_folder(SearchDir& dir, std::size_t i, const SearchList& list,
                            Attempt& attempt) {
  using Status = SearchDir::Status;
  const auto searched_by = list.may_be_dropped ? list.owner : attempt.requester;
  const auto handle = dirs_.handle(dir, i);
  const auto& capability = dirs_.capability(i);
  const auto spell = [&]() -> const std::string& {
    buffer_.assign(dir.name).append(capability).append(attempt.name);
    return buffer_;
  };
  if (world_.entry(handle, attempt.entry) == World::Presence::present && !attempt.name_too_long) {
    open(spell(), list.by, searched_by, attempt);
    if (attempt.ended()) {
      dir.status[i] = Status::existing;
      return true;
    }
    attempt.error = attempt.found.candidate.error;
  } else {
    ++probes.opens_failed;
    const auto length = dir.name.size() + capability.size() + attempt.name.size();
    const int folder_error = world_.state(handle).open_error();
    attempt.error = folder_error != 0                             ? folder_error
                    : attempt.name_too_long || length >= PATH_MAX ? ENAMETOOLONG
                                                                  : ENOENT;
    if (record != nullptr)
      note(spell(), list.by, searched_by,
           folder_error == 0 ? Probe::Outcome::missing : Probe::Outcome::no_directory);
  }
  if (dir.status[i] == Status::unknown) {
    // Up to 2.37 the slash was cut off before stat(2), which made "/" the empty path.
    const bool cut_to_nothing = loader_.glibc_minor < 38 && dir.name == "/" && capability.empty();
    const auto state = cut_to_nothing ? World::DirState{ENOENT, false} : world_.state(handle);
    ++(state.stat_error == 0 ? probes.stats_done : probes.stats_failed);
    if (state.stat_error != 0) attempt.error = state.stat_error;
    dir.status[i] = state.is_folder ? Status::existing : Status::nonexisting;
  }
  return false;
}

void NameSearch::walk(SearchList& list, Attempt& attempt) {
  bool any = false;
  for (auto* dir : list.dirs) {
    auto& live = dir->live;
    std::size_t kept = 0;
    for (std::size_t k = 0; k < live.size(); ++k) {
      const auto i = live[k];
      const bool ended = try_folder(*dir, i, list, attempt);
      if (dir->status[i] != SearchDir::Status::nonexisting) live[kept++] = i;
      if (!ended) continue;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(kept),
                 live.begin() + static_cast<std::ptrdiff_t>(k + 1));
      return;
    }
    live.resize(kept);
    // The file is there but something is wrong with it (ELOOP, ENAMETOOLONG, EMFILE): this list
    // ends. ENOTDIR ended it as well until 2.39 (a8dcffb306).
    const int error = attempt.error;
    if (kept != 0 && error != ENOENT && error != EACCES &&
        !(error == ENOTDIR && loader_.glibc_minor >= 39))
      return;
    any = any || kept != 0;
  }
  if (!any && list.may_be_dropped) list.dropped = true;
}

}  // namespace heddle
