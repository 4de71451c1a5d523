// SPDX-License-Identifier: MIT
//
// An artifact of any content. An accepted one must round-trip.
#include "compat/artifact.hpp"
#include "tests/compat/sample_program.hpp"
#include "tests/fuzz/target.hpp"

namespace heddle::fuzz {

void run(std::string_view bytes) {
  const auto artifact = compat::parse_artifact(bytes, "artifact");
  if (!artifact) return;
  const std::string text = compat::to_json(*artifact);
  const auto again = compat::parse_artifact(text, "artifact");
  check(again.has_value(), "the reader refuses the writer's text");
  check(compat::to_json(*again) == text, "a second writing gives another text");
}

std::vector<std::string> seeds() {
  auto program = test::sample_program();
  program.libraries[0].path = "/lib/odd\xff.so";
  return {compat::to_json({{program}}), compat::to_json({{program, program}})};
}

}  // namespace heddle::fuzz
