// SPDX-License-Identifier: MIT
#include "compat/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"

namespace heddle::compat {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::compatible:
      return "compatible";
    case Verdict::degraded:
      return "degraded";
    case Verdict::incompatible:
      return "incompatible";
  }
  return "incompatible";
}

const char* to_string(Reason::Kind kind) {
  using Kind = Reason::Kind;
  switch (kind) {
    case Kind::machine_differs:
      return "machine_differs";
    case Kind::interpreter_missing:
      return "interpreter_missing";
    case Kind::library_missing:
      return "library_missing";
    case Kind::library_unusable:
      return "library_unusable";
    case Kind::version_missing:
      return "version_missing";
    case Kind::symbol_missing:
      return "symbol_missing";
    case Kind::isa_too_new:
      return "isa_too_new";
    case Kind::kernel_too_old:
      return "kernel_too_old";
    case Kind::mpi_family_differs:
      return "mpi_family_differs";
    case Kind::dlopened_missing:
      return "dlopened_missing";
    case Kind::weak_version_missing:
      return "weak_version_missing";
    case Kind::no_version_information:
      return "no_version_information";
    case Kind::not_judged:
      return "not_judged";
  }
  return "not_judged";
}

std::optional<Reason::Kind> reason_kind(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Reason::Kind::not_judged); ++i)
    if (name == to_string(static_cast<Reason::Kind>(i))) return static_cast<Reason::Kind>(i);
  return std::nullopt;
}

namespace {

std::string what(const Reason& reason) {
  using Kind = Reason::Kind;
  switch (reason.kind) {
    case Kind::machine_differs:
      return "it is built for another machine";
    case Kind::interpreter_missing:
      return "its loader is missing";
    case Kind::library_missing:
      return "library not found";
    case Kind::library_unusable:
      return "the library cannot be used";
    case Kind::version_missing:
      return fmt::format("symbol version missing in {}", reason.library);
    case Kind::symbol_missing:
      return "symbol missing";
    case Kind::isa_too_new:
      return "CPU instructions missing";
    case Kind::kernel_too_old:
      return "the kernel is too old";
    case Kind::mpi_family_differs:
      return "another MPI family";
    case Kind::dlopened_missing:
      return "library not found that a run loaded by dlopen";
    case Kind::weak_version_missing:
      return fmt::format("weak symbol version missing in {}", reason.library);
    case Kind::no_version_information:
      return fmt::format("no version information in {}", reason.library);
    case Kind::not_judged:
      return "not judged";
  }
  return "not judged";
}

}  // namespace

std::string to_text(const Reason& reason) {
  std::string line = fmt::format("{}: {}: {}", reason.program, reason.subject, what(reason));
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

std::string more_line(std::uint64_t more) {
  return more == 0 ? std::string() : fmt::format("{} more reasons", more);
}

std::string to_lines(const Judgement& judgement) {
  std::string text = fmt::format("{}\n", to_string(judgement.verdict));
  for (const auto& reason : judgement.reasons) text += to_text(reason) + "\n";
  if (judgement.more > 0) text += more_line(judgement.more) + "\n";
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

}  // namespace heddle::compat
