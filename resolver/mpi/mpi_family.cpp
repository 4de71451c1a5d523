// SPDX-License-Identifier: MIT
#include "resolver/mpi/mpi_family.hpp"

#include <algorithm>
#include <functional>

namespace heddle {
namespace {

/// As bytes.find(), which in machine code stops at most instructions (memchr() for the first
/// letter); this skips a word's length at a time.
std::size_t find_word(std::string_view bytes, std::string_view word, std::size_t from = 0) {
  if (from >= bytes.size()) return bytes.npos;
  const auto* begin = bytes.data() + from;
  const auto* end = bytes.data() + bytes.size();
  const auto* at =
      std::search(begin, end, std::boyer_moore_horspool_searcher(word.begin(), word.end()));
  return at == end ? bytes.npos : static_cast<std::size_t>(at - bytes.data());
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// "4.0.2", "4.1.4rc1", "2021.10" at the start of `text`; empty: none.
std::string_view version_at(std::string_view text) {
  std::size_t end = 0;
  std::size_t dots = 0;
  while (end < text.size() && (is_digit(text[end]) || (text[end] == '.' && end > 0))) {
    dots += text[end] == '.';
    ++end;
  }
  if (dots == 0 || text[end - 1] == '.') return {};
  while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0)) ++end;
  return text.substr(0, end);
}

/// The version of the first string of the file after `from` that is exactly `prefix` and a version.
std::string lone_version(std::string_view bytes, std::size_t from, std::string_view prefix) {
  const std::string start = std::string(1, '\0') + std::string(prefix);
  for (auto at = bytes.find(start, from); at != bytes.npos; at = bytes.find(start, at + 1)) {
    const auto text = bytes.substr(at + start.size(), 40);
    const auto version = version_at(text);
    if (!version.empty() && version.size() < text.size() && text[version.size()] == '\0')
      return std::string(version);
  }
  return {};
}

/// "2019.6" of "2019 Update 6", Intel's form up to 2019. Empty: no year.
std::string year_at(std::string_view text) {
  constexpr std::string_view kUpdate = " Update ";
  if (text.size() < 4 || !std::all_of(text.begin(), text.begin() + 4, is_digit)) return {};
  std::string out(text.substr(0, 4));
  text.remove_prefix(4);
  if (!text.starts_with(kUpdate)) return text.starts_with(' ') ? out : "";
  text.remove_prefix(kUpdate.size());
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  return end == text.begin() ? out : out + "." + std::string(text.begin(), end);
}

/// The version that follows `words` in the same string, a few words later at most.
std::string version_behind(std::string_view bytes, std::string_view words) {
  for (auto at = find_word(bytes, words); at != bytes.npos; at = find_word(bytes, words, at + 1)) {
    auto text = bytes.substr(at + words.size(), 80);
    text = text.substr(0, text.find('\0'));
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto version = is_digit(text[i]) ? version_at(text.substr(i)) : std::string_view();
      if (!version.empty()) return std::string(version);
      if (auto year = is_digit(text[i]) ? year_at(text.substr(i)) : ""; !year.empty()) return year;
    }
  }
  return {};
}

/// Cray MPICH has a library for each compiler and its version: libmpi_gnu_112.so.12,
/// libmpi_cray.so.12.
bool is_cray_name(std::string_view soname, std::string_view major) {
  constexpr std::string_view kPrefix = "libmpi_";
  const auto dot = soname.find(".so.");
  if (dot == soname.npos || soname.substr(dot + 4) != major || !soname.starts_with(kPrefix))
    return false;
  auto compiler = soname.substr(kPrefix.size(), dot - kPrefix.size());
  if (const auto version = compiler.find('_'); version != compiler.npos) {
    const auto digits = compiler.substr(version + 1);
    if (digits.empty() || !std::ranges::all_of(digits, is_digit)) return false;
    compiler = compiler.substr(0, version);
  }
  constexpr std::string_view kCompilers[] = {"amd", "aocc",  "cray",   "crayclang",
                                             "gnu", "intel", "nvidia", "pgi"};
  return std::ranges::find(kCompilers, compiler) != std::end(kCompilers);
}

