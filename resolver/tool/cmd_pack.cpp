// SPDX-License-Identifier: MIT
//
// Bundles: what goes into one, in which order, and what is in one.
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/task_pool.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "record/trace/trace_reader.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "resolver/tool/commands.hpp"
#include "resolver/tool/compile_python.hpp"
#include "ship/bundle/bundle_writer.hpp"

namespace heddle {
namespace {

/// Longer files are no private keys.
constexpr std::uint64_t kMostKey = 64 << 10;

/// A file of the map, an object or one of a tree.
struct File {
  std::string path;
  std::vector<std::string> links;  ///< its other names in the tree
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::uint32_t mode = 0;
  const ContentHash* mapped = nullptr;  ///< the content's, of an object
  bool always = false;                  ///< packed even if the trace does not use it
  std::uint64_t* place = nullptr;       ///< in the bundle's tables
  std::string made;                     ///< the file with its content, if it is not at `path`
  std::size_t rank = SIZE_MAX;          ///< of its first use in the trace

  const std::string& source() const { return made.empty() ? path : made; }
  std::vector<std::string> names() const {
    auto out = links;
    out.insert(out.begin(), path);
    return out;
  }

  // What examine() finds.
  FileStamp stamp;
  std::optional<ContentHash> hash;
  bool is_key = false;
  std::optional<Error> failure;
};

// A bundle is published: what is not for others, and what belongs to the machine, stays where it
// is. docs/formats/bundle.md has these lists.
using Patterns = std::span<const char* const>;
constexpr const char* kSecrets[] = {".netrc", "_netrc", ".git-credentials", ".pypirc", ".pgpass"};
/// Also files of these names: a submodule's .git.
constexpr const char* kSecretDirectories[] = {".git", ".ssh", ".gnupg", ".aws", ".docker", ".kube"};
constexpr const char* kKeyNames[] = {"*.pem", "*.key", "id_*"};
constexpr const char* kKeyStores[] = {"*.p12", "*.pfx", "*.jks", "*.kdbx"};
/// glibc's own libraries work only with each other, and with the machine's.
constexpr const char* kLibc[] = {"ld-linux*.so*",   "ld64.so*",          "libc.so.6",
                                 "libm.so.6",       "libmvec.so.1",      "libdl.so.2",
                                 "libpthread.so.0", "librt.so.1",        "libutil.so.1",
                                 "libanl.so.1",     "libresolv.so.2",    "libnsl.so.1",
                                 "libnss_*.so.2",   "libthread_db.so.1", "libBrokenLocale.so.1"};
/// Those that must be of the kernel driver's version.
constexpr const char* kGpuDrivers[] = {
    "libcuda.so*",    "libcudadebugger.so*", "libnvidia-*.so*",     "libnvcuvid.so*",
    "libnvoptix.so*", "lib*_nvidia.so*",     "libamdhip64.so*",     "libhsa-runtime64.so*",
    "libhsakmt.so*",  "libdrm_amdgpu.so*",   "libze_intel_gpu.so*", "libigdrcl.so*"};

bool matches(Patterns patterns, const std::string& name) {
  return std::ranges::any_of(patterns,
                             [&](const char* one) { return ::fnmatch(one, name.c_str(), 0) == 0; });
}

/// Why a file of this name and mode is left out; null: it is not.
const char* reason_to_leave_out(const std::string& path, std::uint32_t mode) {
  const auto name = path.substr(path.rfind('/') + 1);
  if ((mode & S_IROTH) == 0) return "others may not read them";
  if (matches(kSecrets, name)) return "they hold passwords";
  if (matches(kKeyStores, name)) return "they are private keys";
  if (matches(kLibc, name)) return "libc and its loader are the machine's";
  if (matches(kGpuDrivers, name)) return "GPU drivers are the machine's";
  for (const auto& part : std::filesystem::path(path))
    if (matches(kSecretDirectories, part.native())) return "they are .git or directories of keys";
  return nullptr;
}

bool is_private_key(std::string_view content, const File& file) {
  if (content.starts_with("\xef\xbb\xbf")) content.remove_prefix(3);  // a byte order mark
  const bool has_name = std::ranges::any_of(file.names(), [](const std::string& path) {
    return matches(kKeyNames, path.substr(path.rfind('/') + 1));
  });
  // A .pem file may begin with the certificate.
  const auto text = has_name ? content : content.substr(0, content.find('\n'));
  return (has_name || text.starts_with("-----BEGIN ")) &&
         text.find("PRIVATE KEY") != std::string_view::npos;
}

/// Compares the file with the map, and hashes it if `hashed`.
Result<void> examine(File& file, bool hashed) {
  const auto changed = [&] {
    return fail(Error::with_code(ESTALE, file.path, "cannot be packed",
                                 "it has changed since the map was built",
                                 "build the map again with fs-resolve build"));
  };
  const Fd fd = TRY(open_regular(file.source()));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) return fail_errno(file.path, "cannot stat");
  file.stamp = file_stamp(status);
  if (file.stamp.size != file.size) return changed();
  const bool is_same = file.stamp.mtime_ns == file.mtime_ns;
  if (!is_same && !file.mapped) return changed();  // copies of objects have other times
  if (file.size <= kMostKey) {
    std::string content(static_cast<std::size_t>(file.size), '\0');
    const ssize_t n = ::pread(fd.get(), content.data(), content.size(), 0);
    if (n < 0) return fail_errno(file.path, "cannot read");
    file.is_key = is_private_key(content, file);
  }
  if (is_same && file.mapped)
    file.hash = *file.mapped;
  else if (hashed || file.mapped)
    file.hash = TRY(hash_file(fd.get(), file.path));
  if (file.mapped && file.hash != *file.mapped) return changed();
  return {};
}

/// examine() of each file, in many threads.
void examine_all(std::vector<File*>& files) {
  std::map<std::uint64_t, std::size_t> sizes;
  for (const File* file : files) ++sizes[file->size];
  for_each_at_once(files.size(), [&](std::size_t i) {
    const auto done = examine(*files[i], sizes.at(files[i]->size) > 1);
    if (!done) files[i]->failure = done.error();
  });
}

/// The order in which a run opened files first.
class FirstUses : public trace::TraceSink {
 public:
  void begin_run(const trace::RunHeader&, int) override {}
  void event(const trace::Event& event) override {
    if (event.error != 0 || (event.op != trace::Op::open && event.op != trace::Op::exec)) return;
    for (const auto path : {event.path, event.resolved})
      if (!path.empty()) add(std::string(path));
  }
  void end_run(const trace::RunFooter&, trace::Ending) override {}

