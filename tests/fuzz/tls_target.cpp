// SPDX-License-Identifier: MIT
//
// A library as the auditor reads it to add up static TLS, in every process of an unknown program.
#include <elf.h>

#include "fuseovl/audit/process.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/search/tiny_elf.hpp"

namespace heddle::fuzz {

void run(std::string_view bytes) {
  const BytesFile file(bytes);
  std::string preload = "LD_PRELOAD=" + file.path();
  // As the kernel puts them on the stack: the auxiliary vector is behind the environment.
  char* vectors[] = {preload.data(), nullptr, nullptr, nullptr};  // AT_NULL
  const audit::StartBlock start(0, vectors + 1, vectors);
  const auto need = audit::find_tls_need(start, 64);
  check(need.bytes < std::uint64_t{1} << 60, "sizes overflow");
}

std::vector<std::string> seeds() {
  test::TinyElf library;
  library.interp = "/lib64/ld-linux-x86-64.so.2";
  library.soname = "libx.so.1";
  library.dependencies = {{Dependency::Kind::needed, "libm.so.6"},
                          {Dependency::Kind::needed, "$ORIGIN/liby.so"}};
  library.runpath = "$ORIGIN/lib:/usr/lib:relative::/";
  std::vector<std::string> out = {library.bytes()};
  // The same with PT_TLS in the place of PT_INTERP.
  auto with_tls = out[0];
  Elf64_Ehdr header;
  std::memcpy(&header, with_tls.data(), sizeof(header));
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    auto* const at = with_tls.data() + header.e_phoff + i * sizeof(Elf64_Phdr);
    Elf64_Phdr segment;
    std::memcpy(&segment, at, sizeof(segment));
    if (segment.p_type != PT_INTERP) continue;
    segment.p_type = PT_TLS;
    segment.p_memsz = 65536;
    std::memcpy(at, &segment, sizeof(segment));
  }
  out.push_back(with_tls);
  return out;
}

}  // namespace heddle::fuzz
