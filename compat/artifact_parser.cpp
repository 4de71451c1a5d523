// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "compat/artifact_json.hpp"
#include "compat/artifact_text.hpp"

namespace heddle::compat {
namespace {

using Json = nlohmann::json;

// An artifact is whatever a peer or a registry sends. The worst it can do is to cost memory and
// time, so that everything in it is counted: no true one comes near these.
constexpr std::size_t kLongestName = 4096;  ///< PATH_MAX; of paths, sonames, versions
constexpr std::size_t kLongestList =
    65'536;  ///< search paths of hundreds of directories, C++ symbols
constexpr std::size_t kMostPrograms = 4096;
constexpr std::size_t kMostNeeded = 4096;  ///< of one program, also of libraries
constexpr std::size_t kMostVersions = 65'536;
/// A value in memory has up to a hundred bytes, in the text it may have two.
constexpr std::size_t kBytesPerValue = 8;

/// Thrown inside this file only, and made an Error with the artifact's name at its edge.
struct Wrong {
  std::string key;
  const char* how = "is missing or of the wrong kind";
};

const Json& member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) throw Wrong{key};
  return *found;
}

std::string text(const Json& value, const char* key, std::size_t longest = kLongestName) {
  std::optional<std::string> out;
  if (value.is_string())
    out = value.get<std::string>();
  else if (value.is_object() && value.contains("escaped") && value["escaped"].is_string())
    out = unescape(value["escaped"].get<std::string>());
  if (!out) throw Wrong{key};
  if (out->size() > longest) throw Wrong{key, "is too long"};
  return std::move(*out);
}

std::string text_at(const Json& object, const char* key) { return text(member(object, key), key); }

std::optional<std::string> optional_text(const Json& object, const char* key,
                                         std::size_t longest = kLongestName) {
  if (!object.contains(key)) return std::nullopt;
  return text(object[key], key, longest);
}

std::string text_or_empty(const Json& object, const char* key) {
  return optional_text(object, key).value_or("");
}

template <class T>
T number_at(const Json& object, const char* key) {
  const auto& value = member(object, key);
  if (!value.is_number_unsigned()) throw Wrong{key};
  const auto wide = value.get<std::uint64_t>();
  if (wide > std::numeric_limits<T>::max()) throw Wrong{key};
  return static_cast<T>(wide);
}

bool flag_at(const Json& object, const char* key) {
  if (!object.contains(key)) return false;
  if (!object[key].is_boolean()) throw Wrong{key};
  return object[key].get<bool>();
}

const Json& array_at(const Json& object, const char* key,
                     std::size_t most = std::numeric_limits<std::size_t>::max()) {
  const auto& value = member(object, key);
  if (!value.is_array()) throw Wrong{key};
  if (value.size() > most) throw Wrong{key, "has too many entries"};
  return value;
}

std::vector<std::string> texts(const Json& object, const char* key) {
  std::vector<std::string> out;
  if (!object.contains(key)) return out;
  for (const auto& one : array_at(object, key)) out.push_back(text(one, key));
  return out;
}

void read_symbols(const Json& symbols, const char* key, bool weak,
                  std::vector<DynamicSymbol>& out) {
  for (const auto& group : array_at(symbols, key)) {
    const auto version = text_at(group, "version");
    for (const auto& name : array_at(group, "names"))
      out.push_back({text(name, key, kLongestList), version, weak});
  }
}

std::uint32_t isa_at(const Json& object, const char* key) {
  std::uint32_t mask = 0;
  for (const auto& name : texts(object, key)) {
    const auto bit = isa_level_bit(name);
    if (!bit) throw Wrong{key};
    mask |= 1U << *bit;
  }
  return mask;
}

Library read_library(const Json& json) {
  Library library;
  library.soname = text_at(json, "soname");
  library.path = text_or_empty(json, "path");
  library.found_by = text_or_empty(json, "found_by");
  library.needed_by = text_or_empty(json, "needed_by");
  library.versions = texts(json, "versions");
  library.build_id = text_or_empty(json, "build_id");
  library.hash = text_or_empty(json, "sha256");
  library.dlopened = flag_at(json, "dlopened");
  library.reason = text_or_empty(json, "reason");
  return library;
}

