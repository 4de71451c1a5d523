// SPDX-License-Identifier: MIT
// Compares the facts of this machine's files with GNU readelf.
#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>

#include "resolver/elf/loader_facts.hpp"
#include "tests/elf/elf_fixture.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// A fixed selection of the system's ELF files; HEDDLE_ALL_FILES=1: all of them.
std::vector<std::string> system_files(std::size_t count, std::uintmax_t max_size) {
  std::vector<std::string> files;
  for (const char* dir : {"/usr/lib", "/usr/bin", "/usr/libexec"}) {
    std::error_code error;
    for (auto it = fs::recursive_directory_iterator(
             dir, fs::directory_options::skip_permission_denied, error);
         it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (error || !it->is_regular_file(error) || it->is_symlink(error)) continue;
      if (it->file_size(error) > max_size || it->path().extension() == ".o") continue;
      char magic[4] = {};
      std::ifstream(it->path(), std::ios::binary).read(magic, 4);
      if (std::string_view(magic, 4) ==
          "\x7f"
          "ELF")
        files.push_back(it->path());
    }
  }
  std::sort(files.begin(), files.end());
  if (std::getenv("HEDDLE_ALL_FILES") != nullptr) return files;
  std::shuffle(files.begin(), files.end(), std::mt19937(1));  // NOLINT: the same every time
  if (files.size() > count) files.resize(count);
  return files;
}

/// The text between `before` and `after` in `line`.
std::optional<std::string> between(const std::string& line, std::string_view before,
                                   std::string_view after) {
  const auto start = line.find(before);
  if (start == std::string::npos) return std::nullopt;
  const auto from = start + before.size();
  const auto end = line.find(after, from);
  return line.substr(from, end == std::string::npos ? end : end - from);
}

/// A line of `readelf --dyn-syms`: number, value, size, type, binding, visibility, index, name.
/// `copies`: those of which the program has a copy, as readelf spells them.
void add_symbol(const std::string& line, const std::set<std::string>& copies, ElfFacts& facts) {
  std::istringstream words(line);
  std::string skipped, binding, visibility, index, name;
  for (int i = 0; i < 4; ++i) words >> skipped;
  words >> binding;
  // GNU's unique binding, in a file that does not say in its header that it is GNU's.
  if (binding == "<OS") words >> skipped >> binding;  // "<OS specific>: 10"
  words >> visibility >> index >> name;
  if (name.empty() ||
      (binding != "GLOBAL" && binding != "WEAK" && binding != "UNIQUE" && binding != "10"))
    return;
  if (copies.contains(name)) index = "UND";
  const auto at = name.find('@');
  DynamicSymbol symbol{name.substr(0, at), "", binding == "WEAK"};
  if (at != name.npos) symbol.version = name.substr(name.find_first_not_of('@', at));
  // readelf omits the version of a symbol that names a version.
  if (index == "ABS" && at == name.npos) symbol.version = name;  // see by_readelf()
  if (index != "UND") {
    if (visibility == "DEFAULT" || visibility == "PROTECTED")
      facts.exported_symbols.push_back(symbol);
    return;
  }
  facts.imports_dladdr |= symbol.name == "dladdr" || symbol.name == "dladdr1";
  facts.imports_dlopen |= symbol.name == "dlopen" || symbol.name == "dlmopen";
  facts.undefined_symbols.push_back(symbol);
}

