// SPDX-License-Identifier: MIT
#include "bench/guided.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "resolver/map/index_writer.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {

namespace fs = std::filesystem;

Command guided(const Stage& stage, const std::string& program, const std::string& index) {
  return {{program}, {"LD_AUDIT=" + stage.audit_library(), "HEDDLE_INDEX=" + index}};
}

void expect_guided(const Command& command, const std::string& directory) {
  auto env = command.env;
  env.push_back("LD_DEBUG=files");
  const auto words = test::run_checked(command.argv, {.env = env}).err;
  if (words.find("file=" + directory + "/") == std::string::npos)
    throw Error(command.argv[0], "runs unguided", "no library below " + directory);
}

void build_map(const Stage& stage, const std::string& map, const std::string& program) {
  test::run_checked({stage.program("fs-resolve"), "build", "-o", map, program});
}

void forget_pages(const std::string& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const auto file = value_or_throw(open_file(entry.path(), O_RDONLY));
    ::fdatasync(file.get());
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

Mount::Mount(const Stage& stage, const std::string& map, std::string directory,
             const std::string& program)
    : stage_(stage), directory_(std::move(directory)) {
  fs::create_directories(directory_);
  const auto server = program.empty() ? stage.program("fs-mount") : program;
  ready_ms_ = time_ms([&] { test::run_checked({server, map, directory_}); });
}

Mount::~Mount() {
  try {
    test::run_checked({stage_.program("fs-mount"), "-u", directory_});
    fs::remove(directory_);
  } catch (const std::exception&) {
    // The run's work directory is left then, and its removal reports it.
  }
}

double Mount::resident_mib() const {
  double sum = 0;
  for (const auto& process : fs::directory_iterator("/proc")) {
    const auto command = read_file(process.path() / "cmdline", 1 << 16);
    if (!command || command->find("fs-mount") == std::string::npos ||
        command->find(directory_) == std::string::npos)
      continue;
    std::ifstream status(process.path() / "status");
    for (std::string word; status >> word;)
      if (double kib = 0; word == "VmRSS:" && status >> kib) sum += kib / 1024;
  }
  return sum;
}

int Mount::worker() const {
  const auto text = value_or_throw(read_stats_text(directory_));
  return nlohmann::json::parse(text).at("worker_pid").get<int>();
}

std::string make_flat_directory(const std::string& map, const std::string& directory) {
  const auto content = value_or_throw(value_or_throw(MapReader::open(map)).read_all());
  std::map<ObjectId, fs::path> copies;
  for (const auto& [name, object] : content.views.at(0).names) {
    const auto target = fs::path(directory) / name;
    fs::create_directories(target.parent_path());
    // All names of one file stay one inode, as in the mount: ld.so tells files apart by it.
    if (const auto copy = copies.find(object); copy != copies.end())
      fs::create_hard_link(copy->second, target);
    else
      fs::copy_file(content.objects.at(object).path, target);
    copies.emplace(object, target);
  }
  IndexInput input{content, directory, {}, std::vector<bool>(content.objects.size(), false)};
  for (const auto& program : content.programs) {
    struct stat st {};
    const bool found = ::stat(program.path.c_str(), &st) == 0;
    input.programs.push_back(found ? std::optional(file_stamp(st)) : std::nullopt);
  }
  return test::write_text_file(directory + ".index", value_or_throw(make_index(input)));
}

}  // namespace heddle::bench