struct Family {
  const char* name;
  const char* title;
  const char* words = nullptr;  ///< for a library of MPICH's ABI: the text before its version
};
constexpr Family kFamilies[] = {{"openmpi", "Open MPI"},
                                {"mpich", "MPICH"},
                                {"intel", "Intel MPI", "Intel(R) MPI Library"},
                                {"cray", "Cray MPICH", "CRAY MPICH version"},
                                {"mvapich", "MVAPICH", "MVAPICH2 Version"},
                                {"mvapich", "MVAPICH", "MVAPICH Version"},
                                {"mpi-abi", "an MPI of the standard ABI"}};

std::string major_of(std::string_view soname) {
  const auto at = soname.rfind(".so.");
  if (at == soname.npos) return {};
  const auto rest = soname.substr(at + 4);
  return std::string(rest.substr(0, rest.find('.')));
}

}  // namespace

MpiIdentity identify_mpi(const ElfFacts& facts, std::string_view bytes) {
  const auto exports = [&](std::string_view name) {
    return std::ranges::find(facts.exported_symbols, name, &DynamicSymbol::name) !=
           facts.exported_symbols.end();
  };
  const bool any_of_mpich = std::ranges::any_of(facts.exported_symbols, [](const auto& symbol) {
    return symbol.name.starts_with("MPIR_") || symbol.name.starts_with("MPID_") ||
           symbol.name.starts_with("MPII_");
  });
  MpiIdentity out;
  if (!exports("MPI_Init") || !exports("MPI_Comm_rank")) return out;
  const auto major = major_of(facts.soname.value_or(""));
  if (exports("ompi_mpi_comm_world")) {
    out.family = "openmpi";
    out.version = lone_version(bytes, 0, "v");
    out.abi = "openmpi-" + major;
  } else if (exports("MPI_Abi_get_version") && !any_of_mpich) {
    out.family = "mpi-abi";  // MPI 5.0's standard ABI: libmpi_abi.so.0 of any vendor
    out.abi = "mpi-abi-" + major;
  } else if (any_of_mpich) {
    // One ABI since 2014 (mpich.org/abi); the vendor shows in the library's strings.
    out.abi = "mpich-" + major;
    for (const auto& [name, title, words] : kFamilies) {
      if (words == nullptr || !out.family.empty() || find_word(bytes, words) == bytes.npos)
        continue;
      out.family = name;
      out.version = version_behind(bytes, words);
    }
    if (out.family.empty()) out.family = "mpich";
    const auto label = find_word(bytes, "MPICH Version:");
    if (out.version.empty()) out.version = lone_version(bytes, label == bytes.npos ? 0 : label, "");
  }
  return out;
}

std::string mpi_family_title(const std::string& family) {
  for (const auto& known : kFamilies)
    if (family == known.name) return known.title;
  return "an MPI";
}

bool may_be_mpi(std::string_view name) {
  return name.starts_with("libmpi") && name.find(".so") != name.npos;
}

std::vector<std::string> mpi_aliases(const std::string& soname, const std::string& abi) {
  std::vector<std::string> out = {soname};
  if (!abi.starts_with("mpich-")) return out;
  // Names of upstream (the ABI initiative's), of Debian, and of Cray, which include the compiler.
  static const std::vector<std::string> kKinds[] = {
      {"libmpi.so.", "libmpich.so.", "libmpi_cray.so.", "libmpi_gnu.so."},
      {"libmpifort.so.", "libmpichfort.so.", "libfmpich.so.", "libmpifort_cray.so."},
      {"libmpicxx.so.", "libmpichcxx.so."}};
  const auto major = abi.substr(abi.find('-') + 1);
  for (const auto& names : kKinds) {
    if (std::ranges::none_of(names, [&](const auto& name) { return soname == name + major; }) &&
        (&names != kKinds || !is_cray_name(soname, major)))
      continue;
    for (const auto& name : names)
      if (name + major != soname) out.push_back(name + major);
    break;
  }
  return out;
}

bool stands_for(const std::vector<std::string>& aliases, const std::string& abi,
                const std::string& name) {
  if (std::ranges::find(aliases, name) != aliases.end()) return true;
  return abi.starts_with("mpich-") && is_cray_name(name, abi.substr(abi.find('-') + 1));
}

std::vector<std::string> needed_names(const ElfFacts& elf) {
  std::vector<std::string> out;
  for (const auto& need : elf.dependencies) out.push_back(need.name);
  return out;
}

bool is_mpi_symbol(std::string_view name) {
  for (const std::string_view prefix : {"MPI_", "PMPI_", "MPIX_", "mpi_", "pmpi_", "mpix_"})
    if (name.starts_with(prefix)) return true;
  return false;
}

}  // namespace heddle
