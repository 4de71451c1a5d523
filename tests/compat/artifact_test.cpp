// SPDX-License-Identifier: MIT
#include "compat/artifact.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compat/artifact.hpp"
#include "compat/checker.hpp"

namespace heddle::test {
namespace {

using compat::Reason;
using compat::Verdict;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

compat::Program app() {
  compat::Program program;
  program.name = "app";
  program.path = "/usr/bin/app";
  program.hash = std::string(32, '0');
  auto& elf = program.elf;
  elf.elf_class = 2;
  elf.data_encoding = 1;
  elf.type = 3;
  elf.machine = 62;
  elf.dynamic = true;
  elf.interp = "/lib64/ld-linux-x86-64.so.2";
  elf.dependencies = {{Dependency::Kind::needed, "libx.so.1"}, {Dependency::Kind::filter, "libf"}};
  elf.runpath = "$ORIGIN/../lib";
  elf.version_needs = {{"libx.so.1", "X_1", false}, {"libx.so.1", "X_2", true}};
  elf.undefined_symbols = {{"x_one", "X_1", false}, {"x_odd", "", false}, {"x_weak", "", true}};
  elf.exported_symbols = {{"app_api", "", false}};
  elf.tls = TlsSegment{16, 8};
  program.notes.isa_needed = 5;
  program.notes.kernel = "3.2.0";
  program.mpi_family = "Open MPI";
  program.mpi_soname = "libmpi.so.40";
  compat::Library found;
  found.soname = "libx.so.1";
  found.path = "/lib/libx.so.1";
  found.versions = {"X_1"};
  compat::Library lost;
  lost.soname = "liby.so.1";
  lost.reason = "not found";
  program.libraries = {found, lost};
  return program;
}

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
  auto program = app();
  program.elf.dependencies.resize(1);
  program.mpi_family.clear();
  program.libraries.resize(1);
  return {{program}};
}

compat::Judgement judge(FakeTarget& target, const compat::Artifact& artifact) {
  return value_or_throw(compat::Checker(target).check(artifact));
}

std::vector<Reason::Kind> kinds(const compat::Judgement& judgement) {
  std::vector<Reason::Kind> out;
  for (const auto& reason : judgement.reasons) out.push_back(reason.kind);
  return out;
}

TEST(Artifact, reads_back_what_it_wrote) {
  const compat::Artifact artifact{{app()}};
  const auto text = compat::to_json(artifact);
  const auto again = compat::parse_artifact(text, "a");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(compat::to_json(*again), text);
  EXPECT_EQ(again->programs[0].elf.dependencies, artifact.programs[0].elf.dependencies);
  EXPECT_EQ(again->programs[0].elf.version_needs, artifact.programs[0].elf.version_needs);
  EXPECT_EQ(again->programs[0].notes, artifact.programs[0].notes);
}

TEST(Artifact, carries_names_that_are_no_utf_8_and_odd_ones) {
  auto program = app();
  program.name = "a\tb\n\"c\\";
  program.path = "/x/\xff\xfe";
  program.elf.dependencies = {{Dependency::Kind::needed, "lib\\xff.so"},
                              {Dependency::Kind::needed, "lib\xc3\xa9.so"}};
  const auto again = compat::parse_artifact(compat::to_json({{program}}), "a");
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->programs[0].name, program.name);
  EXPECT_EQ(again->programs[0].path, program.path);
  EXPECT_EQ(again->programs[0].elf.dependencies, program.elf.dependencies);
}

TEST(Artifact, numbers_compat_libs_attributes_in_order) {
  auto program = app();
  program.libraries.clear();
  for (int i = 0; i < 12; ++i) {
    compat::Library library;
    library.soname = "lib" + std::to_string(i);
    library.path = "/l";
    program.libraries.push_back(library);
  }
  const auto json = nlohmann::ordered_json::parse(compat::to_json({{program}}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json["attributes"].items()) {
    EXPECT_TRUE(value.is_string()) << key;
    keys.push_back(key);
  }
  ASSERT_EQ(keys.size(), 13U);
  EXPECT_EQ(keys[0], "llnl.compatlib.executable-name");
  EXPECT_EQ(keys[3], "llnl.compatlib.library-name.2");
  EXPECT_EQ(keys[12], "llnl.compatlib.library-name.11");
  EXPECT_EQ(json["attributes"]["llnl.compatlib.library-name.11"], "lib11");
}

TEST(Artifact, refuses_what_is_none) {
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

TEST(Artifact, damage_anywhere_is_an_error_or_another_artifact_never_a_crash) {
  const auto text = compat::to_json({{app()}});
  for (std::size_t at = 0; at < text.size(); ++at) {
    auto damaged = text;
    damaged[at] = damaged[at] == '"' ? '7' : '"';
    static_cast<void>(compat::parse_artifact(damaged, "a"));
    static_cast<void>(compat::parse_artifact(text.substr(0, at), "a"));
  }
}

TEST(CompatChecker, all_there_is_compatible) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::compatible) << to_json(judgement, 1);
  EXPECT_TRUE(judgement.reasons.empty()) << to_json(judgement, 1);
}

