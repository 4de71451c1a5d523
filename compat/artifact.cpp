// SPDX-License-Identifier: MIT
//
// The fields of an artifact are listed once, in *_fields(), for both Writer and Reader.
#include "compat/artifact.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/bounded_json.hpp"
#include "base/escape.hpp"

namespace heddle::compat {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Json = nlohmann::json;

constexpr unsigned kFormat = 1;
/// The version of compat-lib's format (pkg/compat/types.go), which its readers check.
constexpr const char* kCompatLibVersion = "0.0.1";

// An artifact is untrusted, and the worst it can do is cost memory and time. These limits bound
// both; no real artifact comes near them.
constexpr std::size_t kLongestName = 4096;    ///< PATH_MAX; of paths, sonames, versions
constexpr std::size_t kLongestList = 65'536;  ///< of search paths and C++ symbols
constexpr std::size_t kMostPrograms = 4096;
constexpr std::size_t kMostNeeded = 4096;  ///< of one program, also of libraries
constexpr std::size_t kMostVersions = 65'536;
/// A value takes up to a hundred bytes of memory, and as few as two in the text.
constexpr std::size_t kBytesPerValue = 8;
/// Of seven in an artifact.
constexpr std::size_t kDeepest = 16;

constexpr const char* kDependencyKinds[] = {"needed", "auxiliary", "filter"};

/// JSON is UTF-8: a text with other bytes is escaped, in an object.
OrderedJson text_json(const std::string& text) {
  if (is_valid_utf8(text)) return text;
  return {{"escaped", escape_for_terminal(text)}};
}

/// Adds keys to an object, in the order of calls.
class Writer {
 public:
  explicit Writer(OrderedJson& out) : out_(out) {}
  void text(const char* key, const std::string& value) { out_[key] = text_json(value); }
  void text_unless_empty(const char* key, const std::string& value) {
    if (!value.empty()) text(key, value);
  }
  void optional(const char* key, const std::optional<std::string>& value, std::size_t = 0) {
    if (value) text(key, *value);
  }
  template <class T, class Fields>
  void optional(const char* key, const std::optional<T>& value, Fields&& fields) {
    if (value) object(key, [&](auto& io) { fields(io, *value); });
  }
  template <class T>
  void number(const char* key, T value) {
    out_[key] = value;
  }
  void flag(const char* key, bool value) {
    if (value) out_[key] = true;
  }
  void word(const char* key, Dependency::Kind value) {
    out_[key] = kDependencyKinds[static_cast<std::size_t>(value)];
  }
  void derived(const char* key, OrderedJson value) { out_[key] = std::move(value); }
  void texts(const char* key, const std::vector<std::string>& values) {
    for (const auto& value : values) out_[key].push_back(text_json(value));
  }
  void isa_levels(const char* key, std::uint32_t mask) {
    for (unsigned bit = 0; bit < 32; ++bit)
      if ((mask >> bit & 1) != 0) out_[key].push_back(isa_level_name(bit));
  }
  template <class Fields>
  void object(const char* key, Fields&& fields) {
    auto one = OrderedJson::object();
    Writer io(one);
    fields(io);
    out_[key] = std::move(one);
  }
  template <class Fields>
  void object_if(const char* key, bool present, Fields&& fields) {
    if (present) object(key, fields);
  }
  template <class List, class Fields>
  void list(const char* key, List& values, std::size_t, Fields&& fields) {
    auto array = OrderedJson::array();
    for (auto& value : values) {
      Writer io(array.emplace_back(OrderedJson::object()));
      fields(io, value);
    }
    out_[key] = std::move(array);
  }
  /// Names grouped by version, sorted.
  void symbols(const char* key, const std::vector<DynamicSymbol>& symbols, bool weak) {
    std::map<std::string, std::vector<std::string>> by_version;
    for (const auto& symbol : symbols)
      if (symbol.weak == weak) by_version[symbol.version].push_back(symbol.name);
    auto array = OrderedJson::array();
    for (auto& [version, names] : by_version) {
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      Writer io(array.emplace_back(OrderedJson::object()));
      io.text("version", version);
      io.texts("names", names);
    }
    out_[key] = std::move(array);
  }

