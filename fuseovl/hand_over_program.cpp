// SPDX-License-Identifier: MIT
// The two things an fs-mount does that was started in another's place
// (fuseovl/supervise/hand_over.hpp).

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/monotonic.hpp"
#include "fuseovl/files/map_file.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount_program.hpp"
#include "fuseovl/session/shared.hpp"
#include "fuseovl/supervise/next_content.hpp"
#include "fuseovl/supervise/parcel.hpp"
#include "fuseovl/supervise/serve.hpp"

namespace heddle {
namespace {

using Names = std::map<std::string, InodeNumber>;

/// Every name of the tree below its root but heddle's own.
Names names_of(const Tree& tree) {
  Names out;
  const auto walk = [&](const auto& self, InodeNumber folder, const std::string& path) -> void {
    for (const auto& entry : tree.entries(folder)) {
      if (entry.ino == Tree::kOwnDirectory) continue;
      const auto name = path + std::string(entry.name);
      if (tree.kind(entry.ino) == NodeKind::directory)
        self(self, entry.ino, name + "/");
      else
        out.emplace(name, entry.ino);
    }
  };
  walk(walk, Tree::kRoot, "");
  return out;
}

/// Files, whatever the number of their names.
std::string describe_exchange(const Tree& before, const Tree& after) {
  const auto old_names = names_of(before);
  const auto new_names = names_of(after);
  std::set<InodeNumber> known, same, changed, added, gone;
  for (const auto& [name, ino] : old_names) known.insert(ino);
  for (const auto& [name, ino] : new_names)
    (known.contains(ino) ? same : old_names.contains(name) ? changed : added).insert(ino);
  for (const auto& [name, ino] : old_names)
    if (!new_names.contains(name) && !same.contains(ino)) gone.insert(ino);
  std::erase_if(added, [&](InodeNumber ino) { return changed.contains(ino); });
  return fmt::format("files: {} as before, {} changed, {} new, {} gone", same.size(),
                     changed.size(), added.size(), gone.size());
}

/// A loader has few descriptors left where a map has many files: those of before are open in it.
void keep_pinned(OverlayContent& before, OverlayContent& after) {
  for (ObjectId id = 0; id < after.files.size(); ++id) {
    if (after.files.origin(id).fd) continue;
    const InodeNumber ino = after.tree.inode(id);
    if (before.tree.kind(ino) == NodeKind::object)
      after.files.pin(id, before.files.take(before.tree.object(ino)).fd);
    else if (const auto retired = before.retired.find(ino))
      after.files.pin(id, before.retired.files().take(*retired).fd);
  }
}

/// What is staged for `before` is read from there for `after` too, from the first moment on: its
/// origin may have gone.
void keep_copies(const OverlayContent& before, OverlayContent& after) {
  std::map<ContentHash, CopyStamp> copies;
  for (const ObjectFiles* files : {&before.files, &before.retired.files()})
    for (ObjectId id = 0; id < files->size(); ++id)
      if (const auto copy = files->copy_of(id)) copies.emplace(files->origin(id).hash, *copy);
  for (ObjectId id = 0; id < after.files.size(); ++id)
    if (const auto copy = copies.find(after.files.origin(id).hash); copy != copies.end())
      after.files.has_copy(id, copy->second);
}

/// All that `before` shows or keeps and `after` does not show.
Result<RetiredFiles> retire(OverlayContent& before, const Tree& after) {
  std::vector<RetiredFiles::File> out;
  const auto now = monotonic_ms();
  const auto shown = [&](InodeNumber ino) { return after.kind(ino).has_value(); };
  for (ObjectId id = 0; id < before.files.size(); ++id)
    if (const auto ino = before.tree.inode(id); !shown(ino) && before.files.origin(id).usable)
      out.push_back(
          {ino, before.files.path(id), before.files.take(id), before.files.refusal(id), now});
  RetiredFiles& retired = before.retired;
  for (ObjectId id = 0; id < retired.size(); ++id)
    if (const auto ino = retired.inode(id); !shown(ino) && retired.is_kept(id))
      out.push_back({ino, retired.files().path(id), retired.files().take(id),
                     retired.files().refusal(id), retired.since(id)});
  const auto keep_bytes = [&](InodeNumber ino, const std::string& bytes,
                              const char* name) -> Result<void> {
    auto origin = make_origin(bytes, name);
    if (!origin) return fail(std::move(origin.error()));
    out.push_back({ino, name, std::move(*origin), 0, now});
    return {};
  };
  auto kept = keep_bytes(before.tree.index(), before.index, ".heddle/index");
  for (std::size_t i = 0; kept && i < before.generated.size(); ++i)
    kept = keep_bytes(before.tree.generated_inode(i), before.generated[i], ".heddle");
  if (!kept) return fail(std::move(kept.error()));
  out.push_back({before.tree.map(), ".heddle/map",
                 origin_of(std::move(before.map_file), before.map_status), 0, now});
  return RetiredFiles(std::move(out));
}

/// Fills `next` in, but for its descriptors; `sent_fds` are those of `content`, shown or next, that
/// the supervisor does not have.
void fill(NextContent& next, const OverlayContent& content, const std::vector<int>& handed_over,
          std::vector<int>& sent_fds) {
  auto parcel = pack(content);
  next.bytes = std::move(parcel.bytes);
  std::map<int, int> places;
  for (std::size_t i = 0; i < handed_over.size(); ++i) places[handed_over[i]] = static_cast<int>(i);
  for (const int fd : parcel.fds) {
    if (const auto old = places.find(fd); old != places.end()) {
      next.places.push_back(old->second);
    } else {
      sent_fds.push_back(fd);
      next.places.push_back(-static_cast<int>(sent_fds.size()));
    }
  }
}

/// nullopt: the map is the one that `before` was made of.
Result<std::optional<OverlayContent>> load_map(const MountSettings& settings, const HandOver& task,
                                               OverlayContent& before, std::string& warnings) {
  LoadOptions options = settings.load;
  options.map_path = task.map_path;
  options.mount_point = before.facts.mount_point;
  options.before = &before;
  options.stage = {};  // who goes on serving stages
  auto map = MapFile::find(task.map_path, options.origin_timeout, task.map);
  if (!map) return fail(std::move(map.error()));
  {
    const auto reader = map->read();
    if (!reader) return fail(reader.error());
    if (reader->id().hex() == before.facts.map_id) return std::nullopt;
  }
  if (!settings.node.empty())
    return fail(before.facts.mount_point, "cannot exchange its map",
                "it is the node's mount of this one",
                "the service makes one for each map that it is asked for");
  std::vector<Drift> drifts;
  auto after = load_overlay(std::move(*map), options, drifts);
  for (const auto& drift : drifts) warnings += Error(drift.path, drift.what).message() + "\n";
  if (!after) return fail(std::move(after.error()));
  keep_copies(before, *after);
  keep_pinned(before, *after);
  auto retired = retire(before, after->tree);
  if (!retired) return fail(std::move(retired.error()));
  after->retired = std::move(*retired);
  after->previous = std::move(before.tree);
  after->announced = std::move(before.announced);
  return after;
}

/// Who is to serve must understand all of it when it comes to that: there is no way back then.
Result<void> check_serving(const HandOver& task) {
  if (task.serving.empty()) return {};
  const Shared<ServingState> state;
  ServeOptions options;
  return unpack_serving(task.serving, *state, options);
}

Result<void> load_next(const MountSettings& settings, const HandOver& task, std::string& warnings) {
  if (auto understood = check_serving(task); !understood) return understood;
  auto before = unpack(task.content.bytes, task.content.fds);
  if (!before) return fail(std::move(before.error()));
  std::optional<OverlayContent> after;
  if (task.map >= 0) {
    auto loaded = load_map(settings, task, *before, warnings);
    if (!loaded) return fail(std::move(loaded.error()));
    after = std::move(*loaded);
  }
  NextContent next;
  next.map_exchanged = after.has_value();
  next.report = after ? describe_exchange(*after->previous, after->tree) : "the same map";
  before->previous.reset();
  next.warnings = warnings;
  std::vector<int> sent_fds;
  fill(next, after ? *after : *before, task.content.fds, sent_fds);
  return send_next_content(task.answer, next, sent_fds);
}

int load_program(const MountSettings& settings, const HandOver& task) {
  std::string warnings;
  if (auto sent = load_next(settings, task, warnings); !sent) {
    send_load_failure(task.answer, sent.error(), warnings);
    return exit_failure;
  }
  return exit_done;
}

int go_on_serving(const MountSettings& settings, HandOver task) {
  Fd device(task.device);
  ServeOptions options;
  options.ready = Fd(task.ready);
  auto content = unpack(task.content.bytes, task.content.fds);
  if (!content) return report(content.error()), exit_failure;
  set_options(*content, settings.load);
  Overlay overlay(std::move(*content));
  if (auto known = unpack_serving(task.serving, overlay.state(), options); !known)
    return report(known.error()), exit_failure;
  options.session = session_options(settings);
  options.arguments = settings.arguments;
  options.taken_over =
      TakenOver{std::move(task.control), Fd(task.listener),        Fd(task.client),
                std::move(task.report),  std::move(task.warnings), task.map_exchanged};
  return serve_program(overlay, std::move(device), std::move(options));
}

}  // namespace

int hand_over_program(const MountSettings& settings) {
  // Started by descriptor, the kernel names us after its number.
  ::prctl(PR_SET_NAME, "fs-mount");
  Fd memfd(settings.hand_over);
  auto task = read_hand_over(memfd);
  if (!task) {
    refuse_hand_over(memfd, task.error());
    return report(task.error()), exit_failure;
  }
  memfd.reset();
  if (task->task == HandOver::Task::load) return load_program(settings, *task);
  return go_on_serving(settings, std::move(*task));
}

}  // namespace heddle
