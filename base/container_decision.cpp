// SPDX-License-Identifier: MIT
//
// The fields of the document are listed once, in decision_fields(), for both Writer and Reader.
#include "base/container_decision.hpp"

#include <nlohmann/json.hpp>
#include <span>

#include "base/bounded_json.hpp"
#include "base/escape.hpp"

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::span<const char* const>;

constexpr const char* kFormat = "heddle-container";
constexpr int kVersion = 1;
constexpr const char* kOutcomes[] = {"swap", "nothing", "incompatible"};
constexpr const char* kSides[] = {"host", "container"};
constexpr const char* kRules[] = {"mpi-stack", "only-host", "versions",
                                  "symbols",   "needs",     "glibc"};

/// Adds keys to an object, in the order of calls.
class Writer {
 public:
  explicit Writer(Json& out) : out_(out) {}
  void text(const char* key, const std::string& value) { out_[key] = to_json_text(value); }
  void text_if_any(const char* key, const std::string& value) {
    if (!value.empty()) text(key, value);
  }
  void flag(const char* key, bool value) { out_[key] = value; }
  template <class Word>
  void word(const char* key, Word value, Names names) {
    out_[key] = names[static_cast<std::size_t>(value)];
  }
  void texts(const char* key, const std::vector<std::string>& values) {
    Json& list = out_[key] = Json::array();
    for (const auto& value : values) list.push_back(to_json_text(value));
  }
  void texts_by_name(const char* key, const std::map<std::string, std::string>& values) {
    Json& object = out_[key] = Json::object();
    for (const auto& [name, value] : values) object[to_json_text(name)] = to_json_text(value);
  }
  template <class Fields>
  void object(const char* key, Fields&& fields) {
    Writer io(out_[key] = Json::object());
    fields(io);
  }
  template <class T, class Fields>
  void object_or_null(const char* key, const std::optional<T>& value, Fields&& fields) {
    out_[key] = nullptr;
    if (value) object(key, [&](Writer& io) { fields(io, *value); });
  }
  template <class List, class Fields>
  void list(const char* key, const List& values, Fields&& fields) {
    Json& list = out_[key] = Json::array();
    for (const auto& value : values) {
      Writer io(list.emplace_back(Json::object()));
      fields(io, value);
    }
  }

 private:
  Json& out_;
};

/// Thrown in this file only: the key of a value of the wrong kind.
struct Wrong {
  std::string key;
};

/// Reads the keys of an object.
class Reader {
 public:
  explicit Reader(const Json& in) : in_(in) {
    if (!in.is_object()) throw Wrong{"an element of a list"};
  }
  void text(const char* key, std::string& value) const {
    if (const Json* found = find(key)) value = text_of(*found, key);
  }
  void text_if_any(const char* key, std::string& value) const { text(key, value); }
  void flag(const char* key, bool& value) const {
    const Json* found = find(key);
    if (found && !found->is_boolean()) throw Wrong{key};
    if (found) value = found->get<bool>();
  }
  template <class Word>
  void word(const char* key, Word& value, Names names) const {
    const Json* found = find(key);
    if (!found) return;
    const auto text = text_of(*found, key);
    std::size_t at = 0;
    while (at < names.size() && text != names[at]) ++at;
    if (at == names.size()) throw Wrong{key};
    value = static_cast<Word>(at);
  }
  void texts(const char* key, std::vector<std::string>& values) const {
    for (const Json& one : list_of(key)) values.push_back(text_of(one, key));
  }
  void texts_by_name(const char* key, std::map<std::string, std::string>& values) const {
    object(key, [&](const Reader& io) {
      for (const auto& [name, value] : io.in_.items()) values[name] = text_of(value, key);
    });
  }
  template <class Fields>
  void object(const char* key, Fields&& fields) const {
    const Json* found = find(key);
    if (found && !found->is_object()) throw Wrong{key};
    if (found) fields(Reader(*found));
  }
  template <class T, class Fields>
  void object_or_null(const char* key, std::optional<T>& value, Fields&& fields) const {
    if (find(key)) object(key, [&](const Reader& io) { fields(io, value.emplace()); });
  }
  template <class List, class Fields>
  void list(const char* key, List& values, Fields&& fields) const {
    for (const Json& one : list_of(key)) fields(Reader(one), values.emplace_back());
  }