ElfFacts read_elf(const Json& json) {
  ElfFacts elf;
  const auto& header = member(json, "elf");
  elf.elf_class = number_at<std::uint8_t>(header, "class");
  elf.data_encoding = number_at<std::uint8_t>(header, "data");
  elf.os_abi = number_at<std::uint8_t>(header, "os_abi");
  elf.abi_version = number_at<std::uint8_t>(header, "abi_version");
  elf.type = number_at<std::uint16_t>(header, "type");
  elf.machine = number_at<std::uint16_t>(header, "machine");
  elf.flags = number_at<std::uint64_t>(header, "flags");
  elf.flags_1 = number_at<std::uint64_t>(header, "flags_1");
  elf.dynamic = flag_at(header, "dynamic");
  elf.interp = optional_text(json, "interpreter");
  elf.soname = optional_text(json, "soname");
  elf.build_id = text_or_empty(json, "build_id");
  elf.rpath = optional_text(json, "rpath", kLongestList);
  elf.runpath = optional_text(json, "runpath", kLongestList);
  if (json.contains("tls"))
    elf.tls = TlsSegment{number_at<std::uint64_t>(json["tls"], "size"),
                         number_at<std::uint64_t>(json["tls"], "align")};
  elf.imports_dlopen = flag_at(json, "imports_dlopen");
  elf.imports_dladdr = flag_at(json, "imports_dladdr");
  for (const auto& one : array_at(json, "needed", kMostNeeded)) {
    const auto kind = dependency_kind(text_at(one, "kind"));
    if (!kind) throw Wrong{"kind"};
    elf.dependencies.push_back({*kind, text_at(one, "name")});
  }
  for (const auto& one : array_at(json, "versions", kMostVersions))
    elf.version_needs.push_back(
        {text_at(one, "library"), text_at(one, "version"), flag_at(one, "weak")});
  elf.version_definitions = texts(json, "version_definitions");
  const auto& symbols = member(json, "symbols");
  read_symbols(symbols, "required", false, elf.undefined_symbols);
  read_symbols(symbols, "weak", true, elf.undefined_symbols);
  read_symbols(symbols, "defined", false, elf.exported_symbols);
  read_symbols(symbols, "defined_weak", true, elf.exported_symbols);
  return elf;
}

Program read_program(const Json& json) {
  Program program;
  program.name = text_at(json, "name");
  program.path = text_at(json, "path");
  program.elf = read_elf(json);
  program.hash = text_at(json, "sha256");
  program.interpreter_soname = text_or_empty(json, "interpreter_soname");
  program.notes.isa_needed = isa_at(json, "isa_needed");
  program.notes.isa_used = isa_at(json, "isa_used");
  program.notes.kernel = text_or_empty(json, "kernel");
  if (json.contains("mpi")) {
    program.mpi_family = text_at(json["mpi"], "family");
    program.mpi_soname = text_at(json["mpi"], "soname");
  }
  for (const auto& one : array_at(json, "libraries", kMostNeeded))
    program.libraries.push_back(read_library(one));
  return program;
}

}  // namespace

Result<Artifact> parse_artifact(std::string_view bytes, const std::string& where) {
  if (bytes.size() > kMaxArtifact) return fail_errno(where, "no artifact", EFBIG);
  // Deep nesting would overflow the parser's and the destructor's stack; an artifact has seven.
  constexpr int kDeepest = 16;
  std::size_t values = 0;
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) throw Wrong{"nesting", "is too deep"};
    if (++values > 1000 + bytes.size() / kBytesPerValue) throw Wrong{"JSON", "has too many values"};
    return true;
  };
  try {
    const auto json = Json::parse(bytes, shallow, false);
    if (json.is_discarded())
      return fail(Error::with_code(ENOEXEC, where, "no artifact", "not JSON"));
    if (!json.is_object() || !json.contains("heddle"))
      return fail(Error::with_code(
          ENOTSUP, where, "no artifact", "it has no `heddle` part",
          json.is_object() && json.contains("attributes")
              ? "what compat-lib's own tool writes names libraries only: make it anew by compat-gen"
              : ""));
    const auto& ours = json["heddle"];
    if (const auto format = number_at<std::uint32_t>(ours, "format"); format != kArtifactFormat)
      return fail(
          Error::with_code(ENOTSUP, where, "cannot read the artifact",
                           fmt::format("its format is {}, not {}", format, kArtifactFormat)));
    Artifact artifact;
    for (const auto& one : array_at(ours, "programs", kMostPrograms))
      artifact.programs.push_back(read_program(one));
    if (artifact.programs.empty()) throw Wrong{"programs"};
    return artifact;
  } catch (const Wrong& wrong) {
    return fail(Error::with_code(EBADMSG, where, "damaged artifact",
                                 fmt::format("`{}` {}", wrong.key, wrong.how)));
  } catch (const Json::exception& error) {
    return fail(Error::with_code(EBADMSG, where, "damaged artifact", error.what()));
  }
}

}  // namespace heddle::compat