  /// After what was used before.
  void add(const std::string& path) { ranks_.try_emplace(path, ranks_.size()); }

  std::size_t rank(const std::string& path) const {
    const auto at = ranks_.find(path);
    return at == ranks_.end() ? SIZE_MAX : at->second;
  }

 private:
  std::unordered_map<std::string, std::size_t> ranks_;
};

/// Chooses the files of a map, and orders them.
class Packer {
 public:
  /// `uses`: null: there is no trace. `include`: as Command's.
  Packer(MapContent content, std::string map, const FirstUses* uses,
         const std::vector<std::string>& include)
      : content_(std::move(content)), uses_(uses) {
    input_.map = std::move(map);
    for (const auto& path : include) {
      auto whole = std::filesystem::absolute(path).lexically_normal().string();
      while (whole.size() > 1 && whole.ends_with('/')) whole.pop_back();
      included_.push_back(std::move(whole));
    }
    find_closed();
    add_compiled_python();
    add_objects();
    add_trees();
    if (!uses_) return;
    for (File& file : files_)
      for (const auto& name : file.names()) file.rank = std::min(file.rank, uses_->rank(name));
    for (const auto& [path, id] : content_.paths)  // the first files are the objects
      files_[id].rank = std::min(files_[id].rank, uses_->rank(path));
    for (File& file : files_)
      if (const auto at = compiled_.find(file.path); at != compiled_.end())
        file.rank = uses_->rank(source_of(at->first));
    std::ranges::stable_sort(files_, {}, &File::rank);
  }
  bool uses_any() const {
    return std::ranges::any_of(files_, [](const File& file) { return file.rank != SIZE_MAX; });
  }