 private:
  OrderedJson& out_;
};

/// Thrown in this file only; parse_artifact() turns it into an Error.
struct Wrong {
  std::string key;
  const char* how = "is missing or of the wrong kind";
};

std::string text_of(const Json& value, const char* key, std::size_t longest = kLongestName) {
  std::optional<std::string> out;
  if (value.is_string())
    out = value.get<std::string>();
  else if (value.is_object() && value.contains("escaped") && value["escaped"].is_string())
    out = unescape(value["escaped"].get<std::string>());
  if (!out) throw Wrong{key};
  if (out->size() > longest) throw Wrong{key, "is too long"};
  return std::move(*out);
}

/// Reads the keys of an untrusted object.
class Reader {
 public:
  explicit Reader(const Json& in) : in_(in) {}
  void text(const char* key, std::string& value, std::size_t longest = kLongestName) const {
    value = text_of(member(key), key, longest);
  }
  void text_unless_empty(const char* key, std::string& value) const {
    if (in_.contains(key)) text(key, value);
  }
  void optional(const char* key, std::optional<std::string>& value,
                std::size_t longest = kLongestName) const {
    if (in_.contains(key)) text(key, value.emplace(), longest);
  }
  template <class T, class Fields>
  void optional(const char* key, std::optional<T>& value, Fields&& fields) const {
    object_if(key, false, [&](auto& io) { fields(io, value.emplace()); });
  }
  template <class T>
  void number(const char* key, T& value) const {
    const auto& json = member(key);
    if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::numeric_limits<T>::max())
      throw Wrong{key};
    value = json.get<T>();
  }
  void number(const char* key, bool& value) const { flag(key, value); }
  void flag(const char* key, bool& value) const {
    if (!in_.contains(key)) return;
    if (!in_[key].is_boolean()) throw Wrong{key};
    value = in_[key].get<bool>();
  }
  void word(const char* key, Dependency::Kind& value) const {
    const auto name = text_of(member(key), key);
    const auto* const at =
        std::find(std::begin(kDependencyKinds), std::end(kDependencyKinds), name);
    if (at == std::end(kDependencyKinds)) throw Wrong{key};
    value = static_cast<Dependency::Kind>(at - kDependencyKinds);
  }
  template <class T>
  void derived(const char*, const T&) const {}
  void texts(const char* key, std::vector<std::string>& values) const {
    if (!in_.contains(key)) return;
    for (const auto& one : array(key)) values.push_back(text_of(one, key));
  }
  void isa_levels(const char* key, std::uint32_t& mask) const {
    std::vector<std::string> names;
    texts(key, names);
    for (const auto& name : names) {
      unsigned bit = 0;
      while (bit < 32 && name != isa_level_name(bit)) ++bit;
      if (bit == 32) throw Wrong{key};
      mask |= 1U << bit;
    }
  }
  template <class Fields>
  void object(const char* key, Fields&& fields) const {
    const Reader io(member(key));
    fields(io);
  }
  /// `present` is for the Writer.
  template <class Fields>
  void object_if(const char* key, bool /*present*/, Fields&& fields) const {
    if (in_.contains(key)) object(key, fields);
  }
  template <class T, class Fields>
  void list(const char* key, std::vector<T>& values, std::size_t most, Fields&& fields) const {
    for (const auto& one : array(key, most)) {
      const Reader io(one);
      fields(io, values.emplace_back());
    }
  }
  void symbols(const char* key, std::vector<DynamicSymbol>& symbols, bool weak) const {
    for (const auto& group : array(key)) {
      const Reader io(group);
      std::string version;
      io.text("version", version);
      for (const auto& name : io.array("names"))
        symbols.push_back({text_of(name, key, kLongestList), version, weak});
    }
  }

 private:
  const Json& member(const char* key) const {
    if (!in_.contains(key)) throw Wrong{key};
    return in_[key];
  }
  const Json& array(const char* key,
                    std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    const auto& value = member(key);
    if (!value.is_array()) throw Wrong{key};
    if (value.size() > most) throw Wrong{key, "has too many entries"};
    return value;
  }

  const Json& in_;
};

template <class Io>
void library_fields(Io& io, auto& library) {
  io.text("soname", library.soname);
  io.derived("resolved", library.resolved());
  io.text_unless_empty("path", library.path);
  io.text_unless_empty("found_by", library.found_by);
  io.text_unless_empty("reason", library.reason);
  io.text_unless_empty("needed_by", library.needed_by);
  io.flag("dlopened", library.dlopened);
  io.texts("versions", library.versions);
  io.text_unless_empty("build_id", library.build_id);
  io.text_unless_empty("sha256", library.hash);
}