 private:
  /// nullptr: it is missing, or null.
  const Json* find(const char* key) const {
    const auto found = in_.find(key);
    return found == in_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& list_of(const char* key) const {
    static const Json kNone = Json::array();
    const Json* found = find(key);
    if (found && !found->is_array()) throw Wrong{key};
    return found ? *found : kNone;
  }
  static std::string text_of(const Json& value, const char* key) {
    if (!value.is_string()) throw Wrong{key};
    return value.get<std::string>();
  }
  const Json& in_;
};

template <class Io, class M>
void mpi_fields(Io& io, M& mpi, const char* path_key) {
  io.text("family", mpi.family);
  io.text("version", mpi.version);
  io.text("soname", mpi.soname);
  io.text("abi", mpi.abi);
  io.text(path_key, mpi.path);
}

template <class Io, class D>
void decision_fields(Io& io, D& d) {
  io.word("outcome", d.outcome, kOutcomes);
  io.text("reason", d.reason);
  io.text("hint", d.hint);
  io.texts("program", d.programs);
  io.text("mount_point", d.mount_point);
  io.object_or_null("mpi", d.mpi, [](auto&& in, auto& mpi) { mpi_fields(in, mpi, "host"); });
  io.object_or_null("container_mpi", d.container_mpi,
                    [](auto&& in, auto& mpi) { mpi_fields(in, mpi, "path"); });
  io.object("glibc", [&](auto&& in) {
    in.text("host", d.host_glibc);
    in.text("container", d.container_glibc);
    in.word("taken", d.glibc, kSides);
    in.text("why", d.glibc_why);
  });
  io.object("interpreter", [&](auto&& in) {
    in.text("path", d.interpreter);
    in.text("real_path", d.interpreter_file);
    in.word("taken", d.glibc, kSides);
  });
  io.list("binds", d.binds, [](auto&& in, auto& bind) {
    in.text("source", bind.source);
    in.text("target", bind.target);
    in.text("why", bind.why);
  });
  io.list("changed", d.changed, [](auto&& in, auto& file) {
    in.text("host", file.library);
    in.text("was", file.was);
    in.text("now", file.now);
  });
  io.list("directories", d.directories, [](auto&& in, auto& directory) {
    in.text("source", directory.source);
    in.text("target", directory.target);
    in.flag("exists", directory.exists);
    in.text("why", directory.why);
  });
  io.texts_by_name("environment", d.environment);
  io.list("verdict", d.choices, [](auto&& in, auto& choice) {
    in.text("soname", choice.soname);
    in.word("taken", choice.taken, kSides);
    in.text("host", choice.host);
    in.text("container", choice.container);
    in.word("rule", choice.rule, kRules);
    in.text("why", choice.why);
  });
  io.list("loads", d.loads, [](auto&& in, auto& load) {
    in.text("soname", load.first);
    in.text("path", load.second);
  });
  io.flag("loads_mpi", d.loads_mpi);
  io.texts("warnings", d.warnings);
  io.texts("asked", d.asked);
  io.text_if_any("image_contents", d.contents);
  io.text_if_any("map_id", d.map_id);
}

}  // namespace

const char* name_of(Side side) { return kSides[static_cast<std::size_t>(side)]; }
const char* name_of(Outcome outcome) { return kOutcomes[static_cast<std::size_t>(outcome)]; }
const char* name_of(Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }

std::string to_json(const ContainerDecision& decision) {
  Json out = {{"format", kFormat}, {"version", kVersion}};
  Writer io(out);
  decision_fields(io, decision);
  return out.dump(2) + "\n";
}

Result<ContainerDecision> parse_container_decision(const std::string& text,
                                                   const std::string& name) {
  const auto refuse = [&](const std::string& why, const char* hint = "") {
    return fail(name, "is no decision for a container", why, hint);
  };
  if (const char* why = beyond({}, text)) return refuse(why);
  const auto json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return refuse("not a JSON object");
  if (json.value("format", Json()) != kFormat) return refuse("it has another format");
  if (json.value("version", Json()) != kVersion)
    return refuse("it is of another version", "rebuild the map with this fs-resolve");
  if (const auto at = json.find("outcome"); at == json.end() || !at->is_string())
    return refuse("it has no outcome");
  ContainerDecision out;
  out.loads_mpi = true;
  try {
    const Reader io(json);
    decision_fields(io, out);
  } catch (const Wrong& wrong) {
    return refuse(wrong.key + " is of the wrong kind");
  }
  return out;
}

}  // namespace heddle
