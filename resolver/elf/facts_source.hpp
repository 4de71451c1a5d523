// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/content_hash.hpp"
#include "base/file_stamp.hpp"
#include "base/result.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle {

/// An ELF file's facts with the identity and content they were read from (one fstat and one read of
/// the same open file). The hash is that of the whole file.
struct FileFacts {
  FileStamp stamp;
  std::uint32_t mode = 0;  ///< st_mode
  ContentHash hash;
  ElfFacts elf;
};

/// Where facts come from: the worker pool with its cache in programs, a table in tests.
/// Not for concurrent use; each program owns one.
class FactsSource {
 public:
  virtual ~FactsSource() = default;
  /// Follows symbolic links. Failure is about this file alone: code() is the errno of open(2) or
  /// fstat(2), ENOEXEC for "not an ELF file", EBADMSG for a damaged one (the worker crashed, hung
  /// or refused it), EPROTO when no reader can be started at all (the file is not to blame); every
  /// message names the path.
  virtual Result<FileFacts> facts(const std::string& path, FactsDetail detail) = 0;
  /// Hint: these will be asked for soon. Starts reading them in parallel, returns at once, never
  /// fails.
  virtual void prefetch(const std::vector<std::string>& paths, FactsDetail detail) = 0;
};

}  // namespace heddle
