// SPDX-License-Identifier: MIT
//
// The index as the auditor reads it in every guided process.
#include <cstdlib>
#include <memory>

#include "fuseovl/audit/index_view.hpp"
#include "resolver/map/index_writer.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::fuzz {
namespace {

constexpr unsigned kLibraries = 8;

void look_up(audit::IndexView& view, const char* name, const char* caller = nullptr) {
  const char* target = view.target(name, caller);
  if (!target) return;
  check(*target == '/' && std::strlen(target) > 0, "a name leads to no path");
  if (const char* origin = view.original(target)) check(*origin == '/', "an origin is no path");
}

}  // namespace

void run(std::string_view bytes) {
  // Aligned as by mmap: the format has 8-byte records.
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(16, (bytes.size() + 31) / 16 * 16)), &std::free);
  bytes.copy(memory.get(), bytes.size());
  audit::IndexView view;
  if (!view.open(memory.get(), bytes.size())) return;
  const MapContent sample = sample_map(kLibraries);
  const std::string tail(bytes.substr(bytes.size() - std::min<std::size_t>(bytes.size(), 24)));
  for (const auto& object : sample.objects) {
    const auto& stamp = object.stamp;
    if (view.choose(stamp.id.dev, stamp.id.ino, stamp.mtime_ns)) {
      (void)view.search_path();
      (void)view.optional_static_tls();
      for (const auto& [name, unused] : sample.programs[0].guided) {
        look_up(view, name.c_str());
        look_up(view, name.c_str(), name.c_str() + name.find('\0') + 1);
      }
      look_up(view, tail.c_str());
      look_up(view, "");
    }
    (void)view.target_of_file(stamp.id.dev, stamp.id.ino, stamp.mtime_ns);
  }
}

std::vector<std::string> seeds() {
  const MapContent sample = sample_map(kLibraries);
  IndexInput input{
      sample, "/run/heddle/m", {sample.objects[0].stamp}, std::vector<bool>(sample.objects.size())};
  std::vector<std::string> out = {value_or_throw(make_index(input))};
  for (const auto& object : sample.objects) input.objects.push_back(object.stamp);
  input.direct[1] = input.direct[5] = true;
  out.push_back(value_or_throw(make_index(input)));
  return out;
}

}  // namespace heddle::fuzz
