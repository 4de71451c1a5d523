// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/parcel.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace heddle {

using Json = nlohmann::json;

namespace {

constexpr int kVersion = 2;
constexpr int kOldest = 1;  ///< it knows no patches

/// Hands each descriptor out once.
class Descriptors {
 public:
  explicit Descriptors(std::span<const int> fds) {
    for (const int fd : fds) fds_.emplace_back(fd);
  }
  Fd take(int place) {
    return place < 0 ? Fd() : std::move(fds_.at(static_cast<std::size_t>(place)));
  }

 private:
  std::vector<Fd> fds_;
};

int add(std::vector<int>& fds, const Fd& fd) {
  if (!fd) return -1;
  fds.push_back(fd.get());
  return static_cast<int>(fds.size()) - 1;
}

Json pack_bytes(std::string_view bytes) {
  return Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}
std::string unpack_bytes(const Json& json) {
  const auto& bytes = json.get_binary();
  return {bytes.begin(), bytes.end()};
}

Json pack_patches(const std::vector<BytePatch>& patches) {
  auto list = Json::array();
  for (const auto& patch : patches)
    list.push_back(Json::array({patch.offset, pack_bytes(patch.before), pack_bytes(patch.after)}));
  return list;
}

Json pack_hash(const ContentHash& hash) {
  return Json::binary(std::vector<std::uint8_t>(hash.bytes.begin(), hash.bytes.end()));
}
ContentHash unpack_hash(const Json& json) {
  ContentHash out;
  const auto& bytes = json.get_binary();
  if (bytes.size() == out.bytes.size()) std::copy(bytes.begin(), bytes.end(), out.bytes.begin());
  return out;
}

Json pack_origin(const ObjectFiles& files, ObjectId id, std::vector<int>& fds) {
  const Origin& origin = files.origin(id);
  const FileStamp& stamp = origin.stamp;
  const auto copy = files.copy_of(id);
  return Json::array({add(fds, origin.fd), stamp.id.dev, stamp.id.ino, stamp.size, stamp.mtime_ns,
                      stamp.ctime_ns, origin.atime_ns, origin.mode, origin.uid, origin.gid,
                      origin.blocks, origin.usable, origin.as_mapped, pack_hash(origin.hash),
                      copy ? Json::array({copy->ino, copy->mtime_ns}) : Json(),
                      pack_patches(origin.patches)});
}

Origin unpack_origin(const Json& json, Descriptors& fds) {
  Origin origin;
  origin.fd = fds.take(json.at(0).get<int>());
  json.at(1).get_to(origin.stamp.id.dev);
  json.at(2).get_to(origin.stamp.id.ino);
  json.at(3).get_to(origin.stamp.size);
  json.at(4).get_to(origin.stamp.mtime_ns);
  json.at(5).get_to(origin.stamp.ctime_ns);
  json.at(6).get_to(origin.atime_ns);
  json.at(7).get_to(origin.mode);
  json.at(8).get_to(origin.uid);
  json.at(9).get_to(origin.gid);
  json.at(10).get_to(origin.blocks);
  json.at(11).get_to(origin.usable);
  json.at(12).get_to(origin.as_mapped);
  if (json.size() > 13) origin.hash = unpack_hash(json.at(13));
  if (json.size() > 14 && !json.at(14).is_null())
    origin.copy =
        CopyStamp{json.at(14).at(0).get<std::uint64_t>(), json.at(14).at(1).get<std::int64_t>()};
  if (json.size() > 15)
    for (const auto& patch : json.at(15))
      origin.patches.push_back(
          {patch.at(0).get<std::uint64_t>(), unpack_bytes(patch.at(1)), unpack_bytes(patch.at(2))});
  return origin;
}

Json pack_files(const ObjectFiles& files, std::vector<int>& fds) {
  auto list = Json::array();
  for (ObjectId id = 0; id < files.size(); ++id)
    list.push_back(Json::array({files.path(id), pack_origin(files, id, fds), files.refusal(id)}));
  auto drifts = Json::array();
  for (const auto& drift : files.first_drifts())
    drifts.push_back(Json::array({drift.object, drift.path, drift.what}));
  return {{"list", std::move(list)}, {"drifts", std::move(drifts)}};
}

ObjectFiles unpack_files(const Json& json, Descriptors& fds) {
  Origins origins;
  std::vector<std::string> paths;
  for (const auto& file : json.at("list")) {
    paths.push_back(file.at(0).get<std::string>());
    origins.files.push_back(unpack_origin(file.at(1), fds));
    if (origins.files.back().fd) ++origins.pinned;
  }
  for (const auto& drift : json.value("drifts", Json::array()))
    origins.drifts.push_back({drift.at(0).get<ObjectId>(), drift.at(1).get<std::string>(),
                              drift.at(2).get<std::string>()});
  ObjectFiles files(std::move(origins), std::move(paths));
  ObjectId id = 0;
  for (const auto& file : json.at("list"))
    files.refuse_again(id++, file.at(2).get<std::uint32_t>());
  return files;
}

Json pack_retired(const RetiredFiles& retired, std::vector<int>& fds) {
  const ObjectFiles& files = retired.files();
  auto list = Json::array();
  for (ObjectId id = 0; id < retired.size(); ++id)
    if (retired.is_kept(id))
      list.push_back(Json::array({retired.inode(id), files.path(id), pack_origin(files, id, fds),
                                  files.refusal(id), retired.since(id)}));
  return list;
}

RetiredFiles unpack_retired(const Json& json, Descriptors& fds) {
  std::vector<RetiredFiles::File> files;
  for (const auto& file : json)
    files.push_back({file.at(0).get<InodeNumber>(), file.at(1).get<std::string>(),
                     unpack_origin(file.at(2), fds), file.at(3).get<std::uint32_t>(),
                     file.at(4).get<std::int64_t>()});
  return RetiredFiles(std::move(files));
}

Json pack_facts(const StatsFacts& facts) {
  return {{"map_path", facts.map_path},
          {"map_id", facts.map_id},
          {"mount_point", facts.mount_point},
          {"views", facts.views},
          {"names", facts.names},
          {"index_bytes", facts.index_bytes},
          {"start_time", facts.start_time},
          {"generation", facts.generation}};
}

StatsFacts unpack_facts(const Json& json) {
  StatsFacts facts;
  json.at("map_path").get_to(facts.map_path);
  json.at("map_id").get_to(facts.map_id);
  json.at("mount_point").get_to(facts.mount_point);
  facts.views = json.value("views", std::size_t{0});
  facts.names = json.value("names", std::size_t{0});
  facts.index_bytes = json.value("index_bytes", std::uint64_t{0});
  facts.start_time = json.value("start_time", "");
  facts.generation = json.value("generation", std::uint64_t{0});
  return facts;
}

Json pack_announced(const OverlayContent& content, std::vector<int>& fds) {
  auto list = Json::array();
  for (const auto& fd : content.announced) list.push_back(add(fds, fd));
  for (const ObjectFiles* files : {&content.files, &content.retired.files()})
    if (const auto* copies = files->copies()) list.push_back(add(fds, copies->announcement()));
  return list;
}

Json pack_time(const timespec& time) { return Json::array({time.tv_sec, time.tv_nsec}); }
timespec unpack_time(const Json& json) {
  return {json.at(0).get<time_t>(), json.at(1).get<long>()};
}

/// The oldest version that does no wrong with it: one that leaves patches aside would serve the
/// bytes that they are to hide.
int version_for(const OverlayContent& content) {
  for (const ObjectFiles* files : {&content.files, &content.retired.files()})
    for (ObjectId id = 0; id < files->size(); ++id)
      if (!files->origin(id).patches.empty()) return kVersion;
  return kOldest;
}

Json pack_map(const OverlayContent& content, std::vector<int>& fds) {
  const auto& status = content.map_status;
  return Json::array({add(fds, content.map_file), status.st_size, pack_time(status.st_mtim),
                      status.st_dev, status.st_ino, pack_time(status.st_ctim), status.st_blocks});
}

void unpack_map(const Json& json, Descriptors& fds, OverlayContent& out) {
  out.map_file = fds.take(json.at(0).get<int>());
  auto& status = out.map_status;
  if (json.size() < 7) {
    // Where the file lies may not answer, but whoever says so little has waited for it as well.
    (void)::fstat(out.map_file.get(), &status);
  } else {
    json.at(3).get_to(status.st_dev);
    json.at(4).get_to(status.st_ino);
    status.st_ctim = unpack_time(json.at(5));
    json.at(6).get_to(status.st_blocks);
  }
  json.at(1).get_to(status.st_size);
  status.st_mtim = unpack_time(json.at(2));
}

}  // namespace

