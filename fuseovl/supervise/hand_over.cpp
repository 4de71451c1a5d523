// SPDX-License-Identifier: MIT
#include "fuseovl/supervise/hand_over.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fuseovl/supervise/next_content.hpp"

namespace heddle {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;

Json binary(std::string_view bytes) {
  return Json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}
std::string text_of(const Json& json) {
  const auto& bytes = json.get_binary();
  return {bytes.begin(), bytes.end()};
}

std::string cbor(const Json& json) {
  std::string out;
  Json::to_cbor(json, out);
  return out;
}

Error not_understood(std::string_view why) {
  return Error::with_code(ENOTSUP, "fs-mount", "cannot take the mount over", why, "mount anew");
}

void expect_version(const Json& json) {
  const auto version = json.at("version").get<int>();
  if (version != kVersion)
    throw not_understood("it is served by another version: " + std::to_string(version) + ", not " +
                         std::to_string(kVersion));
}

Json pack_counters(const RequestCounters& counters) {
  auto requests = Json::array();
  for (const auto& kind : RequestCounters::kinds())
    requests.push_back(Json::array({kind.opcode, counters.of(kind.opcode)}));
  return {{"requests", std::move(requests)},
          {"other", counters.other()},
          {"bytes_read", counters.bytes_read()}};
}

void unpack_counters(const Json& json, RequestCounters& counters) {
  for (const auto& kind : json.value("requests", Json::array()))
    counters.add(kind.at(0).get<std::uint32_t>(), kind.at(1).get<std::uint64_t>());
  constexpr std::uint32_t kNone = 0;  // no opcode: counted as `other`
  counters.add(kNone, json.value("other", std::uint64_t{0}));
  counters.add_bytes_read(json.value("bytes_read", std::uint64_t{0}));
}

Json pack_session(const SessionMemory& memory) {
  return {{"init", binary({memory.init.data(), memory.init_size})},
          {"agreed", memory.agreed.load()},
          {"answers", memory.answers.load()}};
}

void unpack_session(const Json& json, SessionMemory& memory) {
  const auto init = text_of(json.at("init"));
  if (init.size() > memory.init.size()) throw not_understood("its INIT request is too long");
  init.copy(memory.init.data(), init.size());
  memory.init_size = init.size();
  memory.agreed = json.at("agreed").get<bool>();
  memory.answers = json.value("answers", std::uint64_t{0});
}

/// What readers have before them of `.heddle/stats`. A worker that lives may be writing; what is
/// packed then is for a loader, which looks whether it understands it.
Json pack_stats(const StatsSlots& stats) {
  auto pages = Json::array();
  for (const InodeNumber number : stats.numbers())
    if (const auto page = number != 0 ? stats.find(number) : std::nullopt)
      pages.push_back(
          Json::array({number, page->made.tv_sec, page->made.tv_nsec, binary(page->text)}));
  return {{"next", stats.next()}, {"pages", std::move(pages)}};
}

void unpack_stats(const Json& json, StatsSlots& stats) {
  stats.go_on_from(json.value("next", StatsSlots::kFirst));
  for (const auto& page : json.value("pages", Json::array())) {
    const auto text = text_of(page.at(3));
    if (text.size() > StatsSlots::kRoom) continue;
    stats.put(page.at(0).get<InodeNumber>(), text,
              {page.at(1).get<time_t>(), page.at(2).get<long>()});
  }
}

/// Nothing changes for whoever has the file: only what exec does with the descriptor.
void set_close_on_exec(const std::vector<int>& fds, bool on) {
  for (const int fd : fds) ::fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
}

}  // namespace

std::vector<int> HandOver::descriptors() const {
  std::vector<int> out = content.fds;
  for (const int fd : {device, answer, map, ready, listener, client})
    if (fd >= 0) out.push_back(fd);
  return out;
}

std::string pack_serving(const ServingState& state, const ServeOptions& options) {
  Json json = {{"version", kVersion},
               {"session", pack_session(state.session)},
               {"counters", pack_counters(state.counters)},
               {"stats", pack_stats(state.stats)},
               {"prefetch", static_cast<int>(state.prefetch.load())},
               {"workers_lost", state.workers_lost.load()},
               {"reloads", state.reloads.load()},
               {"told_ready", state.told_ready.load()},
               {"mount_device", options.mount_device},
               {"cleanup", options.cleanup},
               {"report_at_end", options.report_at_end}};
  if (options.mount_point) json["mount_point"] = *options.mount_point;
  return cbor(json);
}

