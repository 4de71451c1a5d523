// SPDX-License-Identifier: MIT
#include "tests/search/plain_facts.hpp"

#include <sys/stat.h>

#include "base/elf_file.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "resolver/elf/loader_facts.hpp"

namespace heddle::test {

Result<ElfFacts> parse_elf(std::string_view content) {
  const FileBytes bytes(content);
  const ElfFile elf = TRY(ElfFile::read(bytes));
  return read_loader_facts(elf);
}

Result<FileFacts> PlainFacts::facts(const std::string& path, FactsDetail) {
  const Fd fd = TRY(root ? open_regular_in(root.get(), path) : open_regular(path));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return fail_errno(path, "cannot stat");
  const FileBytes bytes = file_bytes(fd.get());
  const ElfFile elf = TRY(ElfFile::read(bytes));
  FileFacts out{file_stamp(st), st.st_mode, {}, {}};
  out.elf = TRY(read_loader_facts(elf));
  return out;
}

}  // namespace heddle::test