/// The way to a Tree's inside.
class TreeParcel {
 public:
  static Json pack(const Tree& tree) {
    auto objects = Json::array();
    for (const auto& object : tree.objects_)
      objects.push_back(Json::array({object.ino, object.links}));
    auto directories = Json::array();
    for (const auto& directory : tree.directories_) {
      auto entries = Json::array();
      for (const auto& entry : directory.entries) {
        entries.push_back(std::string(entry.name));
        entries.push_back(entry.ino);
      }
      directories.push_back(Json::array(
          {directory.path, directory.ino, directory.parent, directory.links, std::move(entries)}));
    }
    return {{"first", tree.first_},
            {"next", tree.next_},
            {"generated", tree.generated_count_},
            {"objects", std::move(objects)},
            {"directories", std::move(directories)}};
  }

  static Tree unpack(const Json& json) {
    Tree tree;
    json.at("first").get_to(tree.first_);
    json.at("next").get_to(tree.next_);
    json.at("generated").get_to(tree.generated_count_);
    for (const auto& object : json.at("objects"))
      tree.objects_.push_back({object.at(0).get<InodeNumber>(), object.at(1).get<std::uint32_t>()});
    std::size_t names = 0;
    for (const auto& directory : json.at("directories")) names += directory.at(4).size() / 2;
    tree.names_.reserve(names);  // what the entries show must not move
    for (const auto& directory : json.at("directories")) {
      tree.directories_.push_back({directory.at(0).get<std::string>(),
                                   directory.at(1).get<InodeNumber>(),
                                   directory.at(2).get<InodeNumber>(),
                                   {},
                                   directory.at(3).get<std::uint32_t>()});
      const auto& entries = directory.at(4);
      for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
        tree.directories_.back().entries.push_back(
            {tree.names_.emplace_back(entries[i].get<std::string>()),
             entries[i + 1].get<InodeNumber>()});
    }
    tree.make_nodes();
    return tree;
  }
};

