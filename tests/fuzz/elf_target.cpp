// SPDX-License-Identifier: MIT
//
// An ELF file as elf-worker reads it: headers, loader's facts, and symbols (by LIEF if built with
// it), which must not crash on a file that the loader's part accepts.
#include "compat/target.hpp"
#include "resolver/elf/loader_facts.hpp"
#include "resolver/elf/worker_protocol.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/search/tiny_elf.hpp"

namespace heddle::fuzz {

void run(std::string_view bytes) {
#ifdef HEDDLE_WITH_LIEF
  static const bool prepared = (prepare_lief(), true);
  (void)prepared;
#endif
  const BytesFile file(bytes);
  for (const auto detail : {FactsDetail::loader, FactsDetail::symbols}) {
    const auto read = read_elf(file.fd(), {bytes.size(), detail});
    if (read) check(is_sound(read->facts), "the pool refuses a worker's facts");
  }
  // Reading from memory and by the descriptor gives the same result.
  const FileBytes memory(bytes);
  const FileBytes opened(file.fd(), bytes.size());
  const auto one = ElfFile::read(memory);
  const auto other = ElfFile::read(opened);
  check(one.has_value() == other.has_value(), "the bytes depend on how they are read");
  if (one) (void)one->dynamic_entries();
  (void)compat::read_elf_notes(file.fd(), "");
}

std::vector<std::string> seeds() {
  test::TinyElf program;
  program.interp = "/lib64/ld-linux-x86-64.so.2";
  program.dependencies = {{Dependency::Kind::needed, "libx.so.1"},
                          {Dependency::Kind::auxiliary, "liba.so"}};
  program.runpath = "$ORIGIN/lib";
  test::TinyElf library;
  library.soname = "libx.so.1";
  library.rpath = "/opt/x";
  library.flags_1 = 0x800;
  return {program.bytes(), library.bytes()};
}

}  // namespace heddle::fuzz
