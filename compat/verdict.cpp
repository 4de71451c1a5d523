// SPDX-License-Identifier: MIT
#include "compat/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"

namespace heddle::compat {
namespace {

constexpr const char* kVerdicts[] = {"compatible", "degraded", "incompatible"};

struct KindNames {
  const char* name;
  const char* words;  ///< `{}`: Reason::library
};
/// By Reason::Kind.
constexpr KindNames kKinds[] = {
    {"machine_differs", "it is built for another machine"},
    {"interpreter_missing", "its loader is missing"},
    {"library_missing", "library not found"},
    {"library_unusable", "the library cannot be used"},
    {"version_missing", "symbol version missing in {}"},
    {"symbol_missing", "symbol missing"},
    {"isa_too_new", "CPU instructions missing"},
    {"kernel_too_old", "the kernel is too old"},
    {"mpi_family_differs", "another MPI family"},
    {"dlopened_missing", "a library that a recorded run opened by dlopen is missing"},
    {"weak_version_missing", "weak symbol version missing in {}"},
    {"no_version_information", "no version information in {}"},
    {"not_judged", "not judged"},
};
static_assert(std::size(kKinds) == static_cast<std::size_t>(Reason::Kind::not_judged) + 1);

}  // namespace

const char* to_string(Verdict verdict) { return kVerdicts[static_cast<std::size_t>(verdict)]; }

const char* to_string(Reason::Kind kind) { return kKinds[static_cast<std::size_t>(kind)].name; }

std::optional<Reason::Kind> reason_kind(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kKinds); ++i)
    if (name == kKinds[i].name) return static_cast<Reason::Kind>(i);
  return std::nullopt;
}

std::string to_text(const Reason& reason) {
  const auto& words = kKinds[static_cast<std::size_t>(reason.kind)].words;
  std::string line = fmt::format("{}: {}: ", reason.program, reason.subject) +
                     fmt::format(fmt::runtime(words), reason.library);
  if (!reason.required_by.empty() && reason.required_by != reason.program)
    line += fmt::format(", required by {}", reason.required_by);
  if (!reason.detail.empty()) line += ": " + reason.detail;
  if (!reason.path.empty())
    line += reason.package.empty() ? fmt::format(" (here: {})", reason.path)
                                   : fmt::format(" (here: {} of {})", reason.path, reason.package);
  return escape_for_terminal(line);
}

void Judgement::add(Reason reason) {
  verdict = std::max(verdict, reason.weight);
  if (reasons.size() < kMostReasons)
    reasons.push_back(std::move(reason));
  else
    ++more;
}

std::string to_lines(const Judgement& judgement) {
  std::string text = fmt::format("{}\n", to_string(judgement.verdict));
  for (const auto& reason : judgement.reasons) text += to_text(reason) + "\n";
  if (judgement.more > 0) text += fmt::format("{} more reasons\n", judgement.more);
  return text;
}

std::string to_json(const Judgement& judgement, int indent) {
  using Json = nlohmann::ordered_json;
  Json reasons = Json::array();
  for (const auto& reason : judgement.reasons) {
    Json one = {{"kind", to_string(reason.kind)},
                {"weight", to_string(reason.weight)},
                {"program", to_json_text(reason.program)},
                {"subject", to_json_text(reason.subject)}};
    const auto put = [&](const char* key, const std::string& value) {
      if (!value.empty()) one[key] = to_json_text(value);
    };
    put("library", reason.library);
    put("required_by", reason.required_by);
    put("path", reason.path);
    put("package", reason.package);
    put("detail", reason.detail);
    one["text"] = to_text(reason);
    reasons.push_back(std::move(one));
  }
  Json all = {{"verdict", to_string(judgement.verdict)}, {"reasons", std::move(reasons)}};
  if (judgement.more > 0) all["more_reasons"] = judgement.more;
  return all.dump(indent);
}

int print_judgement(const Judgement& judgement, bool json) {
  value_or_throw(write_all(STDOUT_FILENO, json ? to_json(judgement, 2) + "\n" : to_lines(judgement),
                           "stdout"));
  return judgement.verdict == Verdict::incompatible ? exit_no : exit_done;
}

}  // namespace heddle::compat