Parcel pack(const OverlayContent& content) {
  Parcel out;
  auto generated = Json::array();
  for (const auto& bytes : content.generated) generated.push_back(pack_bytes(bytes));
  const Json json = {
      {"version", version_for(content)},
      {"tree", TreeParcel::pack(content.tree)},
      {"files", pack_files(content.files, out.fds)},
      {"retired", pack_retired(content.retired, out.fds)},
      {"index", pack_bytes(content.index)},
      {"generated", std::move(generated)},
      {"map", pack_map(content, out.fds)},
      {"facts", pack_facts(content.facts)},
      {"made", pack_time(content.made)},
      {"announced", pack_announced(content, out.fds)},
      {"previous", content.previous ? TreeParcel::pack(*content.previous) : Json()},
  };
  Json::to_cbor(json, out.bytes);
  return out;
}

Result<OverlayContent> unpack(std::string_view bytes, std::span<const int> fds) {
  Descriptors descriptors(fds);
  try {
    const Json json = Json::from_cbor(bytes);
    if (const auto version = json.at("version").get<int>(); version < kOldest || version > kVersion)
      return fail(Error::with_code(ENOTSUP, "fs-mount", "cannot take the mount over",
                                   "it is served by another version: " + std::to_string(version) +
                                       ", not " + std::to_string(kVersion),
                                   "mount anew"));
    OverlayContent out;
    out.tree = TreeParcel::unpack(json.at("tree"));
    out.files = unpack_files(json.at("files"), descriptors);
    out.retired = unpack_retired(json.value("retired", Json::array()), descriptors);
    out.index = unpack_bytes(json.at("index"));
    for (const auto& one : json.value("generated", Json::array()))
      out.generated.push_back(unpack_bytes(one));
    unpack_map(json.at("map"), descriptors, out);
    out.facts = unpack_facts(json.at("facts"));
    out.made = unpack_time(json.at("made"));
    for (const auto& place : json.value("announced", Json::array()))
      out.announced.push_back(descriptors.take(place.get<int>()));
    if (const auto tree = json.value("previous", Json()); !tree.is_null())
      out.previous = TreeParcel::unpack(tree);
    return out;
  } catch (const std::exception& error) {
    return fail(Error::with_code(ENOTSUP, "fs-mount", "cannot take the mount over", error.what(),
                                 "mount anew"));
  }
}

}  // namespace heddle
