// SPDX-License-Identifier: MIT
//
// Inputs of the container hook: a runtime's state, a bundle's config.json, a cached decision, and
// the files of /proc that `verify` reads. The first byte selects one.
#include "container-hooks/cache/decision.hpp"
#include "container-hooks/oci/container_program.hpp"
#include "container-hooks/oci/hook_settings.hpp"
#include "container-hooks/verify/verify.hpp"
#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {

using hook::annotated;
using hook::compare_with_decision;
using hook::container_program;
using hook::heddle_mount_point;
using hook::mapped_libraries;
using hook::parse_config;
using hook::parse_decision;
using hook::parse_state;
namespace {

constexpr const char* kState =
    R"({"ociVersion":"1.0.2","id":"c1","status":"creating","pid":4711,"bundle":"/run/b",)"
    R"("annotations":{"heddle.mpi":"host","heddle.policy":"warn","heddle.program":"/bin/app"}})";
constexpr const char* kConfig =
    R"({"ociVersion":"1.0.2","root":{"path":"rootfs","readonly":true},"process":{"args":["app",)"
    R"("x"],"cwd":"/","env":["PATH=/usr/bin:/bin","A=b"]},"annotations":{"heddle.mpi":"off"}})";
constexpr const char* kDecision =
    R"({"format":"heddle-container","version":1,"outcome":"swap","mount_point":"/opt/heddle",)"
    R"("mpi":{"family":"MPICH","version":"4.0.2"},"interpreter":{"real_path":"/lib/ld.so"},)"
    R"("program":["/bin/app"],"binds":[{"source":"v/libmpi.so.12","target":"/lib/libmpi.so.12",)"
    R"("why":"w"}],"directories":[{"source":"v/ucx","target":"/lib/ucx","exists":true}],)"
    R"("environment":{"LD_LIBRARY_PATH":"/x"},"verdict":[{"soname":"libmpi.so.12","taken":"host",)"
    R"("container":"/lib/libmpi.so.12","why":"w"}],"loads":[{"path":"/lib/l.so"}],"warnings":["w"]})";
constexpr const char* kMaps =
    "7f0000000000-7f0000001000 r-xp 00000000 00:31 16 /opt/heddle/v/libmpi.so.12\n"
    "7f0000002000-7f0000003000 r--p 00000000 08:01 99 /lib/x86_64-linux-gnu/libc.so.6\n"
    "7ffe00000000-7ffe00001000 rw-p 00000000 00:00 0 [stack]\n";
constexpr const char* kMountinfo =
    "22 28 0:20 / /proc rw,nosuid - proc proc rw\n"
    "40 28 0:31 / /opt/heddle ro,nosuid - fuse.heddle heddle ro,user_id=0\n";

void state(const std::string& text) {
  const auto parsed = parse_state(text);
  if (!parsed) return;
  check(parsed->bundle.starts_with('/'), "a relative bundle path was accepted");
  (void)annotated({}, parsed->annotations);
}

void config(const std::string& text) {
  auto parsed = parse_config(text, "/nonexistent");
  if (!parsed) return;
  check(parsed->rootfs.starts_with('/'), "a relative root path was accepted");
  (void)annotated({}, parsed->annotations);
  parsed->rootfs = "/nonexistent";
  (void)container_program(*parsed);
}

void decision(const std::string& text) {
  const auto parsed = parse_decision(text, "decision");
  if (!parsed) return;
  for (const auto& bind : parsed->binds)
    check(bind.target.starts_with('/') && !bind.source.starts_with('/') &&
              ("/" + bind.source + "/" + bind.target + "/").find("/../") == std::string::npos,
          "a bind that leads out was accepted");
  (void)compare_with_decision(mapped_libraries(kMaps, kMountinfo), *parsed);
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  constexpr void (*kReaders[])(const std::string&) = {
      state, config, decision,
      [](const std::string& maps) { (void)mapped_libraries(maps, kMountinfo); },
      [](const std::string& mounts) {
        (void)heddle_mount_point(mounts);
        (void)mapped_libraries(kMaps, mounts);
      }};
  const auto reader = kReaders[input.number<std::uint8_t>() % std::size(kReaders)];
  reader(std::string(input.rest()));
}

std::vector<std::string> seeds() {
  return {std::string("\0", 1) + kState, std::string("\1") + kConfig, std::string("\2") + kDecision,
          std::string("\3") + kMaps, std::string("\4") + kMountinfo};
}

}  // namespace heddle::fuzz
