// SPDX-License-Identifier: MIT
// Mapped programs started with another LD_LIBRARY_PATH load what ld.so loads for it.

#include "tests/audit/guided_world.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

/// libx.so.1 in the directories a (answers 1), b (2) and home (3); the program's RUNPATH is home.
class AuditLibraryPath : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [directory, answer] : {std::pair{"a", "1"}, {"b", "2"}, {"home", "3"}})
      build_library({dir_ / (std::string(directory) + "/libx.so.1"),
                     "int x(void) { return " + std::string(answer) + "; }",
                     {"-Wl,-soname,libx.so.1"}});
    app_ = build_program({dir_ / "app",
                          "int x(void); int main(void) { return x(); }",
                          {dir_ / "home/libx.so.1", "-Wl,-rpath," + (dir_ / "home")}});
  }
  GuidedWorld world(const std::string& value) {
    GuidedWorld out(dir_ / ("world" + std::to_string(worlds_++)));
    out.add_program(app_, {}, {"LD_LIBRARY_PATH=" + value});
    out.publish();
    return out;
  }
  /// Runs the program with this LD_LIBRARY_PATH and expects the libraries of an unguided start.
  /// Returns "guided" or "unguided".
  std::string start(const GuidedWorld& w, const std::string& value, const std::string& cwd = {}) {
    RunOptions options{{"LD_LIBRARY_PATH=" + value}, cwd, {}};
    const int plain = run({app_}, options).status;
    w.reset_counters();
    for (const std::string& entry : w.env()) options.env.push_back(entry);
    const RunResult ours = run({app_}, options);
    EXPECT_EQ(ours.status, plain) << value << ours.err;
    const Counters counters = w.counters();
    EXPECT_EQ(counters.guided_processes + counters.unguided_processes, 1u);
    EXPECT_EQ(counters.other_library_path, counters.unguided_processes);
    return counters.guided_processes == 1 ? "guided" : "unguided";
  }
  std::string directory(const std::string& name) {
    fs::create_directories(dir_ / name);
    return dir_ / name;
  }

  TestDir dir_;
  std::string app_;
  int worlds_ = 0;
};

TEST_F(AuditLibraryPath, same_value_is_guided) {
  for (const std::string& value : {std::string(), dir_ / "a", dir_ / "b" + ":" + dir_ / "a",
                                   dir_ / "none" + ";" + dir_ / "a" + "/", std::string("$LIB")}) {
    const GuidedWorld w = world(value);
    EXPECT_EQ(start(w, value), "guided") << value;
  }
  std::string many = dir_ / "a";
  for (int i = 0; i < 1000; ++i) many += ":" + dir_ / "none";
  const GuidedWorld w = world(many);
  EXPECT_EQ(start(w, many), "guided");
  EXPECT_EQ(start(w, many + ":" + dir_ / "none"), "unguided") << "too many to compare";
}

TEST_F(AuditLibraryPath, value_that_leads_to_other_files_is_unguided) {
  const GuidedWorld none = world("");
  EXPECT_EQ(start(none, dir_ / "a"), "unguided");
  const GuidedWorld a = world(dir_ / "a");
  EXPECT_EQ(start(a, dir_ / "b"), "unguided");
  EXPECT_EQ(start(a, dir_ / "b" + ":" + dir_ / "a"), "unguided");
  EXPECT_EQ(start(a, ""), "unguided");
  EXPECT_EQ(start(a, dir_ / "none"), "unguided");
}

TEST_F(AuditLibraryPath, directories_without_mapped_names_keep_guidance) {
  const GuidedWorld none = world("");
  write_text_file(dir_ / "others/libother.so.1", "");
  EXPECT_EQ(start(none, directory("empty") + ":" + dir_ / "none" + ":" + dir_ / "others"),
            "guided");
  EXPECT_EQ(start(none, dir_ / "others/libother.so.1"), "guided") << "not a directory";
  const GuidedWorld a = world(dir_ / "a");
  EXPECT_EQ(start(a, dir_ / "others" + ":" + dir_ / "a" + ":" + dir_ / "empty"), "guided");
  EXPECT_EQ(start(a, dir_ / "a" + ":" + dir_ / "a"), "guided") << "as mpirun --prefix makes it";
  // Nothing was found by LD_LIBRARY_PATH, so its absence changes nothing.
  const GuidedWorld unused = world(dir_ / "others");
  EXPECT_EQ(start(unused, ""), "guided");
}

