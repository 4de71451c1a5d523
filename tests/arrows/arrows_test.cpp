// SPDX-License-Identifier: MIT
#include "tests/arrows/arrows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace heddle::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kFirstLine = "// SPDX-License-Identifier: MIT\n";

std::vector<std::string> breaches_of(const std::string& path, const std::string& content) {
  return breaches({{path, kFirstLine + content}});
}

TEST(Arrows, this_tree_keeps_its_layout) {
  const char* root = std::getenv("HEDDLE_SOURCE");
  const auto files = read_sources(root ? root : ".");
  ASSERT_GT(files.size(), 30U) << "run by meson test, or from the project's root";
  EXPECT_THAT(breaches(files), IsEmpty());
}

TEST(Arrows, what_is_allowed_passes) {
  EXPECT_THAT(breaches_of("resolver/elf/a.cpp",
                          "#include <LIEF/ELF.hpp>\n#include \"base/fd.hpp\"\n"
                          "#include \"resolver/elf/elf_facts.hpp\"\n"),
              IsEmpty());
  EXPECT_THAT(breaches_of("fsgen/a.cpp", "#include \"fuseovl/mount/x.hpp\"\n"), IsEmpty());
  EXPECT_THAT(breaches_of("tests/a.cpp", "#include <lmdb.h>\n"), IsEmpty());
}

TEST(Arrows, a_directory_that_knows_too_much_is_found) {
  EXPECT_THAT(breaches_of("base/a.cpp", "#include \"resolver/map/map_reader.hpp\"\n"),
              ElementsAre("base/a.cpp:2: base must not know resolver/map"));
  EXPECT_THAT(
      breaches_of("fuseovl/overlay/ops.cpp", "\n#include \"resolver/search/search.hpp\"\n"),
      ElementsAre("fuseovl/overlay/ops.cpp:3: fuseovl/overlay must not know resolver/search"));
  EXPECT_THAT(breaches_of("record/diff/a.cpp", "#include \"fuseovl/session/session.hpp\"\n"),
              ElementsAre(HasSubstr("record/diff must not know fuseovl")));
  EXPECT_THAT(breaches_of("container-hooks/a.cpp", "#include \"resolver/map/map_reader.hpp\"\n"),
              ElementsAre(HasSubstr("must not know resolver/map")));
  EXPECT_THAT(breaches_of("resolver/map/a.cpp", "#include \"resolver/elf/elf_facts.hpp\"\n"),
              ElementsAre(HasSubstr("must not know resolver/elf")));
}

TEST(Arrows, only_tests_know_tests) {
  EXPECT_THAT(breaches_of("fsgen/a.cpp", "#include \"tests/support/run.hpp\"\n"),
              ElementsAre(HasSubstr("must not know tests")));
}

TEST(Arrows, a_library_outside_its_directory_is_found) {
  EXPECT_THAT(breaches_of("resolver/search/a.cpp", "#include <LIEF/ELF.hpp>\n"),
              ElementsAre(HasSubstr("<LIEF/ELF.hpp> belongs to resolver/elf alone")));
  EXPECT_THAT(breaches_of("resolver/map/a.cpp", "#include <lmdb.h>\n"),
              ElementsAre(HasSubstr("belongs to resolver/store alone")));
  EXPECT_THAT(breaches_of("fsgen/a.cpp", "#include <fuse_lowlevel.h>\n#include <fuse3/fuse.h>\n"),
              ElementsAre(HasSubstr("fsgen/a.cpp:2"), HasSubstr("fsgen/a.cpp:3")));
}

TEST(Arrows, a_main_that_is_used_is_found) {
  EXPECT_THAT(breaches_of("fsgen/a.cpp", "#include \"fsgen/fs_gen_main.hpp\"\n"),
              ElementsAre(HasSubstr("nothing uses a *_main")));
  EXPECT_THAT(breaches_of("fsgen/fs_gen_main.cpp", "#include \"fsgen/fs_gen_main.hpp\"\n"),
              IsEmpty());
}

TEST(Arrows, an_include_beside_the_root_is_found) {
  EXPECT_THAT(breaches_of("base/a.cpp", "#include \"fd.hpp\"\n"),
              ElementsAre(HasSubstr("not a path from the project's root")));
}

TEST(Arrows, the_form_of_a_file_is_checked) {
  EXPECT_THAT(breaches({{"base/a.cpp", "int x;\n"}}), ElementsAre(HasSubstr("SPDX")));
  EXPECT_THAT(breaches_of("base/a.hpp", "int x;\n"), ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(breaches_of("base/Bad-Name.cpp", ""), ElementsAre(HasSubstr("snake_case")));
  EXPECT_THAT(breaches_of("base/a.cpp", "  using namespace std;\n"),
              ElementsAre(HasSubstr("using namespace")));
  EXPECT_THAT(breaches_of("base/a.cpp", "using namespace std::chrono_literals;\n"), IsEmpty());
  EXPECT_THAT(breaches_of("newdirectory/a.cpp", ""), ElementsAre(HasSubstr("no rule")));
}

}  // namespace
}  // namespace heddle::test