  Result<BundleInput> pack() {
    warn_of_unknown();
    std::vector<File*> chosen;
    const auto mode_and_name = [this](const auto& path, auto mode) { return reason(path, mode); };
    for (File& file : files_)
      if (is_wanted(file) && !is_left_out(file, mode_and_name)) chosen.push_back(&file);
    examine_all(chosen);
    std::map<ContentHash, std::uint64_t> places;
    std::uint64_t end = 0;
    for (File* file : chosen) {
      if (file->failure) return fail(std::move(*file->failure));
      const auto* why = file->is_key ? "they are private keys" : nullptr;
      if (is_left_out(*file, [&](const auto&, auto) { return why; })) continue;
      ++packed_;
      *file->place = end;
      if (file->size == 0) continue;
      if (file->hash) {
        const auto [known, is_new] = places.try_emplace(*file->hash, end);
        *file->place = known->second;
        if (!is_new) continue;
      }
      input_.files.push_back({file->source(), file->stamp});
      end += file->size;
    }
    link_trees();
    return std::move(input_);
  }

  std::size_t packed() const { return packed_; }
  void say_left_out() const {
    for (const auto& [why, files] : left_out_)
      say(fmt::format("note: left out: {}{}: {}; --include packs them",
                      escape_for_terminal(files.second),
                      files.first == 1 ? "" : fmt::format(" and {} more", files.first - 1), why));
  }

 private:
  /// `dir/x.py` of `dir/__pycache__/x.TAG.pyc`.
  static std::string source_of(const std::string& compiled) {
    const std::filesystem::path path(compiled);
    return path.parent_path().parent_path() / (path.stem().stem().string() + ".py");
  }

  /// Directories of trees that others may not search. The tree's own may be a user's alone.
  void find_closed() {
    for (const MapTree& tree : content_.trees) {
      const auto index = value_or_throw(TreeIndex::of(tree.index));
      for (TreeNodeId id = 0; id < index.size(); ++id)
        if (const TreeNode node = index.node(id);
            S_ISDIR(node.mode) && (node.mode & S_IXOTH) == 0 && !index.path(id).empty())
          closed_.push_back(tree.path + "/" + index.path(id));
    }
  }
  /// reason_to_leave_out() of a file in its directories.
  const char* reason(const std::string& path, std::uint32_t mode) const {
    if (std::ranges::any_of(closed_, [&](const auto& each) { return is_at_or_below(path, each); }))
      return "others may not read them";
    return reason_to_leave_out(path, mode);
  }

  /// The map then is another one.
  void add_compiled_python() {
    // What is included is compiled if its directory is: else the compiled file would be left out.
    const auto compiles = [this](const std::string& path, std::uint32_t mode) {
      const auto compiled = directory_of(path) + "/__pycache__/";
      return is_wanted(path) && (!reason(path, mode) || is_included(compiled));
    };
    compiled_ = value_or_throw(compile_python(content_, compiles, temporary_.path()));
    if (compiled_.empty()) return;
    const auto map = temporary_.path() + "/map";
    value_or_throw(write_map(content_, map));
    input_.map = value_or_throw(read_file(map));
  }

  void add_objects() {
    input_.objects.assign(content_.objects.size(), kAtOrigin);
    for (ObjectId id = 0; id < content_.objects.size(); ++id) {
      const MapObject& object = content_.objects[id];
      files_.push_back({.path = object.path,
                        .size = object.stamp.size,
                        .mtime_ns = object.stamp.mtime_ns,
                        .mode = object.mode,
                        .mapped = &object.hash,
                        .always = object.is_elf,
                        .place = &input_.objects[id]});
    }
  }

