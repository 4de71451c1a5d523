// SPDX-License-Identifier: MIT
#include "compat/artifact.hpp"

#include "compat/checker.hpp"
#include "tests/compat/sample_program.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

using compat::Reason;
using compat::Verdict;

/// A target from a table.
class FakeTarget : public compat::Target {
 public:
  Result<Loaded> load(const compat::Program& program) override {
    ++loads;
    Loaded out;
    out.glibc_minor = 36;
    out.closure.objects.push_back({.path = program.path});
    for (const auto& dependency : program.elf.dependencies) {
      const auto found = libraries.find(dependency.name);
      if (found == libraries.end()) {
        out.closure.missing.push_back({dependency.name, 0, "not found"});
        continue;
      }
      LoadedObject object;
      object.path = "/lib/" + dependency.name;
      object.file.elf = found->second;
      object.names = {dependency.name};
      out.closure.objects.push_back(std::move(object));
    }
    return out;
  }
  std::string closure_key(const compat::Program& program) override { return program.name; }
  std::optional<ElfFacts> symbols(const std::string& path) override {
    return libraries.at(path.substr(5));
  }
  void prefetch_symbols(const std::vector<std::string>&) override {}
  compat::ElfNotes notes(const std::string&) override { return {}; }
  std::string find_library(const compat::Program&, const std::string& name) override {
    return libraries.contains(name) ? "/lib/" + name : "";
  }
  bool has_file(const std::string&) override { return false; }
  std::string package_of(const std::string&) override { return "pkg 1"; }
  std::uint32_t isa_levels() override { return isa; }
  std::string kernel() override { return "6.1.0-18-amd64"; }

  std::map<std::string, ElfFacts> libraries;
  std::uint32_t isa = 0xF;
  int loads = 0;
};

ElfFacts libx() {
  ElfFacts elf;
  elf.soname = "libx.so.1";
  elf.version_definitions = {"X_1", "X_2"};
  elf.exported_symbols = {{"x_one", "X_1", false}, {"x_odd", "X_2", false}};
  return elf;
}

compat::Artifact simple() {
  auto program = sample_program();
  program.elf.dependencies.resize(1);
  program.mpi_family.clear();
  program.libraries.resize(1);
  return {{program}};
}

std::vector<Reason::Kind> kinds(const compat::Judgement& judgement) {
  std::vector<Reason::Kind> out;
  for (const auto& reason : judgement.reasons) out.push_back(reason.kind);
  return out;
}

TEST(Artifact, round_trips_through_json) {
  auto program = sample_program();
  program.name = "a\tb\n\"c\\";
  program.path = "/x/\xff\xfe";  // not UTF-8
  program.elf.dependencies.push_back({Dependency::Kind::needed, "lib\\xff.so"});
  program.elf.dependencies.push_back({Dependency::Kind::needed, "lib\xc3\xa9.so"});
  const auto text = compat::to_json({{program}});
  const auto again = compat::parse_artifact(text, "a");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(compat::to_json(*again), text);
  const auto& read = again->programs[0];
  EXPECT_EQ(read.name, program.name);
  EXPECT_EQ(read.path, program.path);
  EXPECT_EQ(read.elf.dependencies, program.elf.dependencies);
  EXPECT_EQ(read.elf.version_needs, program.elf.version_needs);
  EXPECT_EQ(read.notes, program.notes);
}

