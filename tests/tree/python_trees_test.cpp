// SPDX-License-Identifier: MIT
#include "resolver/tree/python_trees.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/build_elf.hpp"
#include "tests/support/run.hpp"
#include "tests/support/slow_mount.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

/// Installations of Python that consist of the files which are looked at.
class PythonTreesTest : public ::testing::Test {
 protected:
  std::string put(const std::string& path, const std::string& text = "x") const {
    return write_text_file(path.starts_with('/') ? path : dir_ / path, text, 0755);
  }
  std::string mkdir(const std::string& path) const {
    fs::create_directories(dir_ / path);
    return dir_ / path;
  }
  void link(const std::string& target, const std::string& path) const {
    fs::create_directories(fs::path(dir_ / path).parent_path());
    fs::create_symlink(target, dir_ / path);
  }
  /// A prefix with an interpreter, standard library and site-packages.
  void install(const std::string& prefix) const {
    put(prefix + "/bin/python3.11",
        "\x7f"
        "ELF");
    link("python3.11", prefix + "/bin/python3");
    put(prefix + "/lib/python3.11/os.py");
    mkdir(prefix + "/lib/python3.11/site-packages");
  }
  void make_venv(const std::string& prefix, const std::string& base,
                 const std::string& more = "") const {
    link(dir_ / base + "/bin/python3.11", prefix + "/bin/python3");
    link("python3", prefix + "/bin/python");
    put(prefix + "/pyvenv.cfg", "home = " + dir_ / base + "/bin\nversion = 3.11.2\n" + more);
    mkdir(prefix + "/lib/python3.11/site-packages");
  }
  PythonTrees find(const Words& command) const {
    return find_python_trees(command, environment_, dir_ / "cwd");
  }
  /// Within the test's directory.
  Words trees(const Words& command) const {
    Words out;
    for (const auto& tree : find(command).trees)
      if (tree.left_out.empty()) out.push_back(shorter(tree.path));
    return out;
  }
  std::string shorter(const std::string& path) const {
    return path.starts_with(dir_.path()) ? path.substr(dir_.path().size() + 1) : path;
  }

  TestDir dir_;
  Words environment_ = {"PATH=" + dir_ / "opt/bin:" + dir_ / "usr/bin", "HOME=" + dir_ / "home"};
};

TEST_F(PythonTreesTest, are_the_standard_library_and_site_packages_of_a_prefix) {
  install("opt");
  EXPECT_THAT(trees({"python3"}),
              ElementsAre("opt/lib/python3.11", "opt/lib/python3.11/site-packages"));
  EXPECT_EQ(find({"python3"}).interpreter, dir_ / "opt/bin/python3");
  EXPECT_THAT(trees({"python3", "-S"}), ElementsAre("opt/lib/python3.11"));
  // Beside it another version, which is not this interpreter's.
  put("opt/lib/python3.9/os.py");
  EXPECT_THAT(trees({"python3"}), Not(Contains("opt/lib/python3.9")));
  mkdir("opt/lib64/python3.11/site-packages");
  EXPECT_THAT(trees({"python3"}), Contains("opt/lib64/python3.11"));
}

TEST_F(PythonTreesTest, of_red_hat_are_in_lib64) {
  install("usr");
  mkdir("usr/lib64");
  fs::rename(dir_ / "usr/lib/python3.11", dir_ / "usr/lib64/python3.11");
  mkdir("usr/lib/python3.11/site-packages");
  mkdir("usr/local/lib64/python3.11/site-packages");
  const auto user = mkdir("home/.local/lib/python3.11/site-packages");
  EXPECT_THAT(
      trees({"python3"}),
      ElementsAre("usr/lib/python3.11", "usr/lib64/python3.11", shorter(user),
                  "usr/local/lib64/python3.11/site-packages", "usr/lib/python3.11/site-packages",
                  "usr/lib64/python3.11/site-packages"));
  make_venv("venv", "usr");
  put("venv/lib/python3.11/site-packages/e.pth", mkdir("edited") + "\n");
  EXPECT_THAT(trees({dir_ / "venv/bin/python"}),
              UnorderedElementsAre("usr/lib/python3.11", "usr/lib64/python3.11", "venv",
                                   "venv/lib/python3.11/site-packages", "edited"));
}

