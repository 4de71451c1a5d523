// SPDX-License-Identifier: MIT
// An fs-mount of another version, for reloads: started with --hand-over as the next, it changes
// what it was handed over, as $HEDDLE_OTHER_VERSION's file says, and becomes $HEDDLE_FS_MOUNT.

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;

std::string to_bytes(const Json& json) {
  std::string out;
  Json::to_cbor(json, out);
  return out;
}

/// The document inside, edited.
template <class Edit>
void edit_inner(Json& json, const char* name, Edit edit) {
  if (!json.contains(name) || json.at(name).get_binary().empty()) return;
  Json inner = Json::from_cbor(json.at(name).get_binary());
  edit(inner);
  const auto bytes = to_bytes(inner);
  json[name] = Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

void drop(Json& json, std::initializer_list<const char*> names) {
  for (const char* name : names) json.erase(name);
}

/// As an older one would say less.
void say_less(Json& json) {
  if (json.at("task") == "load") drop(json, {"serving", "client", "listener", "control", "device"});
  drop(json, {"report", "warnings", "ready"});
  edit_inner(json, "content", [](Json& content) {
    drop(content, {"announced", "previous", "retired", "generated"});
    content.at("files").erase("drifts");
    while (content.at("map").size() > 3) content.at("map").erase(content.at("map").size() - 1);
    drop(content.at("facts"), {"views", "names", "index_bytes", "start_time", "generation"});
    for (auto& file : content.at("files").at("list")) {
      auto& origin = file.at(1);
      while (origin.size() > 13) origin.erase(origin.size() - 1);
    }
  });
  edit_inner(json, "serving", [](Json& serving) {
    drop(serving, {"counters", "stats", "prefetch", "workers_lost", "reloads", "told_ready",
                   "cleanup", "report_at_end"});
    serving.at("session").erase("answers");
  });
}

/// As an older one would understand it: no parcel but those of version 1.
void understand_less(Json& json) {
  edit_inner(json, "content", [](Json& content) {
    if (content.at("version") != 1) content["version"] = 99;
  });
}

/// As a newer one would say more.
void say_more(Json& json) {
  const Json more = {{"what", {1, 2, 3}}};
  json["more"] = more;
  edit_inner(json, "content", [&](Json& content) {
    content["more"] = content["facts"]["more"] = content["files"]["more"] = more;
    for (auto& file : content.at("files").at("list")) {
      file.at(1).push_back(more);
      file.push_back(more);
    }
  });
  edit_inner(json, "serving", [&](Json& serving) { serving["more"] = more; });
}

std::string read_all(int fd) {
  std::string out(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  return ::pread(fd, out.data(), out.size(), 0) == static_cast<ssize_t>(out.size()) ? out : "";
}

}  // namespace

int main(int argc, char** argv) {
  const char* file = std::getenv("HEDDLE_OTHER_VERSION");
  const char* program = std::getenv("HEDDLE_FS_MOUNT");
  if (!file || !program || argc < 3) return 2;
  std::string how;
  std::ifstream(file) >> how;
  if (how == "dies") return 2;
  const int memfd = std::atoi(argv[2]);
  std::string bytes = read_all(memfd);
  Json json = Json::from_cbor(bytes);
  if (how == "less") say_less(json);
  if (how == "more") say_more(json);
  if (how == "older") understand_less(json);
  if (how == "newer") json["version"] = 99;
  if (how == "newer-content") edit_inner(json, "content", [](Json& c) { c["version"] = 99; });
  if (how == "newer-serving") edit_inner(json, "serving", [](Json& s) { s["version"] = 99; });
  if (how == "other-task") json["task"] = "dance";
  bytes = to_bytes(json);
  if (how == "nonsense") bytes = "nonsense";
  if (::ftruncate(memfd, 0) != 0 ||
      ::pwrite(memfd, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return 3;
  std::vector<char*> next(argv, argv + argc);
  std::string option = "--from-the-future";
  if (how == "options") next.push_back(option.data());
  next.push_back(nullptr);
  ::execv(program, next.data());
  return 127;
}