TEST(CompatChecker, a_missing_library_is_named_with_who_wants_it) {
  FakeTarget target;
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::incompatible);
  EXPECT_THAT(kinds(judgement), ElementsAre(Reason::Kind::library_missing));
  EXPECT_EQ(to_text(judgement.reasons[0]), "app: libx.so.1: library not found");
}

TEST(CompatChecker, a_missing_version_names_the_file_and_package_that_lack_it) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  target.libraries["libx.so.1"].version_definitions = {"X_2"};
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::incompatible);
  EXPECT_EQ(to_text(judgement.reasons[0]),
            "app: X_1: symbol version missing in libx.so.1 (here: /lib/libx.so.1 of pkg 1)");
}

TEST(CompatChecker, a_missing_weak_version_or_no_versions_at_all_only_degrade) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  target.libraries["libx.so.1"].version_definitions = {"X_1"};
  EXPECT_EQ(judge(target, simple()).verdict, Verdict::degraded);
  target.libraries["libx.so.1"].version_definitions = {};
  target.libraries["libx.so.1"].exported_symbols = {{"x_one", "", false}, {"x_odd", "", false}};
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::degraded);
  EXPECT_EQ(judgement.reasons[0].kind, Reason::Kind::no_version_information);
}

TEST(CompatChecker, a_symbol_counts_with_its_version_and_weak_ones_do_not) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  target.libraries["libx.so.1"].exported_symbols = {{"x_one", "X_2", false},
                                                    {"x_odd", "X_2", false}};
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::incompatible);
  ASSERT_THAT(kinds(judgement), ElementsAre(Reason::Kind::symbol_missing));
  EXPECT_EQ(judgement.reasons[0].subject, "x_one@X_1");
}

TEST(CompatChecker, the_program_may_define_what_its_libraries_want) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  target.libraries["libx.so.1"].undefined_symbols = {{"app_api", "", false}};
  EXPECT_EQ(judge(target, simple()).verdict, Verdict::compatible);
  target.libraries["libx.so.1"].undefined_symbols = {{"app_api_2", "", false}};
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::incompatible);
  EXPECT_EQ(judgement.reasons[0].required_by, "libx.so.1");
}

TEST(CompatChecker, a_cpu_without_the_level_is_told) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  target.isa = 3;
  const auto judgement = judge(target, simple());
  EXPECT_EQ(judgement.verdict, Verdict::incompatible);
  EXPECT_EQ(to_text(judgement.reasons[0]),
            "app: x86-64-v3: CPU instructions missing: this CPU has x86-64-v2");
}

TEST(CompatChecker, another_mpi_family_is_named) {
  FakeTarget target;
  target.libraries["libmpich.so.12"] = libx();
  auto artifact = simple();
  artifact.programs[0].elf.dependencies = {{Dependency::Kind::needed, "libmpi.so.40"}};
  artifact.programs[0].mpi_family = "Open MPI";
  const auto judgement = judge(target, artifact);
  EXPECT_THAT(kinds(judgement),
              ElementsAre(Reason::Kind::library_missing, Reason::Kind::mpi_family_differs));
  EXPECT_THAT(to_text(judgement.reasons[1]), HasSubstr("MPICH is here"));
}

TEST(CompatChecker, a_library_that_a_run_loaded_by_dlopen_only_degrades) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  auto artifact = simple();
  compat::Library plugin;
  plugin.soname = "libplugin.so";
  plugin.path = "/opt/libplugin.so";
  plugin.dlopened = true;
  artifact.programs[0].libraries.push_back(plugin);
  const auto judgement = judge(target, artifact);
  EXPECT_EQ(judgement.verdict, Verdict::degraded);
  EXPECT_THAT(kinds(judgement), ElementsAre(Reason::Kind::dlopened_missing));
}

TEST(CompatChecker, programs_with_the_same_closure_share_it) {
  FakeTarget target;
  target.libraries["libx.so.1"] = libx();
  compat::Checker checker(target);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(checker.check(simple()));
  EXPECT_EQ(target.loads, 1);
}

}  // namespace
}  // namespace heddle::test
