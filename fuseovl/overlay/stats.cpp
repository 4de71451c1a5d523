// SPDX-License-Identifier: MIT
#include <linux/fuse.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "fuseovl/overlay/overlay.hpp"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

// FUSE_STATX of Linux 6.6, which older headers lack.
constexpr std::uint32_t kOpcodeStatx = 52;

constexpr std::pair<const char*, std::uint32_t> kKinds[] = {
    {"lookup", FUSE_LOOKUP},
    {"getattr", FUSE_GETATTR},
    {"statx", kOpcodeStatx},
    {"open", FUSE_OPEN},
    {"read", FUSE_READ},
    {"readlink", FUSE_READLINK},
    {"flush", FUSE_FLUSH},
    {"release", FUSE_RELEASE},
    {"opendir", FUSE_OPENDIR},
    {"readdir", FUSE_READDIR},
    {"readdirplus", FUSE_READDIRPLUS},
    {"releasedir", FUSE_RELEASEDIR},
    {"statfs", FUSE_STATFS},
    {"access", FUSE_ACCESS},
    {"getxattr", FUSE_GETXATTR},
    {"listxattr", FUSE_LISTXATTR},
    {"lseek", FUSE_LSEEK},
    {"ioctl", FUSE_IOCTL},
    {"create", FUSE_CREATE},
    {"mknod", FUSE_MKNOD},
    {"mkdir", FUSE_MKDIR},
    {"symlink", FUSE_SYMLINK},
    {"link", FUSE_LINK},
    {"unlink", FUSE_UNLINK},
    {"rmdir", FUSE_RMDIR},
    {"rename", FUSE_RENAME},
    {"rename2", FUSE_RENAME2},
    {"setattr", FUSE_SETATTR},
    {"setxattr", FUSE_SETXATTR},
    {"removexattr", FUSE_REMOVEXATTR},
    {"fallocate", FUSE_FALLOCATE},
    {"write", FUSE_WRITE},
    {"interrupt", FUSE_INTERRUPT},
    {"forget", FUSE_FORGET},
    {"batch_forget", FUSE_BATCH_FORGET},
    {"init", FUSE_INIT},
    {"destroy", FUSE_DESTROY},
};

Json requests_by_kind(const RequestCounters& counters) {
  Json out;
  auto other = counters.total();
  for (const auto& [name, opcode] : kKinds) {
    const auto count = counters.requests(opcode);
    out[name] = count;
    other -= std::min(other, count);
  }
  out["other"] = other;
  return out;
}

/// Appends entries while a value of the attribute holds them.
class BoundedLists {
 public:
  explicit BoundedLists(std::size_t used) : left_(kMostStatsBytes - used) {}
  bool add(Json& list, Json entry) {
    constexpr std::size_t kIndentation = 48;
    const auto size = entry.dump(2).size() + kIndentation;
    if (size > left_) return false;
    left_ -= size;
    list.push_back(std::move(entry));
    return true;
  }

 private:
  std::size_t left_;
};

}  // namespace

std::string Overlay::stats_text() const {
  const StatsFacts& facts = content_.facts;
  const ServingState& state = *state_;
  const ObjectFiles& files = content_.files;
  constexpr const char* kStaging[] = {"running", "done", "incomplete"};
  constexpr const char* kPrefetch[] = {"none", "running", "done"};
  const Staging* staging = files.staging();
  Json out = {
      {"version", 2},
      {"map", to_json_text(facts.map_path)},
      {"map_id", facts.map_id},
      {"previous_maps", facts.previous_maps},
      {"mount_point", to_json_text(facts.mount_point)},
      {"start_time", facts.start_time},
      {"supervisor_pid", state.supervisor.load()},
      {"worker_pid", state.worker.load()},
      {"workers_lost", state.workers_lost.load()},
      {"views", facts.views},
      {"names", facts.names},
      {"objects", files.size()},
      {"pinned", files.pinned()},
      {"staging", staging ? kStaging[static_cast<std::size_t>(staging->state())] : "none"},
      {"staged", staging ? staging->objects() : 0},
      {"staged_bytes", staging ? staging->bytes() : 0},
      {"index_bytes", facts.index_bytes},
      {"requests_total", state.session.counters.total()},
      {"bytes_read", state.session.counters.bytes_read()},
  };
  out["requests"] = requests_by_kind(state.session.counters);
  out["prefetch"] = kPrefetch[static_cast<std::size_t>(state.prefetch.load())];
  if (content_.bundle) {
    const auto& counters = content_.bundle->counters();
    out["bundle"] = {{"frames", content_.bundle->index().frames.size()},
                     {"decoded", counters.decoded.load()},
                     {"decoded_again", counters.again.load()},
                     {"frame_reads", counters.reads.load()},
                     {"frame_bytes", counters.bytes.load()},
                     {"bad", counters.bad.load()}};
  }
  const TreeFiles& trees = *content_.trees;
  out["trees"] = trees.trees().size();
  out["tree_entries"] = content_.tree.tree_node_count();
  out["tree_files_opened"] = trees.files_opened();
  out["tree_bytes_read"] = trees.bytes_read();
  out["tree_unreachable"] = trees.unreachable();
  auto& refused = out["refused_writes"] = {{"count", state.refused.count.load()}};
  if (state.refused.has_path) refused["path"] = to_json_text(state.refused.path.data());
  constexpr std::size_t kMostChanged = 64;
  std::vector<std::string> changed;
  out["tree_changed_files"] = trees.changed(kMostChanged, changed);
  const auto drifts = files.drifts();
  out["drift_files"] = drifts.size();
  const auto missed = trees.missed();
  if (content_.bundle) out["from_origin_files"] = missed.size();
  out["tree_changed"] = out["drift"] = Json::array();
  if (content_.bundle) out["from_origin"] = Json::array();
  BoundedLists lists(out.dump(2).size());
  for (const auto& path : changed)
    if (!lists.add(out["tree_changed"], to_json_text(path))) break;
  for (const auto& drift : drifts)
    if (!lists.add(out["drift"],
                   {{"path", to_json_text(drift.path)}, {"what", to_json_text(drift.what)}}))
      break;
  for (const auto& path : missed)
    if (!lists.add(out["from_origin"], to_json_text(path))) break;
  return out.dump(2) + "\n";
}

}  // namespace heddle