TEST_F(PythonTreesTest, of_a_virtual_environment_are_its_prefix_and_its_bases_library) {
  install("opt");
  make_venv("venv", "opt");
  EXPECT_THAT(
      trees({dir_ / "venv/bin/python"}),
      UnorderedElementsAre("opt/lib/python3.11", "venv", "venv/lib/python3.11/site-packages"));
  make_venv("both", "opt", "Include-System-Site-Packages = true\n");
  mkdir("home/.local/lib/python3.11/site-packages");
  // Keys are case-insensitive, values are not.
  EXPECT_THAT(trees({dir_ / "both/bin/python"}),
              IsSupersetOf(Words{"both", "opt/lib/python3.11/site-packages",
                                 "home/.local/lib/python3.11/site-packages"}));
}

TEST_F(PythonTreesTest, of_uv_include_the_prefix_that_the_interpreter_links_to) {
  install("home/.local/share/uv/python/cpython-3.11.9-linux-x86_64-gnu");
  link("cpython-3.11.9-linux-x86_64-gnu", "home/.local/share/uv/python/cpython-3.11");
  make_venv("work/.venv", "home/.local/share/uv/python/cpython-3.11");
  EXPECT_THAT(trees({dir_ / "work/.venv/bin/python3"}),
              IsSupersetOf(Words{"work/.venv",
                                 "home/.local/share/uv/python/cpython-3.11.9-linux-x86_64-gnu"}));
}

TEST_F(PythonTreesTest, of_conda_are_the_whole_prefix) {
  install("miniforge/envs/torch");
  mkdir("miniforge/envs/torch/conda-meta");
  EXPECT_THAT(trees({dir_ / "miniforge/envs/torch/bin/python3"}), Contains("miniforge/envs/torch"));
}

TEST_F(PythonTreesTest, of_debian_include_dist_packages) {
  install("usr");
  fs::remove_all(dir_ / "usr/lib/python3.11/site-packages");
  mkdir("usr/lib/python3/dist-packages");
  mkdir("usr/local/lib/python3.11/dist-packages");
  EXPECT_THAT(trees({"python3"}),
              ElementsAre("usr/lib/python3.11", "usr/local/lib/python3.11/dist-packages",
                          "usr/lib/python3/dist-packages"));
}

TEST_F(PythonTreesTest, follow_the_first_line_of_a_script) {
  install("opt");
  make_venv("venv", "opt");
  const auto python = dir_ / "venv/bin/python";
  mkdir("long dir");
  for (const auto& text :
       {"#!" + python + "\n", "#! " + python + " -u\nimport x", "#!/usr/bin/env " + python + "\n",
        "#!/usr/bin/env -S A=b " + python + " -s\n", "#!/usr/bin/env -S -u FOO " + python + " -s\n",
        "#!/bin/sh\n'''exec' " + python + " \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"" + python + "\" \"$0\" \"$@\"\n' '''\n"}) {
    const auto script = put("venv/bin/tool", text);
    EXPECT_THAT(trees({script, "-x"}), Contains("venv")) << text;
    EXPECT_EQ(find({script}).script, script);
  }
  // uv's, of an environment that can be moved: beside the script, through links to it.
  put("venv/bin/tool",
      "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n");
  link("../venv/bin/tool", "bin/tool");
  EXPECT_THAT(trees({dir_ / "bin/tool"}), Contains("venv"));
  environment_[0] = "PATH=" + dir_ / "bin";
  EXPECT_THAT(trees({"tool"}), Contains("venv"));
  for (const auto& text :
       {"#!/bin/sh\necho python3\n", "#!/usr/bin/env\n", "#!\n", "#!/none/python3\n", "text", "",
        "#!/bin/sh\n'''exec' \"/unclosed", "#!/usr/bin/env -S\n"})
    EXPECT_EQ(find({put("other", text)}).interpreter, "") << text;
  // A script that starts itself.
  put("loop", "#!" + dir_ / "loop\n");
  EXPECT_EQ(find({dir_ / "loop"}).interpreter, "");
}

TEST_F(PythonTreesTest, of_a_launcher_are_those_of_its_python) {
  install("opt");
  put("opt/bin/mpiexec",
      "\x7f"
      "ELF");
  const auto found =
      find({"mpiexec", "-n", "2", "-x", "PYTHONPATH=/x", "python3", "-u", "train.py"});
  EXPECT_EQ(found.interpreter, dir_ / "opt/bin/python3");
  EXPECT_EQ(found.script, dir_ / "cwd/train.py");
  EXPECT_THAT(found.in_use, ElementsAre(dir_ / "cwd", dir_ / "home", dir_ / "cwd"));
  EXPECT_EQ(find({"mpiexec", "-n", "2", "none"}).interpreter, "");
  for (const char* line :
       {"python3 -u train.py", "exec python3 train.py >log 2>&1", "A=b python3 train.py \"$1\""})
    EXPECT_EQ(find({"mpiexec", "-n", "2", "sh", "-ec", line}).script, dir_ / "cwd/train.py")
        << line;
  // The working directory, which is never served, may be another.
  for (const char* line :
       {"cd /x && python3 train.py", "cd /x; python3 train.py", "$PYTHON train.py"})
    EXPECT_EQ(find({"sh", "-c", line}).interpreter, "") << line;
  EXPECT_EQ(find({"sh", "-c"}).interpreter, "");
  EXPECT_EQ(find({}).interpreter, "");
  EXPECT_EQ(find({""}).interpreter, "");
}

