// SPDX-License-Identifier: MIT
#include "resolver/tool/fs_resolve.hpp"

#include <functional>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

/// The sub-commands, each with its options bound to one of the structs above it.
class CommandLine {
 public:
  CommandLine();
  CLI::App& app() { return app_; }
  int run();

 private:
  CLI::App* add(const std::string& name, const std::string& text, std::function<int()> action) {
    CLI::App* sub = app_.add_subcommand(name, text);
    sub->callback([this, action = std::move(action)] { action_ = action; });
    return sub;
  }
  void add_build();

  CLI::App app_{
      "Resolve what ld.so would search for, once: make maps, look into them, explain them.\n"
      "Nothing is executed: neither the programs nor their loader.",
      "fs-resolve"};
  std::function<int()> action_;
  BuildCommand build_;
  ShowCommand show_;
  LookupCommand lookup_;
  WhyCommand why_;
  TreeCommand tree_;
  VerifyCommand verify_;
  MpiCommand mpi_;
  PushCommand push_;
  PullCommand pull_;
};

void CommandLine::add_build() {
  CLI::App* sub = add("build", "Make a map of programs, scripts or folders",
                      [this] { return run_build(build_); });
  sub->add_option("-o,--out", build_.out, "Where the map goes; an old one is replaced")
      ->required()
      ->type_name("MAP");
  sub->add_option("APP", build_.apps, "Programs, scripts (through #!), libraries or folders")
      ->required()
      ->type_name("");
  sub->add_option("--plugins", build_.plugin_folders,
                  "Put this folder's files into every view, under the folder's name (repeatable)")
      ->type_name("DIR")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_flag("--allow-missing", build_.allow_missing,
                "Write the map even if a library is not found anywhere");
  sub->add_flag("--json", build_.json, "Print what was built as JSON");
}

CommandLine::CommandLine() {
  app_.set_version_flag("--version", "fs-resolve (heddle) " HEDDLE_VERSION);
  app_.require_subcommand(1);
  add_build();

  CLI::App* sub = add("show", "Print a map", [this] { return run_show(show_); });
  sub->add_option("MAP", show_.map, "The map")->required()->type_name("");
  sub->add_flag("--json", show_.json, "As JSON: the same input always gives the same bytes");

  sub = add("lookup", "Which file a name means in a map", [this] { return run_lookup(lookup_); });
  sub->add_option("MAP", lookup_.map, "The map")->required()->type_name("");
  sub->add_option("NAME", lookup_.name, "A soname, or an absolute path")->required()->type_name("");
  sub->add_option("--view", lookup_.view, "In this view, where the map has several")
      ->type_name("VIEW");
  sub->add_flag("--json", lookup_.json, "As JSON");

  sub = add("why", "Every path ld.so would try, and why it takes the one it takes",
            [this] { return run_why(why_); });
  sub->add_option("APP", why_.app, "The program")->required()->type_name("");
  sub->add_option("NAME", why_.name, "Only the search for this library")->type_name("");
  sub->add_flag("--json", why_.json, "As JSON");

  sub = add("tree", "The libraries of a program, by who needs whom",
            [this] { return run_tree(tree_); });
  sub->add_option("APP", tree_.app, "The program")->required()->type_name("");
  sub->add_flag("-p,--path", tree_.paths, "Print paths instead of names");
  sub->add_flag("--json", tree_.json, "As JSON");

  sub = add("verify", "Whether the files of a map are what they were, and found where they were",
            [this] { return run_verify(verify_); });
  sub->add_option("MAP", verify_.map, "The map")->required()->type_name("");
  sub->add_flag("--files", verify_.files_only, "Only the files: do not search again");
  sub->add_flag("--json", verify_.json, "As JSON");

  sub = add("mpi", "Which MPI installations this machine has, and what belongs to each",
            [this] { return run_mpi(mpi_); });
  sub->add_flag("--list", mpi_.list, "One line each: family, version, library");
  sub->add_option("--prefix", mpi_.prefix, "Only those below this folder")->type_name("DIR");
  sub->add_option("--root", mpi_.root, "This library in place of an MPI: a soname or a path")
      ->type_name("SONAME");
  sub->add_flag("--json", mpi_.json, "As JSON");

  sub = add("push", "Push a map to a registry, and print its reference by digest",
            [this] { return run_push(push_); });
  sub->add_option("MAP", push_.map, "The map")->required()->type_name("");
  sub->add_option("REF", push_.reference, "HOST[:PORT]/REPOSITORY[:TAG]")
      ->required()
      ->type_name("");

  sub = add("pull", "Pull a map from a registry", [this] { return run_pull(pull_); });
  sub->add_option("REF", pull_.reference, "HOST[:PORT]/REPOSITORY[:TAG][@sha256:...]")
      ->required()
      ->type_name("");
  sub->add_option("-o,--out", pull_.out, "Where the map goes; an old one is replaced")
      ->required()
      ->type_name("MAP");
}

int CommandLine::run() {
  try {
    return action_();
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace

int fs_resolve(int argc, const char* const* argv) {
  set_program_name("fs-resolve");
  CommandLine line;
  const int status = parse_options(line.app(), {argv + 1, argv + argc});
  return status >= 0 ? status : line.run();
}

}  // namespace heddle
