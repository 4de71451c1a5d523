// SPDX-License-Identifier: MIT
// A supervisor's part in reloads, and what they leave of the maps before.

#include <fmt/format.h>
#include <signal.h>

#include "base/log.hpp"
#include "base/monotonic.hpp"
#include "fuseovl/supervise/supervisor.hpp"

namespace heddle {
namespace {

// What a retired file's last lookup has brought to the kernel is there by then, so that a file the
// kernel does not know is one it will not know again.
constexpr std::int64_t kSettledMs = kExchangeTime.count() + 1000;
constexpr std::int64_t kLongestLookPauseMs = 60'000;

}  // namespace

Result<void> Supervisor::open_desk() {
  Result<void> open;
  if (options_.taken_over) {
    TakenOver& before = *options_.taken_over;
    desk_.adopt(before.control, std::move(before.listener), std::move(before.client));
    ++state_.reloads;
    if (overlay_.content().retired.kept() > 0) look_at_ = monotonic_ms() + kSettledMs;
  } else if (!options_.arguments.empty()) {
    open = desk_.open();
  }
  desk_.name().copy(state_.control.data(), state_.control.size() - 1);
  return open;
}

HandOver Supervisor::pack_all() {
  // The worker is told when it is its turn: this reload may be refused.
  if (give_up_forgotten()) given_up_ = true;
  HandOver out;
  out.content = pack(overlay_.content());
  out.serving = pack_serving(state_, options_);
  return out;
}

Result<void> Supervisor::may_be_followed() const {
  if (!state_.session.can_be_taken_over())
    return fail("", "cannot reload", "Linux 6.9 and newer can, this kernel is older",
                "fs-mount -u DIR, and fs-mount MAP DIR once nobody needs it");
  if (leaving_) return fail("", "cannot reload", "the mount is about to end");
  return desk_.next()->map_exchanged ? notes_.doubt_names() : Result<void>();
}

/// The next content is there: the worker ends, for another program to take over.
void Supervisor::make_way_for_next() {
  if (auto may = may_be_followed(); !may)
    desk_.refuse(may.error());
  else
    relieve();
}

/// No worker lives. One that was ended for another reason has not been asked about before, and a
/// signal may have come since.
void Supervisor::become_next() {
  if (auto may = may_be_followed(); !may) return desk_.refuse(may.error());
  HandOver task;
  task.task = HandOver::Task::serve;
  task.device = device_.get();
  task.ready = options_.ready.get();
  try {
    task.serving = pack_serving(state_, options_);
    desk_.hand_over(task);
    // The next has its own, from where this one is.
    if (stager_) ::kill(*stager_, SIGKILL);
    desk_.refuse(become(desk_.program(), desk_.arguments(), task));
    stager_ = overlay_.start_staging();
  } catch (const std::exception& error) {  // a loader's nonsense, or no memory
    desk_.refuse(Error("fs-mount", "cannot hand over", error.what()));
  }
}

/// Before the first answer with the new names: what the kernel has by then, and what it still gets
/// of the old worker's answers, is of the old ones.
void Supervisor::begin_exchange() {
  state_.exchanging = true;
  exchange_ends_at_ = monotonic_ms() + kExchangeTime.count();
  if (auto done = notes_.doubt_names(); !done) warn(done.error());
  for (const auto folder : overlay_.content().tree.directories()) notes_.doubt_attributes(folder);
}

void Supervisor::tell_client() {
  const auto& before = *options_.taken_over;
  const auto& facts = overlay_.content().facts;
  const auto text =
      fmt::format("{} (generation {}, worker {})", before.report, facts.generation, worker_);
  say(fmt::format("{}: {}", facts.map_path, text));
  desk_.reply({true, text, {}, before.warnings, before.map_exchanged});
}

/// True: some were.
bool Supervisor::give_up_forgotten() {
  const RetiredFiles& retired = overlay_.content().retired;
  const auto settled = monotonic_ms() - kSettledMs;
  bool some = false;
  for (ObjectId id = 0; id < retired.size(); ++id) {
    if (!retired.is_kept(id) || retired.since(id) > settled) continue;
    if (notes_.knows(retired.inode(id))) continue;
    overlay_.give_up(id);
    some = true;
  }
  if (some) overlay_.release_copies();
  return some;
}

void Supervisor::look_for_forgotten() {
  if (desk_.is_busy()) return;
  // The worker has the descriptors and the memory too.
  if (give_up_forgotten() || given_up_) {
    given_up_ = false;
    if (!relieved_) relieve();
    // There may be room for what had none, once the worker is gone: it holds those copies too.
    stage_again_ = true;
  }
  look_at_ = overlay_.content().retired.kept() > 0 ? monotonic_ms() + look_pause_ : 0;
  look_pause_ = std::min(2 * look_pause_, kLongestLookPauseMs);
}

/// From here on the kernel keeps the names it gets.
void Supervisor::end_exchange() {
  state_.exchanging = false;
  exchange_ends_at_ = 0;
}

}  // namespace heddle