  void add_trees() {
    for (const MapTree& tree : content_.trees) {
      const auto index = value_or_throw(TreeIndex::of(tree.index));
      input_.trees.emplace_back(index.size(), kAtOrigin);
    }
    for (std::size_t i = 0; i < content_.trees.size(); ++i) {
      const auto index = value_or_throw(TreeIndex::of(content_.trees[i].index));
      std::map<TreeNodeId, std::size_t> first_names;
      for (TreeNodeId id = 0; id < index.size(); ++id) {
        const TreeNode node = index.node(id);
        if (!S_ISREG(node.mode) || node.hole) continue;
        if (node.same_as != id) {  // the first of its names is before it
          files_[first_names.at(node.same_as)].links.push_back(content_.trees[i].path + "/" +
                                                               index.path(id));
          continue;
        }
        first_names[id] = files_.size();
        files_.push_back({.path = content_.trees[i].path + "/" + index.path(id),
                          .size = node.size,
                          .mtime_ns = node.mtime_ns,
                          .mode = node.mode,
                          .place = &input_.trees[i][id]});
        const auto made = compiled_.find(files_.back().path);
        if (made != compiled_.end()) files_.back().made = made->second;
      }
    }
  }

  /// Hard links are the file that they link to.
  void link_trees() {
    for (std::size_t i = 0; i < content_.trees.size(); ++i) {
      const auto index = value_or_throw(TreeIndex::of(content_.trees[i].index));
      for (TreeNodeId id = 0; id < index.size(); ++id)
        if (const auto first = index.node(id).same_as; first != id)
          input_.trees[i][id] = input_.trees[i][first];
    }
  }

  bool is_included(const std::string& file) const {
    return std::ranges::any_of(included_,
                               [&](const auto& path) { return is_at_or_below(file, path); });
  }
  bool is_wanted(const std::string& path) const {
    if (!uses_ || uses_->rank(path) != SIZE_MAX || is_included(path)) return true;
    return compiled_.contains(path);
  }
  bool is_wanted(const File& file) const {
    return file.always || std::ranges::any_of(file.names(), [this](const std::string& name) {
             return is_wanted(name);
           });
  }
  /// Whether there is a reason for one of its names, since its content is that of all of them.
  template <class ReasonOf>
  bool is_left_out(const File& file, ReasonOf reason_of) {
    for (const auto& name : file.names()) {
      const char* why = is_included(name) ? nullptr : reason_of(name, file.mode);
      if (!why) continue;
      auto& [count, first] = left_out_[why];
      if (count++ == 0) first = name;
      return true;
    }
    return false;
  }
  /// A mistyped --include would be missed on the nodes only.
  void warn_of_unknown() const {
    for (const auto& path : included_)
      if (std::ranges::none_of(files_, [&](const File& file) {
            return std::ranges::any_of(
                file.names(), [&](const std::string& name) { return is_at_or_below(name, path); });
          }))
        warn(Error(path, "names no file of the map", "",
                   "--include takes absolute paths as fs-resolve show and pack --list print them"));
  }

  const TempDir temporary_ = value_or_throw(TempDir::create("heddle-pack"));
  MapContent content_;
  const FirstUses* uses_;
  std::vector<std::string> included_, closed_;
  std::map<std::string, std::string> compiled_;  ///< compile_python()'s
  std::vector<File> files_;                      ///< the objects, then the trees; then sorted
  BundleInput input_;
  std::size_t packed_ = 0;
  std::map<std::string_view, std::pair<std::size_t, std::string>> left_out_;
};

/// Adds the files that a report says were taken from the originals. The worst that a hostile one
/// can name: files of the map that may be in a bundle.
void add_from_report(FirstUses& uses, const std::string& path) {
  constexpr std::size_t kMostReport = 64 << 20;
  const auto refuse = [&](const std::string& why) {
    return Error(path, "cannot be added", why,
                 "take a report that fs-gen --json wrote of a run with a bundle");
  };
  const Fd file = value_or_throw(open_regular(path));
  const auto report =
      Json::parse(value_or_throw(read_all(file.get(), path, kMostReport)), nullptr, false);
  if (!report.is_object()) throw refuse("it is not JSON");
  const auto paths = report.find("from_origin");
  if (paths == report.end() || !paths->is_array()) throw refuse("it has no from_origin");
  for (const auto& one : *paths)
    if (one.is_string()) uses.add(one.get<std::string>());
  const auto all = report.find("from_origin_files");
  if (all != report.end() && all->is_number_unsigned() && *all > paths->size())
    say(fmt::format("note: {}: has {} of {} files: those of a next run can be added then",
                    escape_for_terminal(path), paths->size(), all->get<std::uint64_t>()));
}

std::string in_mib(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / static_cast<double>(1 << 20));
}