TEST(Artifact, parser_refuses_invalid_documents) {
  for (const auto& [text, code] : std::vector<std::pair<std::string, int>>{
           {"", ENOEXEC},
           {"{", ENOEXEC},
           {"\xff\xfe", ENOEXEC},
           {"[]", ENOTSUP},
           {R"({"version":"0.0.1","attributes":{}})", ENOTSUP},
           {R"({"heddle":{"format":2,"programs":[]}})", ENOTSUP},
           {R"({"heddle":{"format":1,"programs":[]}})", EBADMSG},
           {R"({"heddle":{"format":"1"}})", EBADMSG},
           {R"({"heddle":{"format":1,"programs":[{"name":3}]}})", EBADMSG},
           {std::string(100'000, '['), EBADMSG}}) {
    const auto artifact = compat::parse_artifact(text, "a.json");
    ASSERT_FALSE(artifact) << text.substr(0, 60);
    EXPECT_EQ(artifact.error().code(), code) << artifact.error().message();
    EXPECT_THAT(artifact.error().message(), HasSubstr("a.json"));
  }
}

/// A program that needs libx.so.1, a target that has it, and the case's change.
struct CheckerCase {
  const char* name;
  std::function<void(FakeTarget& target, ElfFacts& libx, compat::Program& program)> change;
  Verdict verdict;
  std::vector<Reason::Kind> kinds;
  const char* text = "";  ///< of the last reason
};

TEST(CompatChecker, gives_the_verdicts_of_ld_so) {
  using Kind = Reason::Kind;
  const CheckerCase cases[] = {
      {"nothing is missing", [](auto&, auto&, auto&) {}, Verdict::compatible, {}},
      {"a library is missing",
       [](auto& target, auto&, auto&) { target.libraries.clear(); },
       Verdict::incompatible,
       {Kind::library_missing},
       "app: libx.so.1: library not found"},
      {"a version is missing",
       [](auto&, auto& libx, auto&) { libx.version_definitions = {"X_2"}; },
       Verdict::incompatible,
       {Kind::version_missing},
       "app: X_1: symbol version missing in libx.so.1 (here: /lib/libx.so.1 of pkg 1)"},
      {"a weak version is missing",
       [](auto&, auto& libx, auto&) { libx.version_definitions = {"X_1"}; },
       Verdict::degraded,
       {Kind::weak_version_missing}},
      {"the library has no versions",
       [](auto&, auto& libx, auto&) {
         libx.version_definitions = {};
         libx.version_needs = {{"libc.so.6", "GLIBC_2.2.5", true}};
         libx.exported_symbols = {{"x_one", "", false}, {"x_odd", "", false}};
       },
       Verdict::degraded,
       {Kind::no_version_information, Kind::no_version_information}},
      {"the library has no version table",
       [](auto&, auto& libx, auto&) {
         libx.version_definitions = {};
         libx.exported_symbols = {{"x_one", "", false}, {"x_odd", "", false}};
       },
       Verdict::incompatible,
       {Kind::no_version_information, Kind::no_version_information}},
      {"a symbol has another version; weak ones do not count",
       [](auto&, auto& libx, auto&) { libx.exported_symbols[0].version = "X_2"; },
       Verdict::incompatible,
       {Kind::symbol_missing},
       "app: x_one@X_1: symbol missing"},
      {"the program defines a symbol that its library needs",
       [](auto&, auto& libx, auto&) {
         libx.undefined_symbols = {{"app_api", "", false}};
       },
       Verdict::compatible,
       {}},
      {"no file defines a symbol that the library needs",
       [](auto&, auto& libx, auto&) {
         libx.undefined_symbols = {{"app_api_2", "", false}};
       },
       Verdict::incompatible,
       {Kind::symbol_missing},
       "app: app_api_2: symbol missing, required by libx.so.1"},
      {"the CPU lacks the level",
       [](auto& target, auto&, auto&) { target.isa = 3; },
       Verdict::incompatible,
       {Kind::isa_too_new},
       "app: x86-64-v3: CPU instructions missing: this CPU has x86-64-v2"},
      {"another MPI family is there",
       [](auto& target, auto& libx, auto& program) {
         target.libraries["libmpich.so.12"] = libx;
         program.elf.dependencies = {{Dependency::Kind::needed, "libmpi.so.40"}};
         program.mpi_family = "Open MPI";
       },
       Verdict::incompatible,
       {Kind::library_missing, Kind::mpi_family_differs},
       "app: Open MPI: another MPI family: MPICH is here (here: /lib/libmpich.so.12 of pkg 1)"},
      {"a library that a run loaded by dlopen is missing",
       [](auto&, auto&, auto& program) {
         auto& plugin = program.libraries.emplace_back();
         plugin.soname = "libplugin.so";
         plugin.path = "/opt/libplugin.so";
         plugin.dlopened = true;
       },
       Verdict::degraded,
       {Kind::dlopened_missing}},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.name);
    FakeTarget target;
    auto artifact = simple();
    one.change(target, target.libraries["libx.so.1"] = libx(), artifact.programs[0]);
    const auto judgement = value_or_throw(compat::Checker(target).check(artifact));
    EXPECT_EQ(judgement.verdict, one.verdict);
    EXPECT_EQ(kinds(judgement), one.kinds) << to_json(judgement, 1);
    if (*one.text != '\0' && !judgement.reasons.empty()) {
      EXPECT_EQ(to_text(judgement.reasons.back()), one.text);
    }
  }
}

TEST(CompatChecker, resolves_equal_closures_once) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  compat::Checker checker(target);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(checker.check(simple()));
  EXPECT_EQ(target.loads, 1);
}

}  // namespace
}  // namespace heddle::test