TEST_F(PythonTreesTest, follow_the_environment_unless_an_option_says_otherwise) {
  install("opt");
  const auto user = "home/.local/lib/python3.11/site-packages";
  mkdir(user);
  mkdir("path/a");
  mkdir("cwd/relative");
  environment_.push_back("PYTHONPATH=" + dir_ / "path/a::relative:" + dir_ / "none");
  EXPECT_THAT(trees({"python3"}), IsSupersetOf(Words{"path/a", "cwd/relative", user}));
  for (const Words& command : {Words{"python3", "-I"},
                               {"python3", "-uI", "x.py"},
                               {"python3", "-E", "-s"},
                               {"python3", "-X", "dev", "-W", "error", "-Es"},
                               {"python3", "--check-hash-based-pycs", "always", "-I", "-c", "1"}}) {
    const auto found = trees(command);
    EXPECT_THAT(found, Not(Contains("path/a"))) << command[1];
    EXPECT_THAT(found, Not(Contains(user))) << command[1];
  }
  EXPECT_THAT(trees({"python3", "-s"}), Not(Contains(user)));
  // Options of the script, and behind -c and -m.
  for (const Words& command : {Words{"python3", "x.py", "-I"},
                               {"python3", "-c", "-I"},
                               {"python3", "-mI", "-E"},
                               {"python3", "-X", "-I"},
                               {"python3", "-", "-I"}})
    EXPECT_THAT(trees(command), Contains("path/a")) << command[1];
  environment_.push_back("PYTHONNOUSERSITE=1");
  EXPECT_THAT(trees({"python3"}), Not(Contains(user)));
  install("home2");
  environment_.push_back("PYTHONHOME=" + dir_ / "home2");
  EXPECT_THAT(trees({"python3"}), Contains("home2/lib/python3.11"));
  EXPECT_THAT(trees({"python3", "-E"}), Not(Contains("home2/lib/python3.11")));
}

TEST_F(PythonTreesTest, follow_pth_files) {
  install("opt");
  const std::string site = "opt/lib/python3.11/site-packages";
  for (const char* name : {"src/one", "src/two", "three", "four"}) mkdir(name);
  mkdir(site + "/relative");
  put(site + "/a.pth", "\xEF\xBB\xBF" + dir_ / "src/one\n# " + dir_ / "three\n\nrelative\n" +
                           "import sys; sys.path.append('" + dir_ / "three')\n" + dir_ / "none\n");
  put(site + "/b.pth", dir_ / "src/two \t\r\n");
  put(site + "/c.txt", dir_ / "three");
  put(site + "/d.pth", std::string("\0", 1) + dir_ / "three\n");
  put(site + "/e.pth", std::string(3 << 20, '\n') + dir_ / "three\n");
  fs::create_directory(dir_ / site + "/f.pth");
  put("file");
  put(site + "/g.pth", dir_ / "file");
  const auto found = trees({"python3"});
  EXPECT_THAT(found, IsSupersetOf(Words{"src/one", "src/two", site + "/relative"}));
  for (const char* name : {"three", "none", "file"}) EXPECT_THAT(found, Not(Contains(name)));
  const auto all = find({"python3"}).trees;
  const auto file = std::ranges::find(all, dir_ / "file", &FoundTree::path);
  ASSERT_NE(file, all.end());
  EXPECT_EQ(file->left_out, "it is no directory");
  EXPECT_EQ(file->found_as, dir_ / site + "/g.pth");
}

