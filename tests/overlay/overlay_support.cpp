// SPDX-License-Identifier: MIT
#include "tests/overlay/overlay_support.hpp"

#include "fuseovl/mount/stats_attribute.hpp"

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/content_hash.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle::test {

std::string fs_mount() {
  if (const char* path = std::getenv("HEDDLE_FS_MOUNT")) return path;
  return staged_program("fs-mount");
}

ObjectId MapMaker::add_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw Error::from_errno(path, "cannot stat");
  for (ObjectId id = 0; id < content_.objects.size(); ++id)
    if (content_.objects[id].stamp.id == file_id(status)) return id;
  const auto file = value_or_throw(open_file(path, O_RDONLY));
  MapObject object;
  object.path = path;
  object.stamp = file_stamp(status);
  object.mode = status.st_mode;
  if (hashes_) object.hash = value_or_throw(hash_file(file.get(), path));
  object.is_elf = false;
  content_.objects.push_back(std::move(object));
  return static_cast<ObjectId>(content_.objects.size() - 1);
}

void MapMaker::add_name(const std::string& view, const std::string& name, const std::string& path) {
  const ObjectId id = add_file(path);
  auto& views = content_.views;
  auto found = std::find_if(views.begin(), views.end(), [&](auto& v) { return v.name == view; });
  if (found == views.end()) found = views.insert(views.end(), MapView{view, {}});
  found->names.emplace_back(name, id);
}

void MapMaker::add_directory(const std::string& view, const std::string& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file())
      add_name(view, fs::relative(entry.path(), directory).string(), entry.path().string());
}

namespace {
TreeIndexWriter::Entry entry_of(const fs::path& path, const fs::path& excluded) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) throw Error::from_errno(path.string(), "cannot stat");
  const auto stamp = file_stamp(status);
  TreeIndexWriter::Entry out;
  out.name = path.filename().string();
  out.mode = static_cast<std::uint16_t>(status.st_mode);
  out.uid = status.st_uid;
  out.gid = status.st_gid;
  out.links = static_cast<std::uint32_t>(status.st_nlink);
  out.size = stamp.size;
  out.mtime_ns = stamp.mtime_ns;
  out.ctime_ns = stamp.ctime_ns;
  out.hole = path == excluded;
  out.dev = stamp.id.dev;
  out.ino = stamp.id.ino;
  if (S_ISLNK(status.st_mode)) out.target = fs::read_symlink(path).string();
  if (S_ISDIR(status.st_mode) && !out.hole)
    for (const auto& below : fs::directory_iterator(path))
      out.children.push_back(entry_of(below.path(), excluded));
  return out;
}
}  // namespace

void MapMaker::add_tree(const std::string& directory, const std::string& as,
                        const std::string& excluded) {
  auto root = entry_of(directory, excluded);
  root.name.clear();
  content_.trees.push_back(
      {as.empty() ? directory : as, value_or_throw(TreeIndexWriter::encode(std::move(root)))});
}

MapContent MapMaker::content() const {
  MapContent out = content_;
  std::vector<ObjectId> order(out.objects.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](ObjectId a, ObjectId b) {
    return content_.objects[a].path < content_.objects[b].path;
  });
  std::vector<ObjectId> number(order.size());
  for (ObjectId i = 0; i < order.size(); ++i) {
    number[order[i]] = i;
    out.objects[i] = content_.objects[order[i]];
    out.paths.emplace_back(out.objects[i].path, i);
  }
  for (auto& view : out.views) {
    for (auto& [name, id] : view.names) id = number[id];
    std::sort(view.names.begin(), view.names.end());
  }
  std::sort(out.trees.begin(), out.trees.end(),
            [](const MapTree& a, const MapTree& b) { return a.path < b.path; });
  std::sort(out.views.begin(), out.views.end(),
            [](const MapView& a, const MapView& b) { return a.name < b.name; });
  return out;
}

std::string MapMaker::write(const std::string& path) const {
  value_or_throw(write_map(content(), path));
  return path;
}

Mount::Mount(const std::string& map, const std::string& directory, std::vector<std::string> options)
    : path_(directory) {
  fs::create_directories(directory);
  std::vector<std::string> argv = {fs_mount()};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", map, directory});
  run_checked(argv);
  pid_ = static_cast<int>(stat_number("supervisor_pid"));
}

Mount::~Mount() {
  // Before Linux 6.5 --reload stacks mounts.
  for (auto left = mounts_with(" " + path_ + " "); left > 0; --left)
    (void)run({"umount", "-l", path_});
  (void)wait_until(std::chrono::seconds(5), [this] { return !is_running(pid_); });
}

namespace {
nlohmann::json read_stats(const std::string& mount) {
  return nlohmann::json::parse(value_or_throw(read_stats_text(mount)));
}

nlohmann::json find(const nlohmann::json& in, const std::string& name) {
  const auto flat = in.flatten();
  for (const auto& [path, value] : flat.items())
    if (path.ends_with("/" + name)) return value;
  throw Error(name, "is not in the statistics");
}
}  // namespace

std::uint64_t Mount::stat_number(const std::string& name) const {
  return find(read_stats(path_), name).get<std::uint64_t>();
}

std::string Mount::stat_text(const std::string& name) const {
  return find(read_stats(path_), name).get<std::string>();
}

void Mount::wait_for_prefetch() const {
  if (!kernel_has(SYS_open_tree)) return;  // there is none
  (void)wait_until(std::chrono::seconds(20), [this] { return stat_text("prefetch") == "done"; });
}

std::string Mount::wait_for_staging() const {
  std::string state;
  (void)wait_until(std::chrono::seconds(20),
                   [&] { return (state = stat_text("staging")) != "running"; });
  return state;
}

RunResult Mount::reload(const std::string& map, std::vector<std::string> options) const {
  options.insert(options.begin(), {fs_mount(), "--reload"});
  if (!map.empty()) options.push_back(map);
  options.push_back(path_);
  return run(options, {.deadline = std::chrono::seconds(30)});
}

RunResult Mount::unmount() const { return run({fs_mount(), "-u", path_}); }

}  // namespace heddle::test
