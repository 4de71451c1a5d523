// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/child.hpp"
#include "base/fd.hpp"

namespace heddle::test {

/// Requests to a SlowMount. Names of requests are FUSE's: LOOKUP, GETATTR, READLINK, OPEN, READ,
/// RELEASE, OPENDIR, READDIR, RELEASEDIR, STATFS.
struct SlowCounts {
  using Requests = std::map<std::string, std::uint64_t>;
  using Paths = std::map<std::string, Requests>;  ///< relative to the mount; its root is ""

  std::uint64_t total = 0;
  std::uint64_t most_in_flight = 0;
  Requests opcodes;
  Paths files;        ///< symbolic links too
  Paths directories;  ///< a LOOKUP counts for the name that it asks for
  Paths missing;

  static std::uint64_t sum(const Requests& requests) {
    std::uint64_t out = 0;
    for (const auto& [opcode, count] : requests) out += count;
    return out;
  }
  /// The largest number of requests for one path of `paths`, and that path.
  static std::pair<std::uint64_t, std::string> most(const Paths& paths) {
    std::pair<std::uint64_t, std::string> out;
    for (const auto& [path, requests] : paths) out = std::max(out, {sum(requests), path});
    return out;
  }
};

struct SlowOptions {
  int delay_us = 200;
  const char* preset = "none";
  bool copper = false;
  bool image = false;   ///< as of squashfuse: mtime is ctime too
  int attributes = -1;  ///< seconds that a file's attributes stay known; -1: the preset's
};

/// A directory served by bench/slowfs (-DHEDDLE_SLOW_FS, its path), until the end.
class SlowMount {
 public:
  /// Serves `source` at `directory`, which may be the same. `counts` is a file of its own outside
  /// of both. Throws heddle::Error.
  SlowMount(const std::string& source, std::string directory, std::string counts,
            const SlowOptions& options = {})
      : directory_(std::move(directory)), counts_(std::move(counts)), server_(-1) {
    std::filesystem::create_directories(directory_);
    std::filesystem::remove(counts_);
    std::vector<std::string> argv = {HEDDLE_SLOW_FS,
                                     source,
                                     directory_,
                                     "--preset",
                                     options.preset,
                                     "--delay-us",
                                     std::to_string(options.delay_us),
                                     "--counts",
                                     counts_};
    if (options.attributes >= 0)
      argv.insert(argv.end(), {"--attributes", std::to_string(options.attributes)});
    if (options.copper) argv.emplace_back("--copper");
    if (options.image) argv.emplace_back("--image");
    server_ = value_or_throw(spawn(argv[0], argv));
    (void)next_counts(0);
  }
  SlowMount(const SlowMount&) = delete;
  SlowMount& operator=(const SlowMount&) = delete;
  ~SlowMount() { stop(); }

  std::string operator/(const std::string& name) const { return directory_ + "/" + name; }
  const std::string& directory() const { return directory_; }

  /// Since the start or the last reset(). Throws heddle::Error.
  SlowCounts counts() { return next_counts(SIGUSR1); }
  /// As counts(), and starts again at zero.
  SlowCounts reset() { return next_counts(SIGUSR2); }

  /// Ends the server, also when the mount is in use: what uses it gets ENOTCONN then.
  void stop() {
    if (server_.pid() < 0) return;
    ::kill(server_.pid(), SIGTERM);
    const auto ended = server_.wait_for(std::chrono::seconds(5));
    if (!ended || !*ended) ::umount2(directory_.c_str(), MNT_DETACH);
    server_ = Child(-1);
  }

 private:
  SlowCounts next_counts(int signal) {
    if (signal != 0) {
      std::filesystem::remove(counts_);
      ::kill(server_.pid(), signal);
    }
    for (int tries = 0; !std::filesystem::exists(counts_); ++tries) {
      if (tries == 5000 || value_or_throw(server_.wait_for(std::chrono::milliseconds(2))))
        throw Error(directory_, "heddle-slowfs does not answer");
    }
    const auto json = nlohmann::json::parse(value_or_throw(read_file(counts_)));
    SlowCounts out;
    json.at("total").get_to(out.total);
    json.at("most_in_flight").get_to(out.most_in_flight);
    json.at("opcodes").get_to(out.opcodes);
    json.at("files").get_to(out.files);
    json.at("directories").get_to(out.directories);
    json.at("missing").get_to(out.missing);
    return out;
  }

  std::string directory_;
  std::string counts_;
  Child server_;
};

}  // namespace heddle::test