/// The facts that readelf prints; the other flags are copied from `ours`.
ElfFacts by_readelf(const std::string& file, const ElfFacts& ours) {
  ElfFacts facts;
  // The header's numbers: readelf prints names.
  const auto header = value_or_throw(read_file(file)).substr(0, sizeof(Elf64_Ehdr));
  facts.elf_class = static_cast<std::uint8_t>(header[EI_CLASS]);
  facts.data_encoding = static_cast<std::uint8_t>(header[EI_DATA]);
  facts.os_abi = static_cast<std::uint8_t>(header[EI_OSABI]);
  facts.abi_version = static_cast<std::uint8_t>(header[EI_ABIVERSION]);
  std::memcpy(&facts.type, &header[16], 2);
  std::memcpy(&facts.machine, &header[18], 2);
  std::istringstream text(
      test::run_checked({"readelf", "-W", "-l", "-d", "-V", "-n", "--dyn-syms", file}).out);
  std::set<std::string> copies;
  std::istringstream relocations(test::run_checked({"readelf", "-W", "-r", file}).out);
  for (std::string line; std::getline(relocations, line);)
    if (const auto name = between(line, "_COPY", " + "); name && facts.elf_class == ELFCLASS64)
      copies.insert(name->substr(name->rfind(' ') + 1));
  std::string from;
  bool base = false;
  for (std::string line; std::getline(text, line);) {
    const auto has = [&](const char* word) { return line.find(word) != line.npos; };
    if (auto name = between(line, "[Requesting program interpreter: ", "]")) facts.interp = *name;
    std::istringstream words(line);
    std::string type, size, align;
    words >> type;
    if (type == "TLS" || type == "DYNAMIC") {
      for (int i = 0; i < 4; ++i) words >> size;  // offset, two addresses, size in the file
      // Files of debug information have an empty one, which ld.so ignores.
      if (type == "DYNAMIC") facts.dynamic = std::stoull(size, nullptr, 16) > 0;
      words >> size;
      while (words >> align) {
      }
      if (type == "TLS")
        facts.tls = TlsSegment{std::stoull(size, nullptr, 16), std::stoull(align, nullptr, 16)};
    }
    const auto value = between(line, "[", "]");
    const auto tag = between(line, "(", ")");
    if (tag == "NEEDED")
      facts.dependencies.push_back({Dependency::Kind::needed, value.value_or("?")});
    if (tag == "AUXILIARY")
      facts.dependencies.push_back({Dependency::Kind::auxiliary, value.value_or("?")});
    if (tag == "SONAME") facts.soname = value;
    if (tag == "RPATH") facts.rpath = value;
    if (tag == "RUNPATH") facts.runpath = value;
    if (tag == "FLAGS" && has("STATIC_TLS")) facts.flags |= DF_STATIC_TLS;
    if (tag == "FLAGS_1" && has("NODEFLIB")) facts.flags_1 |= DF_1_NODEFLIB;
    if (auto name = between(line, "File: ", "  ")) from = *name;
    if (has("Rev: ")) base = has("Flags: BASE");
    const auto name = between(line, "Name: ", "  ");
    if (name && has("Version: "))
      facts.version_needs.push_back({from, *name, has("Flags: WEAK")});
    else if (name && has("Rev: ") && !base)
      facts.version_definitions.push_back(*name);
    if (auto id = between(line, "Build ID: ", "\n")) facts.build_id = *id;
    add_symbol(line, copies, facts);
  }
  for (auto& symbol : facts.exported_symbols)
    if (symbol.version == symbol.name &&
        std::ranges::count(facts.version_definitions, symbol.name) == 0)
      symbol.version.clear();  // absolute, but no name of a version
  facts.flags |= ours.flags & ~std::uint64_t{DF_STATIC_TLS};
  facts.flags_1 |= ours.flags_1 & ~std::uint64_t{DF_1_NODEFLIB};
  return facts;
}

ElfFacts read_without_lief(const std::string& file) {
  const Fd fd = value_or_throw(open_file(file, O_RDONLY));
  const auto bytes = file_bytes(fd.get());
  const auto elf = value_or_throw(ElfFile::read(bytes));
  SymbolTable symbols;
  auto facts = value_or_throw(read_loader_facts(elf, &symbols));
  value_or_throw(read_symbols(elf, symbols, facts));
  return facts;
}

class Facts : public ElfTest {};

TEST_F(Facts, equal_the_output_of_readelf) {
  auto files = system_files(30, std::uintmax_t{1} << 21);
  for (const char* special : {"/usr/bin/python3", "/usr/lib/x86_64-linux-gnu/libmpi.so.40",
                              "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2",
                              "/usr/lib/x86_64-linux-gnu/libmpich.so.12"})
    if (fs::exists(special)) files.emplace_back(special);
  CachedFacts source(options());
  source.prefetch(files, FactsDetail::symbols);
  for (const auto& file : files) {
    auto ours = value_or_throw(source.facts(file, FactsDetail::symbols)).elf;
    const auto theirs = by_readelf(file, ours);
    EXPECT_EQ(ours.dependencies, theirs.dependencies) << file;
    EXPECT_EQ(ours.version_needs, theirs.version_needs) << file;
    EXPECT_EQ(ours.exported_symbols, theirs.exported_symbols) << file;
    EXPECT_TRUE(ours == theirs) << file;
    EXPECT_TRUE(read_without_lief(file) == ours) << file;
    ours.exported_symbols.clear();
    ours.undefined_symbols.clear();
    EXPECT_EQ(value_or_throw(source.facts(file, FactsDetail::loader)).elf, ours) << file;
  }
  EXPECT_EQ(source.counters().crashed, 0U);
}

}  // namespace
}  // namespace heddle