TEST_F(PythonTreesTest, pth_files_are_read_many_at_once) {
  install("opt");
  for (int i = 0; i < 100; ++i)
    put("opt/lib/python3.11/site-packages/" + std::to_string(i) + ".pth", "# none\n");
  SlowMount slow(dir_ / "opt", dir_ / "opt", dir_ / "counts", {.delay_us = 20'000});
  EXPECT_EQ(trees({"python3"}).size(), 2U);
  EXPECT_GE(slow.counts().most_in_flight, 32U);
}

TEST_F(PythonTreesTest, are_not_in_use_by_the_script_of_an_environment) {
  install("opt");
  make_venv("venv", "opt");
  put("venv/bin/pytest", "#!" + dir_ / "venv/bin/python\n");
  link("../venv/bin/pytest", "bin/pytest");
  EXPECT_THAT(find({dir_ / "venv/bin/pytest"}).in_use, Not(Contains(dir_ / "venv/bin")));
  EXPECT_THAT(find({dir_ / "bin/pytest"}).in_use, Not(Contains(dir_ / "venv/bin")));
  EXPECT_THAT(find({dir_ / "venv/bin/python", "sub/x.py"}).in_use, Contains(dir_ / "cwd/sub"));
}

/// sys.path of a real interpreter is the specification.
void expect_covers_sys_path(const Words& command, const Words& environment,
                            const std::string& cwd) {
  auto words = command;
  words.insert(words.end(), {"-c",
                             "import sys, os\nprint('\\n'.join(os.path.realpath(p) for p in "
                             "sys.path if p and os.path.isdir(p)))"});
  RunOptions options;
  options.cwd = cwd;
  options.env = environment;
  std::istringstream lines(run_checked(words, options).out);
  Words whole;
  for (char** one = environ; *one; ++one) {
    const std::string variable(*one);
    if (!variable.starts_with("PYTHON")) whole.push_back(variable);
  }
  whole.insert(whole.end(), environment.begin(), environment.end());
  const auto found = find_python_trees(words, whole, cwd);
  std::size_t entries = 0;
  for (std::string line; std::getline(lines, line); ++entries)
    EXPECT_TRUE(std::ranges::any_of(found.trees,
                                    [&](const FoundTree& tree) {
                                      return line == tree.path || line.starts_with(tree.path + "/");
                                    }))
        << line << " of " << command[0];
  EXPECT_GT(entries, 1U) << command[0];
}

TEST_F(PythonTreesTest, cover_the_sys_path_of_real_interpreters) {
  Words interpreters;
  for (const auto& name : {std::string("/usr/bin/python3"), std::string("python3")}) {
    const auto real = run({name, "-c", "import sys; print(sys.executable, end='')"});
    if (real.status == 0 && !real.out.empty()) interpreters.push_back(real.out);
  }
  if (interpreters.empty()) HEDDLE_SKIP("there is no python3");
  const auto cwd = mkdir("cwd");
  const auto extra = mkdir("extra");
  for (const auto& python : interpreters) {
    expect_covers_sys_path({python}, {"PYTHONPATH=" + extra}, cwd);
    expect_covers_sys_path({python, "-I"}, {}, cwd);
    const auto venv = dir_ / "venv" + std::to_string(python.size());
    if (run({python, "-m", "venv", "--without-pip", venv}).status != 0) continue;
    expect_covers_sys_path({venv + "/bin/python"}, {}, cwd);
    put(venv + "/pyvenv.cfg", "home = " + fs::path(python).parent_path().string() +
                                  "\ninclude-system-site-packages = true\n");
    expect_covers_sys_path({venv + "/bin/python"}, {}, cwd);
  }
}

TEST_F(PythonTreesTest, behind_pyenvs_shims_are_those_of_the_chosen_version) {
  const std::string shim = "#!/usr/bin/env bash\nexec pyenv exec python3\n";
  environment_[0] = "PATH=" + dir_ / "pyenv/shims:" + dir_ / "opt/bin";
  put("pyenv/shims/python3", shim);
  mkdir("cwd");
  install("opt");
  install("pyenv/versions/3.11.7");
  install("pyenv/versions/mine");
  const auto chosen = [&] { return shorter(find({"python3", "x.py"}).interpreter); };
  put("pyenv/version", "3.11.7\n");
  EXPECT_EQ(chosen(), "pyenv/versions/3.11.7/bin/python3");
  put(".python-version", "mine\n3.11.7\n");
  EXPECT_EQ(chosen(), "pyenv/versions/mine/bin/python3");
  environment_.emplace_back("PYENV_VERSION=none:3.11.7");
  EXPECT_EQ(chosen(), "pyenv/versions/3.11.7/bin/python3");
  environment_.back() = "PYENV_VERSION=../../opt";
  EXPECT_EQ(chosen(), "opt/bin/python3");
  environment_.back() = "PYENV_VERSION=system";
  EXPECT_EQ(chosen(), "opt/bin/python3");
}

}  // namespace
}  // namespace heddle::test
