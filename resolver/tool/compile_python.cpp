// SPDX-License-Identifier: MIT
#include "resolver/tool/compile_python.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/run_program.hpp"
#include "base/task_pool.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "resolver/map/tree_index.hpp"

namespace heddle {
namespace {

using Entry = TreeIndexWriter::Entry;

/// Compiles each of `list` whose number is `sys.argv[2]` modulo `sys.argv[3]`. A file that does not
/// compile, such as one of another Python version, is left as it is.
constexpr const char* kScript = R"(
import os, py_compile, sys
directory, first, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(directory + '/list', 'rb') as paths:
    jobs = list(enumerate(paths.read().split(b'\0')[:-1]))
for number, path in jobs[first::step]:
    try:
        py_compile.compile(os.fsdecode(path), f'{directory}/{number}.pyc', doraise=True, quiet=2,
                           invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    except Exception:
        pass
)";

/// A file takes milliseconds.
constexpr std::chrono::seconds kStartTime{60};
constexpr std::chrono::milliseconds kFileTime{200};
constexpr std::size_t kMostProcesses = 16;

/// A Python file without its compiled form, or with one that Python does not take.
struct Source {
  std::string path;
  std::size_t tree = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t size = 0;
  bool has_compiled = false;  ///< in the tree
};

/// What names and marks the compiled files of an interpreter.
struct PycFormat {
  std::string tag;    ///< as in x.TAG.pyc
  std::string magic;  ///< the first four bytes, in hexadecimal; empty: unknown
};

/// The map's own interpreter; empty: none that may be run. A user who may change it, or what it
/// reads even when it is isolated (pyvenv.cfg, its library), would run programs as the packer: so
/// none of the directories on the way to its file without links may be another user's, nor its
/// library.
std::string interpreter_of(const MapContent& content) {
  const auto is_python = [](const std::string& path) {
    return path.substr(path.rfind('/') + 1).starts_with("python");
  };
  for (const auto& program : content.programs) {
    std::error_code failed;
    const auto path = std::filesystem::canonical(program.path, failed);
    if (!is_python(program.path) || failed || !is_python(path.string())) continue;
    auto trusted = check_trusted_file(path.string());
    const auto prefix = path.parent_path().parent_path();
    const auto has = [&](const char* lib) {
      return std::filesystem::exists(prefix / lib / path.filename(), failed);
    };
    for (const char* lib : {"lib", "lib64"})
      if (trusted && (has(lib) || !has("lib64")))
        trusted = check_trusted_directory((prefix / lib / path.filename()).string());
    if (trusted) return path.string();
    warn(Error(path.string(), "compiles no Python files", trusted.error().message()));
  }
  return {};
}

/// What it prints. Isolated: it reads no variables, and nothing of the working directory or of
/// site-packages. ETIMEDOUT: not within `limit`.
Result<std::string> run_python(const std::string& python, const std::vector<std::string>& words,
                               std::chrono::milliseconds limit) {
  std::vector<std::string> argv = {python, "-I", "-S", "-c"};
  argv.insert(argv.end(), words.begin(), words.end());
  auto done = TRY(run_and_read(python, argv, {.limit = limit}));
  if (done.status != 0)
    return fail(python, "cannot compile", "exit status " + std::to_string(done.status));
  return std::move(done.out);
}

/// `x.TAG.pyc` of `x.py`.
std::string compiled_name(std::string_view source, const std::string& tag) {
  return std::string(source.substr(0, source.size() - 2)) + tag + ".pyc";
}

/// `dir/__pycache__/x.TAG.pyc` of `dir/x.py`.
std::string compiled_path(const std::string& source, const std::string& tag) {
  const auto slash = source.rfind('/') + 1;
  return source.substr(0, slash) + "__pycache__/" + compiled_name(source.substr(slash), tag);
}

/// Whether Python would compile `source` again although it has a compiled form: what copied or
/// checked out the files has given them other times (CPython, importlib/_bootstrap_external.py,
/// _classify_pyc() and _validate_timestamp_pyc()). Not of a file that cannot be read, nor of one
/// with a hash of the source in place of its time. The worst that a hostile file's header can
/// have: its source is compiled, or not.
bool is_stale(const Source& source, const PycFormat& format) {
  const auto file = open_regular(compiled_path(source.path, format.tag));
  std::array<std::uint8_t, 16> header;
  if (!file || format.magic.empty()) return false;
  const auto got = ::pread(file->get(), header.data(), header.size(), 0);
  if (got != static_cast<ssize_t>(header.size())) return got >= 0;
  const auto number = [&](std::size_t at) {  // little-endian
    return header[at] | std::uint32_t{header[at + 1]} << 8 | std::uint32_t{header[at + 2]} << 16 |
           std::uint32_t{header[at + 3]} << 24;
  };
  if (fmt::format("{:02x}", fmt::join(header.begin(), header.begin() + 4, "")) != format.magic)
    return true;
  constexpr std::uint32_t kHashBased = 1;
  if (number(4) == kHashBased || number(4) == (kHashBased | 2)) return false;
  return number(4) != 0 ||
         number(8) != static_cast<std::uint32_t>(source.mtime_ns / 1'000'000'000) ||
         number(12) != static_cast<std::uint32_t>(source.size);
}

std::vector<Source> find_sources(const MapContent& content, const PycFormat& format,
                                 const IsWanted& is_wanted) {
  std::vector<Source> out;
  for (std::size_t i = 0; i < content.trees.size(); ++i) {
    const auto index = value_or_throw(TreeIndex::of(content.trees[i].index));
    for (TreeNodeId id = 0; id < index.size(); ++id) {
      const TreeNode node = index.node(id);
      if (!S_ISREG(node.mode) || node.hole || !node.name.ends_with(".py")) continue;
      const auto cache = index.find(node.parent, "__pycache__");
      if (cache && (index.node(*cache).hole || !S_ISDIR(index.node(*cache).mode))) continue;
      const auto compiled =
          cache ? index.find(*cache, compiled_name(node.name, format.tag)) : std::nullopt;
      if (compiled && !S_ISREG(index.node(*compiled).mode)) continue;
      auto path = content.trees[i].path + "/" + index.path(id);
      if (is_wanted(path, node.mode))
        out.push_back({std::move(path), i, node.mtime_ns, node.size, compiled.has_value()});
    }
  }
  for_each_at_once(out.size(), [&](std::size_t i) {
    if (out[i].has_compiled && !is_stale(out[i], format)) out[i].path.clear();
  });
  std::erase_if(out, [](const Source& source) { return source.path.empty(); });
  return out;
}

Entry entry_of(const TreeIndex& index, TreeNodeId id) {
  const TreeNode node = index.node(id);
  Entry out{.name = std::string(node.name),
            .mode = node.mode,
            .uid = node.uid,
            .gid = node.gid,
            .links = node.links,
            .size = node.size,
            .mtime_ns = node.mtime_ns,
            .ctime_ns = node.ctime_ns,
            .hole = node.hole,
            .target = std::string(node.target),
            .ino = node.same_as,
            .children = {}};
  for (TreeNodeId i = 0; i < node.child_count; ++i)
    out.children.push_back(entry_of(index, node.first_child + i));
  return out;
}

Entry* child_of(Entry& directory, std::string_view name) {
  const auto at = std::ranges::find(directory.children, name, &Entry::name);
  return at == directory.children.end() ? nullptr : &*at;
}

/// Adds the compiled form of the file at `path`, which is relative to `root`, in place of an older
/// one.
void add_compiled(Entry& root, std::string_view path, const std::string& tag, std::uint64_t size) {
  Entry* directory = &root;
  for (auto slash = path.find('/'); slash != path.npos; slash = path.find('/')) {
    directory = child_of(*directory, path.substr(0, slash));
    path.remove_prefix(slash + 1);
  }
  Entry made = *child_of(*directory, path);
  made.name = compiled_name(path, tag);
  made.mode = static_cast<std::uint16_t>(S_IFREG | (made.mode & 0666));
  made.links = 1;
  made.size = size;
  Entry* cache = child_of(*directory, "__pycache__");
  if (!cache) {
    Entry fresh = *directory;
    fresh.name = "__pycache__";
    fresh.children.clear();
    fresh.links = 2;
    ++directory->links;
    cache = &directory->children.emplace_back(std::move(fresh));
  }
  if (Entry* stale = child_of(*cache, made.name))
    *stale = std::move(made);
  else
    cache->children.push_back(std::move(made));
}

}  // namespace

Result<std::map<std::string, std::string>> compile_python(MapContent& content,
                                                          const IsWanted& is_wanted,
                                                          const std::string& directory) {
  std::map<std::string, std::string> out;
  const auto python = content.trees.empty() ? std::string() : interpreter_of(content);
  if (python.empty()) return out;
  // Another architecture's, Python 2, ...: the bundle is right without.
  auto printed =
      run_python(python,
                 {"import sys, importlib.util\n"
                  "print(sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER.hex())"},
                 kStartTime);
  if (!printed) {
    warn(printed.error());
    return out;
  }
  PycFormat format;
  std::istringstream(*printed) >> format.tag >> format.magic;
  const auto& tag = format.tag;
  if (tag.empty() || tag == "None" || tag.find('/') != tag.npos) return out;
  const auto sources = find_sources(content, format, is_wanted);
  if (sources.empty()) return out;
  std::string list;
  for (const auto& source : sources) list.append(source.path).push_back('\0');
  TRY(write_output(directory + "/list", list));
  const auto processes = std::min<std::size_t>(
      {std::thread::hardware_concurrency() + 1U, kMostProcesses, sources.size()});
  for_each_at_once(processes, [&](std::size_t i) {
    const auto done =
        run_python(python, {kScript, directory, std::to_string(i), std::to_string(processes)},
                   kStartTime + kFileTime * (sources.size() / processes + 1));
    if (!done) warn(done.error());
  });
  std::vector<std::optional<Entry>> roots(content.trees.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& [path, tree, mtime_ns, size, has_compiled] = sources[i];
    const auto made = directory + "/" + std::to_string(i) + ".pyc";
    struct stat status {};
    if (::stat(made.c_str(), &status) != 0) continue;
    constexpr std::int64_t kSecond = 1'000'000'000;
    const auto part = (mtime_ns % kSecond + kSecond) % kSecond;  // not negative before 1970
    const timespec time{(mtime_ns - part) / kSecond, part};
    const timespec times[] = {time, time};
    if (::utimensat(AT_FDCWD, made.c_str(), times, 0) != 0) {
      warn(Error::from_errno(path, "is not compiled: its time cannot be set", errno));
      continue;
    }
    if (!roots[tree])
      roots[tree] = entry_of(value_or_throw(TreeIndex::of(content.trees[tree].index)), kTreeRoot);
    add_compiled(*roots[tree], std::string_view(path).substr(content.trees[tree].path.size() + 1),
                 tag, static_cast<std::uint64_t>(status.st_size));
    out[compiled_path(path, tag)] = made;
  }
  for (std::size_t tree = 0; tree < roots.size(); ++tree)
    if (roots[tree])
      content.trees[tree].index = TRY(TreeIndexWriter::encode(std::move(*roots[tree])));
  return out;
}

}  // namespace heddle
