// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mount.h>

#include <cstdint>

#include "tests/support/prelude.hpp"

namespace heddle::test {

/// A directory served by tests/overlay/origin_fs.cpp, until the end.
class OriginFs {
 public:
  OriginFs(std::string source, std::string directory)
      : source_(std::move(source)), directory_(std::move(directory)) {
    std::filesystem::create_directories(source_);
    std::filesystem::create_directories(directory_);
    run_checked({std::getenv("HEDDLE_ORIGIN_FS"), source_, directory_});
  }
  OriginFs(const OriginFs&) = delete;
  OriginFs& operator=(const OriginFs&) = delete;
  ~OriginFs() {
    answer();
    ::umount2(directory_.c_str(), MNT_DETACH);
  }

  std::string operator/(const std::string& name) const { return directory_ + "/" + name; }
  const std::string& directory() const { return directory_; }
  const std::string& source() const { return source_; }
  /// From now on reads, or all requests, get no answer.
  void hang_reads() const { write_text_file(source_ + "/.hang", ""); }
  void hang() const { write_text_file(source_ + "/.hang-all", ""); }
  void answer() const {
    ::unlink((source_ + "/.hang").c_str());
    ::unlink((source_ + "/.hang-all").c_str());
  }
  /// Number of requests that were held.
  std::uint64_t held() const {
    std::error_code none;
    const auto size = std::filesystem::file_size(source_ + "/.held", none);
    return none ? 0 : size;
  }
  /// Ends the server: requests get ENOTCONN.
  void disconnect() const { ::umount2(directory_.c_str(), MNT_FORCE | MNT_DETACH); }
  /// Bytes read of each file, by its path below the directory.
  std::map<std::string, std::uint64_t> bytes_read() const {
    std::map<std::string, std::uint64_t> out;
    std::ifstream lines(source_ + "/.reads");
    std::uint64_t offset = 0, size = 0;
    for (std::string path; lines >> offset >> size >> path;) out[path] += size;
    return out;
  }

 private:
  std::string source_;
  std::string directory_;
};

}  // namespace heddle::test