template <class Io>
void program_fields(Io& io, auto& program) {
  auto& elf = program.elf;
  io.text("name", program.name);
  io.text("path", program.path);
  io.derived("machine", machine_name(elf.machine));
  io.object("elf", [&](auto& header) {
    header.number("class", elf.elf_class);
    header.number("data", elf.data_encoding);
    header.number("os_abi", elf.os_abi);
    header.number("abi_version", elf.abi_version);
    header.number("type", elf.type);
    header.number("machine", elf.machine);
    header.number("dynamic", elf.dynamic);
    header.number("flags", elf.flags);
    header.number("flags_1", elf.flags_1);
  });
  io.optional("interpreter", elf.interp);
  io.text_unless_empty("interpreter_soname", program.interpreter_soname);
  io.optional("soname", elf.soname);
  io.text_unless_empty("build_id", elf.build_id);
  io.text("sha256", program.hash);
  io.optional("rpath", elf.rpath, kLongestList);
  io.optional("runpath", elf.runpath, kLongestList);
  io.optional("tls", elf.tls, [](auto& tls, auto& value) {
    tls.number("size", value.size);
    tls.number("align", value.align);
  });
  io.isa_levels("isa_needed", program.notes.isa_needed);
  io.isa_levels("isa_used", program.notes.isa_used);
  io.text_unless_empty("kernel", program.notes.kernel);
  io.object_if("mpi", !program.mpi_family.empty(), [&](auto& mpi) {
    mpi.text("family", program.mpi_family);
    mpi.text("soname", program.mpi_soname);
  });
  io.flag("imports_dlopen", elf.imports_dlopen);
  io.flag("imports_dladdr", elf.imports_dladdr);
  io.list("needed", elf.dependencies, kMostNeeded, [](auto& one, auto& dependency) {
    one.word("kind", dependency.kind);
    one.text("name", dependency.name);
  });
  io.list("versions", elf.version_needs, kMostVersions, [](auto& one, auto& need) {
    one.text("library", need.file);
    one.text("version", need.version);
    one.flag("weak", need.weak);
  });
  io.list("libraries", program.libraries, kMostNeeded,
          [](auto& one, auto& library) { library_fields(one, library); });
  io.object("symbols", [&](auto& symbols) {
    symbols.symbols("required", elf.undefined_symbols, false);
    symbols.symbols("weak", elf.undefined_symbols, true);
    symbols.symbols("defined", elf.exported_symbols, false);
    symbols.symbols("defined_weak", elf.exported_symbols, true);
  });
  io.texts("version_definitions", elf.version_definitions);
}

}  // namespace

std::string to_json(const Artifact& artifact) {
  auto attributes = OrderedJson::object();
  std::vector<std::string> names;
  for (const auto& program : artifact.programs)
    for (const auto& library : program.libraries)
      if (!library.dlopened && std::find(names.begin(), names.end(), library.soname) == names.end())
        names.push_back(library.soname);
  if (!artifact.programs.empty())
    attributes["llnl.compatlib.executable-name"] = to_json_text(artifact.programs[0].name);
  for (std::size_t i = 0; i < names.size(); ++i)
    attributes[fmt::format("llnl.compatlib.library-name.{}", i)] = to_json_text(names[i]);
  OrderedJson all = {{"version", kCompatLibVersion}, {"attributes", std::move(attributes)}};
  Writer(all).object("heddle", [&](auto& ours) {
    ours.number("format", kFormat);
    ours.list("programs", artifact.programs, kMostPrograms,
              [](auto& io, auto& program) { program_fields(io, program); });
  });
  return all.dump(2) + "\n";
}

Result<Artifact> parse_artifact(std::string_view bytes, const std::string& where) {
  if (bytes.size() > kMaxArtifact) return fail_errno(where, "no artifact", EFBIG);
  const auto refused = [&](int code, std::string_view what, std::string_view reason,
                           std::string_view hint = {}) {
    return fail(Error::with_code(code, where, what, reason, hint));
  };
  const JsonLimits limits{
      .depth = kDeepest, .values = 1000 + bytes.size() / kBytesPerValue, .members = bytes.size()};
  if (const char* why = beyond(limits, bytes)) return refused(EBADMSG, "no artifact", why);
  try {
    const auto json = Json::parse(bytes, nullptr, false);
    if (json.is_discarded()) return refused(ENOEXEC, "no artifact", "not JSON");
    if (!json.contains("heddle"))
      return refused(ENOTSUP, "no artifact", "it has no `heddle` part",
                     json.contains("attributes") ? "compat-lib's own tool writes the libraries' "
                                                   "names only: make it with compat-gen"
                                                 : "");
    const Reader ours(json["heddle"]);
    unsigned format = 0;
    ours.number("format", format);
    if (format != kFormat)
      return refused(ENOTSUP, "cannot read the artifact",
                     fmt::format("its format is {}, not {}", format, kFormat));
    Artifact artifact;
    ours.list("programs", artifact.programs, kMostPrograms,
              [](auto& io, auto& program) { program_fields(io, program); });
    if (artifact.programs.empty()) throw Wrong{"programs"};
    return artifact;
  } catch (const Wrong& wrong) {
    return refused(EBADMSG, "damaged artifact", fmt::format("`{}` {}", wrong.key, wrong.how));
  } catch (const Json::exception& error) {
    return refused(EBADMSG, "damaged artifact", error.what());
  }
}

std::string isa_level_name(unsigned bit) {
  return bit == 0 ? "x86-64" : fmt::format("x86-64-v{}", bit + 1);
}

std::string highest_isa_level(std::uint32_t mask) {
  return mask == 0 ? std::string()
                   : isa_level_name(static_cast<unsigned>(std::bit_width(mask)) - 1);
}

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_386:
      return "i686";
    case EM_AARCH64:
      return "aarch64";
    case EM_ARM:
      return "arm";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390x";
    case EM_RISCV:
      return "riscv";
    default:
      return fmt::format("EM_{}", machine);
  }
}

}  // namespace heddle::compat
