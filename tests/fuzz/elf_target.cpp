// SPDX-License-Identifier: MIT
//
// An ELF file on its way through the worker: cut down to what the loader sees, which LIEF is then
// given. LIEF may crash on a whole damaged file, in its sandbox; on a reduced one it must not.
#include "compat/elf_notes.hpp"
#include "resolver/elf/facts_codec.hpp"
#include "resolver/elf/lief_reader.hpp"
#include "resolver/elf/read_elf.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/search/tiny_elf.hpp"

namespace heddle::fuzz {

void run(std::string_view bytes) {
  static const bool prepared = (prepare_lief(), true);
  (void)prepared;
  const BytesFile file(bytes);
  for (const auto detail : {FactsDetail::loader, FactsDetail::symbols}) {
    const auto read = read_elf(file.fd(), bytes.size(), detail, ParseMode::reduced_only);
    if (!read) continue;
    const auto facts = decode_facts(encode_facts(read->facts));
    check(facts && *facts == read->facts, "facts do not come through the socket as they are");
  }
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