/// A file that is in a bundle.
struct Packed {
  std::uint64_t place = 0;
  std::uint64_t size = 0;
  std::string path;
};

struct Listing {
  std::vector<Packed> packed;  ///< in the order of the stream
  std::size_t at_origin = 0;
};

Listing list_files(const BundleIndex& bundle, const MapContent& content) {
  Listing out;
  const auto add = [&](std::uint64_t place, std::uint64_t size, std::string path) {
    if (place == kAtOrigin)
      ++out.at_origin;
    else
      out.packed.push_back({place, size, std::move(path)});
  };
  for (ObjectId id = 0; id < content.objects.size(); ++id)
    add(bundle.objects[id], content.objects[id].stamp.size, content.objects[id].path);
  for (std::size_t i = 0; i < content.trees.size(); ++i) {
    const auto index = value_or_throw(TreeIndex::of(content.trees[i].index));
    for (TreeNodeId id = 0; id < index.size(); ++id)
      if (const TreeNode node = index.node(id); S_ISREG(node.mode) && !node.hole)
        add(bundle.trees[i][id], node.size, content.trees[i].path + "/" + index.path(id));
  }
  std::ranges::stable_sort(out.packed, {}, &Packed::place);
  return out;
}

MapReader open_bundle(const std::string& path) {
  auto reader = value_or_throw(MapReader::open(path));
  if (!reader.bundle())
    throw Error(path, "not a heddle bundle", "a map alone", "fs-resolve pack makes a bundle of it");
  return reader;
}

int list_bundle(const Command& command) {
  const auto reader = open_bundle(command.map);
  const auto listing = list_files(*reader.bundle(), value_or_throw(reader.read_all()));
  if (command.json) {
    Json out = {{"id", reader.id().hex()}, {"files", Json::array()}};
    for (const auto& file : listing.packed)
      out["files"].push_back({{"path", file.path}, {"size", file.size}, {"offset", file.place}});
    out["at_origin"] = listing.at_origin;
    print_json(std::move(out));
    return exit_done;
  }
  for (const auto& file : listing.packed)
    fmt::print("{:>12} {}\n", file.size, escape_for_terminal(file.path));
  if (listing.at_origin != 0) say(fmt::format("{} more at the origin", listing.at_origin));
  return exit_done;
}

}  // namespace

int run_pack(const Command& command) {
  if (command.list) return list_bundle(command);
  const auto reader = value_or_throw(MapReader::open(command.map));
  std::error_code missing;
  if (std::filesystem::equivalent(command.map, command.out, missing))
    throw Error(command.out, "is the map itself", "", "give -o another name");
  FirstUses uses;
  if (!command.trace.empty()) value_or_throw(trace::read_trace(command.trace, uses));
  if (!command.add.empty()) add_from_report(uses, command.add);
  clean_up_on_signals();
  Packer packer(value_or_throw(reader.read_all()), *reader.bytes(),
                command.trace.empty() ? nullptr : &uses, command.include);
  if (!command.trace.empty() && !packer.uses_any())
    warn(Error(command.trace, "opens no file of the map", "",
               "record the program as it runs without fs-gen"));
  auto input = packer.pack();
  if (!input && reader.bundle())
    throw Error(command.map, "the bundle cannot be packed again", input.error().message(),
                "pack the map that it was made from");
  const auto written = value_or_throw(write_bundle(value_or_throw(std::move(input)), command.out));
  packer.say_left_out();
  fmt::print("{}: {} files, {} in {}, id {}\n", escape_for_terminal(command.out), packer.packed(),
             in_mib(written.stream_size), in_mib(written.file_size), written.id.hex());
  return exit_done;
}

Json bundle_json(const BundleIndex& bundle) {
  std::uint64_t stored = 0;
  for (const auto& frame : bundle.frames) stored += frame.size;
  return {{"id", bundle.id.hex()},
          {"frames", bundle.frames.size()},
          {"bytes", bundle.stream_size},
          {"stored_bytes", stored}};
}

}  // namespace heddle