Result<void> unpack_serving(std::string_view bytes, ServingState& state, ServeOptions& options) {
  try {
    const Json json = Json::from_cbor(bytes);
    expect_version(json);
    unpack_session(json.at("session"), state.session);
    unpack_counters(json.value("counters", Json::object()), state.counters);
    unpack_stats(json.value("stats", Json::object()), state.stats);
    state.prefetch =
        static_cast<ServingState::Prefetch>(std::clamp(json.value("prefetch", 0), 0, 2));
    state.workers_lost = json.value("workers_lost", std::uint64_t{0});
    state.reloads = json.value("reloads", std::uint64_t{0});
    state.told_ready = json.value("told_ready", true);
    options.mount_device = json.value("mount_device", dev_t{0});
    options.cleanup = json.value("cleanup", "");
    options.report_at_end = json.value("report_at_end", false);
    if (json.contains("mount_point"))
      options.mount_point = json.at("mount_point").get<std::string>();
    return {};
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(not_understood(error.what()));
  }
}

Error become(const Fd& program, std::vector<std::string> arguments, const HandOver& next) {
  const Json json = {{"version", kVersion},
                     {"task", next.task == HandOver::Task::serve ? "serve" : "load"},
                     {"content", binary(next.content.bytes)},
                     {"fds", next.content.fds},
                     {"device", next.device},
                     {"answer", next.answer},
                     {"map", next.map},
                     {"map_path", next.map_path},
                     {"map_exchanged", next.map_exchanged},
                     {"serving", binary(next.serving)},
                     {"ready", next.ready},
                     {"control", next.control},
                     {"listener", next.listener},
                     {"client", next.client},
                     {"report", next.report},
                     {"warnings", next.warnings}};
  const Fd memfd(::memfd_create("heddle-hand-over", 0));
  if (!memfd) return Error::from_errno("fs-mount", "cannot hand over");
  if (auto written = write_all(memfd.get(), cbor(json), "fs-mount"); !written)
    return std::move(written.error());
  arguments.insert(arguments.begin() + 1, {"--hand-over", std::to_string(memfd.get())});
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const auto keep = next.descriptors();
  set_close_on_exec(keep, false);
  ::execveat(program.get(), "", argv.data(), ::environ, AT_EMPTY_PATH);
  const auto error = Error::from_errno("fs-mount", "cannot hand over");
  set_close_on_exec(keep, true);
  return error;
}

namespace {

Result<Json> read_document(const Fd& memfd) {
  if (::lseek(memfd.get(), 0, SEEK_SET) != 0) return fail_errno("--hand-over", "is no hand-over");
  auto bytes = read_all(memfd.get(), "--hand-over");
  if (!bytes) return fail(std::move(bytes.error()));
  Json json = Json::from_cbor(*bytes, true, false);
  if (!json.is_object()) return fail(not_understood("it makes no sense"));
  return json;
}

HandOver::Task task_of(const Json& json) {
  const auto task = json.at("task").get<std::string>();
  if (task == "load") return HandOver::Task::load;
  if (task == "serve") return HandOver::Task::serve;
  throw not_understood("it is to do what this version does not know: " + task);
}

}  // namespace

Result<HandOver> read_hand_over(const Fd& memfd) {
  auto document = read_document(memfd);
  if (!document) return fail(std::move(document.error()));
  try {
    const Json& json = *document;
    expect_version(json);
    HandOver out;
    out.task = task_of(json);
    out.content.bytes = text_of(json.at("content"));
    json.at("fds").get_to(out.content.fds);
    out.serving = text_of(json.value("serving", binary("")));
    out.device = json.value("device", -1);
    out.answer = json.value("answer", -1);
    out.map = json.value("map", -1);
    out.map_path = json.value("map_path", "");
    out.map_exchanged = json.value("map_exchanged", true);
    out.ready = json.value("ready", -1);
    out.control = json.value("control", "");
    out.listener = json.value("listener", -1);
    out.client = json.value("client", -1);
    out.report = json.value("report", "");
    out.warnings = json.value("warnings", "");
    set_close_on_exec(out.descriptors(), true);
    return out;
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(not_understood(error.what()));
  }
}

void refuse_hand_over(const Fd& memfd, const Error& error) {
  const auto document = read_document(memfd);
  if (!document || !document->contains("answer") || !document->at("answer").is_number_integer())
    return;
  if (const int answer = document->at("answer").get<int>(); answer >= 0)
    send_load_failure(answer, error, {});
}

}  // namespace heddle
