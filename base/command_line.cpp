// SPDX-License-Identifier: MIT
#include "base/command_line.hpp"

#include <algorithm>
#include <charconv>
#include <memory>
#include <system_error>

#include "base/exit_code.hpp"
#include "base/log.hpp"

namespace heddle {
namespace {

bool takes_next_word(const CLI::App& app, const std::string& word) {
  const bool is_long = word.starts_with("--");
  if (is_long && word.find('=') != std::string::npos) return false;
  if (!is_long && word.size() > 2) return false;  // -oVALUE
  const CLI::Option* option = app.get_option_no_throw(word);
  return option && option->get_items_expected_min() > 0;
}

class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App* app, std::string name) const override {
    if (usage_.empty()) return CLI::Formatter::make_usage(app, std::move(name));
    return "Usage: " + usage_ + "\n";
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    // `--unified{3}` has the value of a flag.
    auto out = CLI::Formatter::make_option_name(option, is_positional);
    for (auto at = out.find('{'); at != out.npos; at = out.find('{', at))
      out.erase(at, out.find('}', at) + 1 - at);
    return out;
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || option->get_positional()) return {};
    if (!option->get_option_text().empty()) return " " + option->get_option_text();
    // Checks append their description to the type: `FIELD:{map,mpi}`.
    auto type = option->get_type_name();
    type.resize(std::min(type.find(":{"), type.size()));
    return type.empty() ? "" : " " + type;
  }

 private:
  std::string usage_;
};

/// The program's name and the subcommand's: `fs-resolve build`.
std::string full_name(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name() : app.get_name() + " " + full_name(*chosen.front());
}

/// CLI11's text; of a number that it cannot convert ("Could not convert: --tool = x") as that of
/// number_from().
std::string text_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  constexpr std::string_view kBegin = "Could not convert: ";
  const auto equals = text.find(" = ");
  if (!text.starts_with(kBegin) || equals == text.npos) return text;
  return text.substr(kBegin.size(), equals - kBegin.size()) + ": '" + text.substr(equals + 3) +
         "' is not a valid number";
}

/// Reports an unknown word before a missing one, since the unknown word is mostly in its place;
/// CLI11 does the opposite.
int parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const auto code = static_cast<CLI::ExitCodes>(error.get_exit_code());
  if (code == CLI::ExitCodes::RequiredError || code == CLI::ExitCodes::ExtrasError) {
    const auto extra = app.remaining(true);
    const auto is_option = [](const std::string& word) {
      return word.size() > 1 && word.starts_with("-");
    };
    const bool no_command = app.get_require_subcommand_min() > 0 && app.get_subcommands().empty();
    const auto unknown =
        no_command ? extra.begin() : std::find_if(extra.begin(), extra.end(), is_option);
    if (unknown != extra.end())
      return usage_error(full_name(app), std::string("unknown ") +
                                             (is_option(*unknown) ? "option" : "command") + " '" +
                                             *unknown + "'");
  }
  return usage_error(full_name(app), text_of(error));
}

}  // namespace

void forbid_empty_values(CLI::App& app) {
  for (auto* option :
       app.get_options([](const CLI::Option* one) { return one->get_type_size() > 0; }))
    option->check([](const std::string& value) {
      return value.empty() ? std::string("must not be empty") : std::string();
    });
}

void set_usage(CLI::App& app, std::string usage) {
  app.formatter(std::make_shared<UsageFormatter>(std::move(usage)));
}

int usage_error(const std::string& program, const std::string& what) {
  report(Error("", what, {}, "see " + program + " --help"));
  return exit_usage;
}

SplitCommandLine split_command_line(const CLI::App& app, int argc, const char* const* argv) {
  SplitCommandLine out;
  int i = 1;
  for (; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    out.options.push_back(word);
    if (takes_next_word(app, word) && i + 1 < argc) out.options.emplace_back(argv[++i]);
  }
  for (; i < argc; ++i) out.command.emplace_back(argv[i]);
  return out;
}

int parse_options(CLI::App& app, std::vector<std::string> options) {
  std::reverse(options.begin(), options.end());  // CLI11 parses from the back
  try {
    app.parse(std::move(options));
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return parse_error(app, error);
  }
  return -1;
}

std::optional<std::uint64_t> parse_byte_size(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.begin(), text.end(), number, std::chars_format::fixed);
  if (error != std::errc() || number < 0) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(text.end() - end));
  double factor = 1;
  if (!unit.empty()) {
    const auto power = std::string_view("bkmgt").find(static_cast<char>(unit[0] | 0x20));
    if (power == std::string_view::npos) return std::nullopt;
    for (std::size_t i = 0; i < power; ++i) factor *= 1024;
    unit.remove_prefix(1);
    if (power > 0 && unit != "" && unit != "B" && unit != "iB") return std::nullopt;
    if (power == 0 && !unit.empty()) return std::nullopt;
  }
  if (number * factor > 1e18) return std::nullopt;
  return static_cast<std::uint64_t>(number * factor);
}

}  // namespace heddle
