// SPDX-License-Identifier: MIT
#include "fsgen/lease_name.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "base/content_hash.hpp"
#include "base/child.hpp"
#include "fuseovl/keep/leftovers.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {
namespace {

Result<std::string> file_identity(const char* path) {
  struct stat st {};
  if (::stat(path, &st) != 0) return fail_errno(path, "cannot stat");
  return fmt::format("{}:{}", st.st_dev, st.st_ino);
}

}  // namespace

std::string without_task(const std::string& cgroup) {
  // Slurm gives each task of a step a group of its own below the step's: .../step_0/user/task_3
  // (cgroup v1: .../step_0/task_3). The step is what starts and is killed together.
  std::string out;
  std::istringstream lines(cgroup);
  for (std::string line; std::getline(lines, line);) {
    const auto task = line.rfind("/task_");
    if (task != std::string::npos &&
        line.find_first_not_of("0123456789", task + 6) == std::string::npos)
      line.resize(task);
    out += line + "\n";
  }
  return out;
}

Result<std::string> id_of_map(const std::string& path) {
  auto map = MapReader::open(path);
  if (!map) return fail(std::move(map.error()));
  return map->id().hex();
}

Result<std::string> lease_name(const LeaseRequest& request, const std::string& map_id) {
  auto program = own_program_dir();
  if (!program) return program;
  // The daemon opens the map's files where it was started: the run directory may be another mount
  // namespace's too.
  auto mounts = file_identity("/proc/self/ns/mnt");
  if (!mounts) return mounts;
  auto root = file_identity("/");
  if (!root) return root;
  // A job's end kills its processes by cgroup: its daemon must serve nobody else's.
  const auto cgroup = read_file("/proc/self/cgroup").value_or("");
  const char* tmp = std::getenv("TMPDIR");  // where its mount point stands
  std::string all;
  for (const std::string& part :
       {std::string(HEDDLE_VERSION), *program, *mounts, *root, without_task(cgroup),
        std::string(tmp ? tmp : ""), map_id, std::to_string(static_cast<int>(request.kind))})
    all += part + '\0';
  for (const auto& word : request.mount_options) all += word + '\0';
  return std::string(kLeasePrefix) + hash_bytes(all).hex();
}

}  // namespace heddle
