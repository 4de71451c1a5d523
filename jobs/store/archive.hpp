// SPDX-License-Identifier: MIT
#pragma once

// Reads the archives of docs/formats/job-archive.md. A user who can hand an archive to submit
// chooses every byte of it: it is read by a tar reader with limits, names in it are compared and
// never used as paths, and the worst is a row of nonsense in the jobs of the user who submits it.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::jobs::store {

using Json = nlohmann::ordered_json;
using Count = std::optional<std::int64_t>;

/// job.json.
struct Metadata {
  std::string cluster, jobid, host, user, jobname, workdir;
  Count job_start, exitcode, exitsignal, ranks;
  std::int64_t restart = 0, start = 0, stop = 0;
  std::vector<std::string> hosts;
  Json tags = Json::object(), annotations = tags, environment = tags, cgroup = tags;
  Json all = Json::object();  ///< the whole
};

/// One program that a process executed. Texts are escaped as in the archive, and views into it.
struct Process {
  std::string_view tags, exename, path, args, marks, container, ended_by;
  Count exitcode, exitsignal, finish, libraries, failed_lookups;
  std::int64_t pid = 0, generation = 0, ppid = 0, pgid = 0, sid = 0, numtids = 1, start = 0;
  std::size_t first_value = 0;  ///< in Archive::values
  std::size_t threads = 0;      ///< in the array
  // Derived:
  std::int64_t parent = -1, depth = 0, cpu_time = 0, inclusive_cpu_time = 0;
};

struct Library {
  std::int64_t set = 0;
  std::string_view name, path;
  Count failed, size;
};

struct Archive {
  Metadata metadata;
  std::string hash;                ///< of the content, so that packing it again changes nothing
  std::vector<std::string> keys;   ///< of one thread
  std::vector<Count> values;       ///< of all threads of all processes
  std::vector<Process> processes;  ///< by start
  std::vector<Library> libraries;
  std::string process_text, library_text;  ///< what the views look into

  /// The value of `key` of a thread.
  Count value(const Process& process, std::size_t thread, std::size_t key) const {
    return values[process.first_value + thread * keys.size() + key];
  }
};

/// All of the archive at `path`, a .tar.gz, .tgz, .tar or a directory that one was unpacked into.
/// Throws Error with what is wrong with it.
Archive read_archive(const std::string& path);

/// The archives in `path`, if it is a directory that is none itself; else `path`. Throws Error if
/// it has none.
std::vector<std::string> archives_of(const std::string& path);

/// Only its metadata.
Metadata read_metadata(const std::string& path);
/// Replaces the metadata of the archive or directory at `path` in one step.
void replace_metadata(const std::string& path, const Json& metadata);

/// The process tree, and the CPU time of each process with its descendants.
void build_tree(std::vector<Process>& processes);

/// A list in its written form (`a\x20b c`) as its elements.
std::vector<std::string> split_list(std::string_view list);

}  // namespace heddle::jobs::store
