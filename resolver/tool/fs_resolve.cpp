// SPDX-License-Identifier: MIT
#include <functional>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/run_main.hpp"
#include "resolver/tool/commands.hpp"

namespace heddle {
namespace {

/// The sub-commands, each with its options bound to one of the structs above it.
class CommandLine {
 public:
  CommandLine();
  int run(const std::vector<std::string>& words) {
    if (const int status = parse_options(app_, words); status >= 0) return status;
    const int status = action_();
    value_or_throw(flush_stdout());
    return status;
  }

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
  ExplainCommand explain_;
};

void CommandLine::add_build() {
  CLI::App* sub =
      add("build", "Make a map of programs, scripts or directories, or for a container", [this] {
        if (build_.into.empty()) return run_build(build_);
        if (build_.mpi.empty()) build_.mpi = "auto";
        return run_container(build_);
      });
  sub->add_option("-o,--out", build_.out, "Where the map goes; an old one is replaced")
      ->required()
      ->type_name("MAP");
  sub->add_option("APP", build_.apps, "Programs, scripts (through #!), libraries or directories")
      ->type_name("");
  sub->add_option(
         "--plugins", build_.plugin_directories,
         "Put this directory's files into every view, under the directory's name (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub->add_flag("--allow-missing", build_.allow_missing,
                "Write the map even if a library is not found anywhere");
  sub->add_option("--mpi", build_.mpi,
                  "The host's MPI: auto, none, or the one below PREFIX. Its plugins go into every "
                  "view (default: none; with --into: auto)")
      ->type_name("WHICH");
  sub->add_flag("--json", build_.json, "Print what was built as JSON");

  // CLI11's excludes() and needs() would stand in the help where the explanation begins.
  CLI::Option* into =
      sub->add_option("--into", build_.into,
                      "Decide what a container with this root gets of the host, in place of APP")
          ->type_name("ROOTFS");
  const std::vector<CLI::Option*> for_into = {
      sub->add_option("--program", build_.programs,
                      "With --into: a program in it, by its path there (repeatable)")
          ->type_name("PATH")
          ->allow_extra_args(false),
      sub->add_option("--at", build_.mount_point, "With --into: where the map will be mounted")
          ->type_name("DIR")
          ->capture_default_str(),
      sub->add_option("--library-path", build_.library_path,
                      "With --into: LD_LIBRARY_PATH that the container runs with")
          ->type_name("DIRS"),
      sub->add_option("--root", build_.roots,
                      "With --into: this library is to be the host's too, a soname or a path "
                      "(repeatable)")
          ->type_name("SONAME")
          ->allow_extra_args(false)};
  // Scripts of earlier versions may say it; in no help.
  sub->add_option_function<std::string>(
         "--rpath",
         [](const std::string& way) {
           if (way != "bind")
             throw CLI::ValidationError("--rpath",
                                        "'" + way + "' is not supported any more: use bind");
         })
      ->group("");
  sub->parse_complete_callback([this, into, for_into] {
    if (into->count() == 0) {
      for (const auto* option : for_into)
        if (option->count() != 0)
          throw CLI::ValidationError(option->get_name(), "is for build --into ROOTFS");
      if (build_.apps.empty()) throw CLI::RequiredError("APP");
      return;
    }
    if (!build_.apps.empty() || !build_.plugin_directories.empty() || build_.allow_missing)
      throw CLI::ValidationError("--into", "goes with --program, not with APP and its options");
    if (build_.programs.empty()) throw CLI::RequiredError("--program");
  });
}

CommandLine::CommandLine() {
  app_.set_version_flag("--version", "fs-resolve (heddle) " HEDDLE_VERSION);
  set_usage(app_, "");
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

  sub = add("explain", "What was decided for a container, and why",
            [this] { return run_explain(explain_); });
  sub->add_option("MAP", explain_.map, "A map of build --into")->required()->type_name("");
  sub->add_flag("--json", explain_.json, "As JSON, as build --into --json printed it");

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
  sub->add_option("--prefix", mpi_.prefix, "Only those below this directory")->type_name("DIR");
  sub->add_option("--root", mpi_.root, "This library in place of an MPI: a soname or a path")
      ->type_name("SONAME");
  sub->add_option("--trace", mpi_.program,
                  "Only the MPI that this program loads, with what a run of two ranks opens")
      ->type_name("PROGRAM");
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

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("fs-resolve", [&] {
    return heddle::CommandLine().run({argv + 1, argv + argc});
  });
}