TEST_F(AuditLibraryPath, link_to_the_mapped_file_keeps_guidance) {
  const GuidedWorld none = world("");
  fs::create_directory(dir_ / "links");
  fs::create_symlink(dir_ / "home/libx.so.1", dir_ / "links/libx.so.1");
  EXPECT_EQ(start(none, dir_ / "home" + ":" + dir_ / "links"), "guided");
  fs::create_directory(dir_ / "copies");
  fs::copy(dir_ / "home/libx.so.1", dir_ / "copies/libx.so.1");
  EXPECT_EQ(start(none, dir_ / "copies"), "unguided") << "a copy is another file to ld.so";
}

TEST_F(AuditLibraryPath, values_that_cannot_be_checked_are_unguided) {
  const GuidedWorld none = world("");
  for (const char* name : {"glibc-hwcaps", "tls", "x86_64", "haswell"}) {
    directory(std::string("f/") + name);
    EXPECT_EQ(start(none, dir_ / "f"), "unguided") << name;
    fs::remove_all(dir_ / "f");
  }
  write_text_file(dir_ / "f/tls", "a file of that name is not searched");
  EXPECT_EQ(start(none, dir_ / "f"), "guided");
  EXPECT_EQ(start(none, "$ORIGIN/a"), "unguided");
  EXPECT_EQ(start(none, dir_ / "$PLATFORM"), "unguided");
  std::string many = dir_ / "none";
  for (int i = 0; i < 100; ++i) many += ":" + dir_ / "none";
  EXPECT_EQ(start(none, many), "unguided");
  std::string crowd = directory("crowd");
  for (int i = 0; i < 700; ++i)
    write_text_file(crowd + "/libnumber" + std::to_string(i) + ".so", "");
  EXPECT_EQ(start(none, crowd), "guided");
  fs::copy(dir_ / "b/libx.so.1", crowd + "/libx.so.1");
  EXPECT_EQ(start(none, crowd), "unguided");
}

TEST_F(AuditLibraryPath, relative_elements_resolve_from_the_working_directory) {
  directory("one");
  directory("two");
  fs::rename(dir_ / "a", dir_ / "one/lib");
  fs::rename(dir_ / "b", dir_ / "two/lib");
  const GuidedWorld one = world(dir_ / "one/lib");  // "lib" in one
  EXPECT_EQ(start(one, "lib", dir_ / "one"), "guided");
  EXPECT_EQ(start(one, "lib", dir_ / "two"), "unguided");
  EXPECT_EQ(start(one, "", dir_ / "one"), "unguided") << "an empty value counts as unset";
  const GuidedWorld none = world("");
  EXPECT_EQ(start(none, ":", dir_ / "one"), "guided");
  EXPECT_EQ(start(none, ":", dir_ / "one/lib"), "unguided");
}

TEST_F(AuditLibraryPath, last_of_two_values_counts) {
  // Shells set one value; execve(2) accepts two.
  const std::string twice =
      build_program({dir_ / "twice",
                     "#include <unistd.h>\nint main(int c, char** v) { char* a[] = {v[1], 0};\n"
                     "execve(v[1], a, v + 2); return 99; }"});
  const GuidedWorld a = world(dir_ / "a");
  const std::string good = "LD_LIBRARY_PATH=" + dir_ / "a", other = "LD_LIBRARY_PATH=" + dir_ / "b";
  for (const auto& [first, second, guided] : {std::tuple{good, other, 0u}, {other, good, 1u}}) {
    std::vector<std::string> argv = {twice, app_, first, second};
    const int plain = run(argv).status;
    a.reset_counters();
    for (const std::string& entry : a.env()) argv.push_back(entry);
    EXPECT_EQ(run(argv).status, plain);
    EXPECT_EQ(a.counters().guided_processes, guided);
  }
}

}  // namespace
}  // namespace heddle::test
