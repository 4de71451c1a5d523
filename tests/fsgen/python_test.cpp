// SPDX-License-Identifier: MIT
// Python programs on a slow file system, served as directory trees over their own paths: the same
// output and the same __file__ of every module as natively, and no request twice.

#include <unistd.h>

#include <atomic>
#include <future>
#include <iostream>

#include "tests/fsgen/run_fixture.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::test {
namespace {

const std::string kPython = "/usr/bin/python3";
constexpr const char* kFiles =
    "import sys\n"
    "for name, module in sorted(sys.modules.items()):\n"
    "  print(name, getattr(module, '__file__', None), getattr(module, '__cached__', None))\n"
    "print(sys.path, sys.prefix, sys.base_prefix, sys.executable)\n";

void compile_all(const std::string& directory) {
  run_checked({kPython, "-m", "compileall", "-q", directory});
}

class Python : public FsGenFixture {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) HEDDLE_SKIP("mounting a slow file system needs root");
    FsGenFixture::SetUp();
    options_.env.insert(options_.env.end(),
                        {"HEDDLE_SLOW", "HEDDLE_FAST", "PYTHONHOME", "PYTHONPATH",
                         "HOME=" + dir_ / "home", "PYTHONDONTWRITEBYTECODE"});
    options_.deadline = std::chrono::minutes(3);
    options_.cwd = dir_ / "work";
    for (const char* directory : {"slow", "work", "home"}) fs::create_directory(dir_ / directory);
  }
  /// From here on $DIR/slow is a slow file system.
  SlowMount& slow_down(int delay_us = 50) {
    return slow_.emplace(dir_ / "slow", dir_ / "slow", dir_ / "counts", SlowOptions{delay_us});
  }
  std::string slow(const std::string& name) const { return dir_ / ("slow/" + name); }
  /// Runs `app` natively, and below fs-gen when its files are on a slow file system.
  RunResult same_when_slow(const Words& app) {
    const auto bare = run(app, options_);
    EXPECT_EQ(bare.status, 0) << bare.err;
    slow_down();
    auto ours = run_guided(app);
    EXPECT_EQ(ours.out, bare.out) << ours.err;
    EXPECT_EQ(ours.err, bare.err);
    EXPECT_EQ(ours.status, bare.status);
    return ours;
  }
  std::vector<std::string> trees() const {
    std::vector<std::string> out;
    const auto all = report();
    for (const auto& tree : all["trees"]) out.push_back(tree["path"]);
    return out;
  }
  /// `count` packages of two modules, each in a directory of its own; the value for PYTHONPATH.
  std::string make_packages(unsigned count) const {
    std::string path, script;
    for (unsigned i = 0; i < count; ++i) {
      const auto name = "pkg" + std::to_string(i);
      const auto entry = slow("e" + std::to_string(i));
      write_text_file(entry + "/" + name + "/__init__.py", "from . import mod\n");
      write_text_file(entry + "/" + name + "/mod.py", "value = " + std::to_string(i) + "\n");
      path += (path.empty() ? "" : ":") + entry;
      script += "import " + name + "\n";
    }
    compile_all(dir_ / "slow");
    write_text_file(dir_ / "work/run.py", script + kFiles);
    return path;
  }

  std::optional<SlowMount> slow_;
};

TEST_F(Python, packages_on_300_entries_are_the_same_and_asked_for_once) {
  options_.env.push_back("PYTHONPATH=" + make_packages(300));
  grow_old();
  same_when_slow({kPython, dir_ / "work/run.py"});
  EXPECT_THAT(trees(), ::testing::ElementsAre(dir_ / "slow"));
  EXPECT_GE(report()["tree_files_read"].get<unsigned>(), 600U);
  EXPECT_EQ(report()["writes_refused"], 0U);

  // From the cached map: each file is looked up once to see that it is unchanged, which takes two
  // requests here, where no attribute is kept; reading it takes LOOKUP, OPEN, GETATTR, READ,
  // RELEASE.
  slow_down(3'000);  // a slow processor, too, has 32 requests in flight
  const auto again = run_guided({kPython, dir_ / "work/run.py"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(report()["cached"].get<bool>()) << report();
  const auto counts = slow_->counts();
  const auto [most, path] = SlowCounts::most(counts.files);
  EXPECT_LE(most, 7U) << path << ": " << nlohmann::json(counts.files.at(path));
  EXPECT_GE(counts.most_in_flight, 32U);
}

TEST_F(Python, first_start_from_a_map_asks_each_file_and_directory_a_few_times_and_nothing_else) {
  HEDDLE_STAGED(resolve, "fs-resolve");
  options_.env.push_back("PYTHONPATH=" + make_packages(50));
  slow_down();
  run_checked({resolve, "build", "--tree", dir_ / "slow", "-o", dir_ / "map", kPython}, options_);
  slow_.reset();
  slow_down();  // for a node that has booted
  const auto ours = run_guided({kPython, dir_ / "work/run.py"}, {"--map", dir_ / "map"});
  EXPECT_EQ(ours.status, 0) << ours.err;
  EXPECT_THAT(trees(), ::testing::ElementsAre(dir_ / "slow"));
  const auto counts = slow_->counts();
  EXPECT_EQ(counts.files.size(), 100U);  // the compiled ones
  for (const auto& [path, requests] : counts.files) {
    EXPECT_TRUE(requests.contains("READ")) << path;
    EXPECT_LE(SlowCounts::sum(requests), 5U) << path << ": " << nlohmann::json(requests);
  }
  EXPECT_LE(SlowCounts::most(counts.directories).first, 3U);
  EXPECT_EQ(counts.missing.size(), 0U) << nlohmann::json(counts.missing);
}

TEST_F(Python, virtual_environments_of_every_kind_are_the_same) {
  const auto library =
      "lib/python" +
      run({kPython, "-c", "import sys; print('%d.%d' % sys.version_info[:2], end='')"}).out;
  const auto binary = fs::canonical(kPython).string();
  const auto add_package = [&](const std::string& prefix) {
    for (const char* directory : {"/site-packages", "/dist-packages"}) {  // Debian's own name
      const auto packages = prefix + "/" + library + directory;
      write_text_file(packages + "/thing/__init__.py", "from . import part\n");
      write_text_file(packages + "/thing/part.py", "");
      compile_all(packages);
    }
  };
  const auto install = [&](const std::string& prefix) {  // as standalone builds of Python
    fs::create_directories(prefix + "/bin");
    fs::copy_file(binary, prefix + "/bin/python3");
    run_checked({"/bin/cp", "-a", "/usr/" + library, prefix + "/lib.new"});
    fs::create_directories(prefix + "/lib");
    fs::rename(prefix + "/lib.new", prefix + "/" + library);
  };
  run_checked({kPython, "-m", "venv", "--without-pip", "--symlinks", slow("linked")});
  run_checked({kPython, "-m", "venv", "--without-pip", "--copies", slow("copied")});
  install(slow("uv/python/cpython"));
  fs::create_directories(slow("uv/venv/bin"));
  fs::create_symlink("../../python/cpython/bin/python3", slow("uv/venv/bin/python3"));
  write_text_file(slow("uv/venv/pyvenv.cfg"), "home = " + slow("uv/python/cpython/bin") + "\n");
  install(slow("conda"));
  write_text_file(slow("conda/conda-meta/history"), "");
  const Words kinds = {"linked", "copied", "uv/venv", "conda"};
  std::vector<Words> apps;
  for (const auto& kind : kinds) {
    add_package(slow(kind));
    apps.push_back(
        {slow(kind + "/bin/python3"), "-c", std::string("import json, thing\n") + kFiles});
  }
  // An editable install, and a script whose #! is the environment's Python.
  write_text_file(slow("source/edited.py"), "value = 1\n");
  write_text_file(slow("linked/" + library + "/site-packages/edited.pth"), slow("source") + "\n");
  apps.push_back({slow("linked/bin/python3"), "-c", std::string("import edited\n") + kFiles});
  write_text_file(dir_ / "work/tool",
                  "#!" + slow("copied/bin/python3") + "\nimport thing\n" + kFiles, 0755);
  apps.push_back({dir_ / "work/tool"});

  options_.env.emplace_back("PYTHONDONTWRITEBYTECODE=1");
  std::vector<RunResult> bare;
  for (const auto& app : apps) bare.push_back(run(app, options_));
  slow_down();
  for (std::size_t i = 0; i < apps.size(); ++i) {
    SCOPED_TRACE(to_shell(apps[i]));
    EXPECT_EQ(bare[i].status, 0) << bare[i].err;
    const auto ours = run_guided(apps[i]);
    EXPECT_EQ(ours.out, bare[i].out);
    EXPECT_EQ(ours.err, bare[i].err);
    EXPECT_FALSE(trees().empty()) << report().dump(1);
    EXPECT_TRUE(report()["guided"].get<bool>()) << report().dump(1);
  }
}

TEST_F(Python, tools_that_install_work_elsewhere_and_are_refused_in_a_tree) {
  run_checked({kPython, "-m", "venv", slow("venv")});
  const auto python = slow("venv/bin/python3");
  run_checked(
      {kPython, "-c",
       "import zipfile, sys\n"
       "w = zipfile.ZipFile(sys.argv[1], 'w')\n"
       "w.writestr('thing.py', 'value = 3\\n')\n"
       "d = 'thing-1.0.dist-info/'\n"
       "w.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n')\n"
       "w.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\n"
       "Tag: py3-none-any\\n')\n"
       "w.writestr(d + 'RECORD', 'thing.py,,\\n' + d + 'METADATA,,\\n' + d + 'WHEEL,,\\n' + d "
       "+ 'RECORD,,\\n')\n",
       dir_ / "work/thing-1.0-py3-none-any.whl"});
  const Words list = {python, "-m", "pip", "--disable-pip-version-check", "list"};
  const auto bare = run(list, options_);
  slow_down();
  const auto ours = run_guided(list);
  EXPECT_EQ(ours.out, bare.out) << ours.err;
  EXPECT_THAT(bare.out, HasSubstr("pip"));

  const auto wheel = dir_ / "work/thing-1.0-py3-none-any.whl";
  const Words pip = {python,    "-m",        "pip", "-q", "--disable-pip-version-check",
                     "install", "--no-index"};
  auto elsewhere = pip;
  elsewhere.insert(elsewhere.end(), {"--target", dir_ / "work/target", wheel});
  const auto installed = run_guided(elsewhere);
  EXPECT_EQ(installed.status, 0) << installed.err;
  EXPECT_TRUE(fs::exists(dir_ / "work/target/thing.py"));
  const auto made = run_guided({python, "-m", "venv", "--without-pip", dir_ / "work/venv"});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_TRUE(fs::exists(dir_ / "work/venv/pyvenv.cfg"));
  const auto timed =
      run_guided({python, "-X", "importtime", "-c", "import json; print(json.__file__)"});
  EXPECT_EQ(timed.status, 0);
  EXPECT_THAT(timed.err, HasSubstr("json.decoder"));

  // The report names what cannot be written, and the option for it.
  const auto file = slow(
      "venv/"
      "data.txt");
  const auto refused = gen({"--json", dir_ / "report.json", python, "-c",
                            "try: open('" + file + "', 'x')\nexcept OSError as e: print(e.errno)"});
  EXPECT_EQ(refused.out, "30\n") << refused.err;
  EXPECT_EQ(report()["writes_refused"], 1U);
  EXPECT_EQ(report()["first_refused"], file);
  EXPECT_THAT(refused.err, HasSubstr("1 writes (EROFS); first: " + file));
  EXPECT_THAT(refused.err, HasSubstr("--tree-exclude DIR"));
}

TEST_F(Python, directories_above_an_environment_stay_writable) {
  run_checked({kPython, "-m", "venv", "--without-pip", slow("me/job42/env")});
  // Not on a slow file system, which is read-only here.
  const Words options = {"--slow", dir_ / "slow"};
  const auto python = slow("me/job42/env/bin/python");
  const auto made = run_guided(
      {python, "-c", "import os; os.makedirs('" + slow("me/job42/results/deep") + "')"}, options);
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(trees(), ::testing::Contains(slow("me/job42/env")));
  fs::remove_all(slow("me/job42/results"));
  const auto second =
      run_guided({python, "-m", "venv", "--without-pip", slow("me/job42/second")}, options);
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_TRUE(fs::exists(slow("me/job42/second/pyvenv.cfg")));
}

TEST_F(Python, excluded_directory_is_the_original) {
  write_text_file(slow("lib/thing.py"), "");
  write_text_file(slow("lib/data/old"), "text");
  options_.env.push_back("PYTHONPATH=" + slow("lib"));
  options_.env.emplace_back("PYTHONDONTWRITEBYTECODE=1");
  // Not on a slow file system, which is read-only here.
  const auto ours = run_guided({kPython, "-c",
                                "import thing; open('" + slow("lib/data/new") +
                                    "', 'x').close()\n"
                                    "print(thing.__file__, open('" +
                                    slow("lib/data/old") + "').read())"},
                               {"--slow", dir_ / "slow", "--tree-exclude", slow("lib/data")});
  EXPECT_EQ(ours.out, slow("lib/thing.py") + " text\n") << ours.err;
  EXPECT_TRUE(fs::exists(slow("lib/data/new")));
  EXPECT_THAT(trees(), ::testing::Contains(slow("lib")));
  EXPECT_EQ(report()["writes_refused"].get<unsigned>(), 0U);
}

TEST_F(Python, working_directory_stays_what_it_is) {
  write_text_file(slow("lib/thing.py"), "");
  write_text_file(slow("lib/here/file"), "text");
  // Made where the working directory is another one.
  const auto made = run_guided({"/bin/true"}, {"--out", dir_ / "map", "--tree", slow("lib")});
  EXPECT_EQ(made.status, 0) << made.err;
  options_.cwd = slow("lib/here");
  const auto ours = run_guided({"/bin/sh", "-c",
                                "pwd; cat file; touch new && cat $OLDPWD/" + slow("lib/thing.py") +
                                    "; stat -f -c %T . " + slow("lib") + " | uniq | wc -l; rm new"},
                               {"--map", dir_ / "map"});
  EXPECT_EQ(ours.out, slow("lib/here") + "\ntext2\n") << ours.err;
  // A tree with the working directory in it is none.
  options_.env.push_back("PYTHONPATH=" + slow("lib"));
  const auto none =
      run_guided({kPython, "-c", "import thing; open('new', 'x')"}, {"--slow", dir_ / "slow"});
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_TRUE(trees().empty());
  EXPECT_THAT(report()["tree_notes"].dump(), HasSubstr(slow("lib")));
}

// The start after a start, on a file system whose names the kernel keeps for 30 s: Python's own
// look-ups then cost less than a mount.
TEST_F(Python, start_whose_names_the_kernel_knows_asks_no_more_than_without_heddle) {
  options_.env.push_back("PYTHONPATH=" + make_packages(50));
  grow_old();
  const Words app = {kPython, dir_ / "work/run.py"};
  const auto boot = [&] {
    slow_.reset();
    // NFS keeps a file's attributes for 3 s, in which a busy machine does not start twice.
    slow_.emplace(dir_ / "slow", dir_ / "slow", dir_ / "counts",
                  SlowOptions{.delay_us = 200, .preset = "nfs", .attributes = 30});
  };
  /// Without those of attributes, which are not kept as long as names are.
  const auto requests = [&] {
    const auto counts = slow_->reset();
    auto total = counts.total;
    if (const auto at = counts.opcodes.find("GETATTR"); at != counts.opcodes.end())
      total -= at->second;
    return total;
  };
  const auto bare = [&] { EXPECT_EQ(run(app, options_).status, 0); };
  const auto ours = [&] { EXPECT_EQ(run_guided(app).status, 0); };
  boot();
  bare();
  const auto cold = requests();
  bare();
  const auto warm = requests();
  boot();
  ours();
  EXPECT_FALSE(report()["cached"].get<bool>());
  boot();
  ours();
  EXPECT_TRUE(report()["cached"].get<bool>()) << report();
  EXPECT_THAT(trees(), ::testing::ElementsAre(dir_ / "slow"));
  const auto opcodes = slow_->counts().opcodes;
  EXPECT_FALSE(opcodes.contains("READDIR") && opcodes.at("READDIR") > 0) << "unchanged";
  EXPECT_LE(requests(), cold);
  for (int i = 0; i < 2; ++i) {
    (void)requests();  // the first time also names that do not exist
    ours();
    EXPECT_TRUE(report()["cached"].get<bool>()) << report();
    EXPECT_TRUE(trees().empty());
    EXPECT_THAT(report()["tree_notes"].dump(), HasSubstr("the kernel knows their names"));
  }
  EXPECT_LE(requests(), warm);
  // Not for good, and not for what is named.
  boot();
  ours();
  EXPECT_THAT(trees(), ::testing::ElementsAre(dir_ / "slow"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_guided(app, {"--slow", dir_ / "slow"}).status, 0);
    EXPECT_THAT(trees(), ::testing::ElementsAre(dir_ / "slow"));
  }
}

TEST_F(Python, changed_tree_is_read_again_and_a_change_during_the_run_is_reported) {
  options_.env.push_back("PYTHONPATH=" + slow("lib"));
  write_text_file(slow("lib/thing.py"), "value = 1\n");
  write_text_file(slow("lib/later.py"), "value = 1\n");
  grow_old();
  const Words slow_option = {"--slow", dir_ / "slow"};
  const Words app = {kPython, "-c",
                     "import thing, os; print(thing.value, os.listdir('" + slow("lib") + "'))"};
  options_.env.emplace_back("PYTHONDONTWRITEBYTECODE=1");
  EXPECT_THAT(run_guided(app, slow_option).out, HasSubstr("1 ["));
  EXPECT_FALSE(report()["cached"].get<bool>());
  EXPECT_THAT(run_guided(app, slow_option).out, HasSubstr("1 ["));
  EXPECT_TRUE(report()["cached"].get<bool>()) << report();
  write_text_file(slow("lib/thing.py"), "value = 22\n");
  write_text_file(slow("lib/more.py"), "");
  const auto changed = run_guided(app, slow_option);
  EXPECT_THAT(changed.out, HasSubstr("22 ["));
  EXPECT_THAT(changed.out, HasSubstr("more.py"));
  EXPECT_FALSE(report()["cached"].get<bool>());

  const auto during =
      gen({"--slow", dir_ / "slow", "--json", dir_ / "report.json", kPython, "-c",
           "import thing, subprocess\n"
           "subprocess.run(['nsenter', '-m', '-t', str(__import__('os').getppid()), "
           "'sh', '-c', 'echo value = 333 > " +
               slow("lib/later.py") +
               "'])\n"
               "try: open('" +
               slow("lib/later.py") +
               "').read()\n"
               "except OSError as e: print(e.errno)"});
  EXPECT_EQ(during.out, "5\n") << during.err;
  EXPECT_THAT(during.err, HasSubstr("tree changed during the run: " + slow("lib/later.py")));
  EXPECT_EQ(report()["changed_files"], 1U);
}

TEST_F(Python, run_without_trees_leaves_those_of_another_command) {
  run_checked({kPython, "-m", "venv", "--without-pip", slow("venv")});
  run_checked({kPython, "-m", "venv", "--without-pip", slow("other")});
  write_text_file(slow("lib/thing.py"), "");
  grow_old();
  const Words pass = {"-c", "pass"};
  const auto trees_of = [&](Words app, const std::string& cwd, const Words& env,
                            Words options = {}) {
    app.insert(app.end(), pass.begin(), pass.end());
    options.insert(options.end(), {"--slow", dir_ / "slow"});
    RunOptions where = options_;
    where.cwd = cwd;
    where.env.insert(where.env.end(), env.begin(), env.end());
    const auto ours = run(command(app, options), where);
    EXPECT_EQ(ours.status, 0);
    EXPECT_EQ(ours.err, "");
    return trees();
  };
  const auto work = dir_ / "work";
  const auto on_path = Words{"PYTHONPATH=" + slow("lib")};
  for (int run = 0; run < 2; ++run) {
    SCOPED_TRACE(run);
    EXPECT_TRUE(trees_of({kPython}, work, {}).empty());
    EXPECT_TRUE(trees_of({kPython, "-I"}, work, on_path).empty());
    EXPECT_TRUE(trees_of({kPython}, slow("lib"), on_path).empty());
    EXPECT_TRUE(trees_of({kPython}, work, on_path, {"--via", "direct"}).empty());
    EXPECT_THAT(trees_of({slow("venv/bin/python3")}, work, {}),
                ::testing::ElementsAre(slow("venv")));
    EXPECT_EQ(report()["cached"].get<bool>(), run > 0);
    EXPECT_THAT(trees_of({slow("other/bin/python3")}, work, {}),
                ::testing::ElementsAre(slow("other")));
    EXPECT_EQ(report()["cached"].get<bool>(), run > 0);
    EXPECT_THAT(trees_of({kPython}, work, on_path), ::testing::ElementsAre(slow("lib")));
    EXPECT_EQ(report()["cached"].get<bool>(), run > 0);
    // A working directory elsewhere needs no entry of its own.
    EXPECT_THAT(trees_of({kPython}, dir_ / "home", on_path), ::testing::ElementsAre(slow("lib")));
    EXPECT_TRUE(report()["cached"].get<bool>()) << report();
  }
}

TEST_F(Python, one_rank_of_a_node_looks_for_directories) {
  options_.env.push_back("PYTHONPATH=" + make_packages(300));
  grow_old();
  auto& slow = slow_down();
  const std::string rank = "OMPI_COMM_WORLD_RANK=";
  // Python itself would look up what lies above the tree.
  const Words options = {"--python", kPython};
  const auto app = to_shell(command({"/bin/true"}, options));
  (void)run_guided({"/bin/true"}, options);
  auto ours = std::async(std::launch::async, [&] {
    return run({"/bin/sh", "-c",
                rank + "0 " + app + "; touch up; while [ ! -e go ]; do sleep 0.01; done; " + rank +
                    "1 " + app},
               options_);
  });
  EXPECT_TRUE(wait_until(std::chrono::seconds(60), [&] { return fs::exists(dir_ / "work/up"); }));
  const auto first = slow.counts().total;
  slow.reset();
  write_text_file(dir_ / "work/go", "");
  EXPECT_EQ(ours.get().status, 0);
  EXPECT_FALSE(trees().empty());
  EXPECT_TRUE(report()["cached"].get<bool>()) << report();
  EXPECT_LE(slow.counts().total, 20U) << "the first one: " << first;
}

TEST_F(Python, mark_of_a_run_without_gain_ends_where_a_slow_directory_is_new) {
  const auto version =
      "lib/python" +
      run({kPython, "-c", "import sys; print('%d.%d' % sys.version_info[:2], end='')"}).out;
  const auto packages = version + "/site-packages";
  for (const char* base : {"base/", "home/.local/"})
    write_text_file(slow(base + packages + "/thing.py"), "");
  write_text_file(slow("lib/thing.py"), "");
  run_checked({kPython, "-m", "venv", "--without-pip", dir_ / "work/venv"});
  grow_old();
  const auto python = dir_ / "work/venv/bin/python3";
  const auto told = [&](const std::string& program, const std::string& variable = "A=") {
    RunOptions where = options_;
    where.env.push_back(variable);
    return run({fs_gen_, "--slow", dir_ / "slow", program, "-c", "pass"}, where).err;
  };
  for (const auto& program : {kPython, python}) {
    for (int i = 0; i < 3; ++i) (void)told(program);
    EXPECT_THAT(told(program), HasSubstr("nothing to gain"));
  }
  EXPECT_THAT(told(kPython, "PYTHONUSERBASE=" + slow("base")), HasSubstr("served at " + slow("")));
  EXPECT_THAT(told(kPython, "HOME=" + slow("home")), HasSubstr("served at " + slow("home/.local")));
  EXPECT_THAT(told(kPython), HasSubstr("nothing to gain"));
  write_text_file(dir_ / ("work/venv/" + packages + "/new.pth"), slow("lib") + "\n");
  EXPECT_THAT(told(python), HasSubstr("served at " + slow("lib")));
}

TEST_F(Python, learning_run_without_trees_notices_what_becomes_one) {
  write_text_file(slow("other"), "");  // a directory of nothing but trees would be one
  write_text_file(slow("lib/thing.py"), "");
  write_text_file(slow("lib/set-id"), "");
  fs::permissions(slow("lib/set-id"), fs::perms(04755));
  options_.env.push_back("PYTHONPATH=" + slow("lib"));
  options_.env.push_back("LD_LIBRARY_PATH=" + dir_ / "home");  // where look-ups fail
  grow_old();
  const Words app = {kPython, "-c", "import _ctypes, _ssl"};
  const Words slow_option = {"--slow", dir_ / "slow"};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_guided(app, slow_option).status, 0);
    EXPECT_TRUE(trees().empty());
    EXPECT_EQ(report()["cached"].get<bool>(), i > 0);
  }
  fs::remove(slow("lib/set-id"));
  (void)run_guided(app, slow_option);
  EXPECT_THAT(trees(), ::testing::ElementsAre(slow("lib")));
}

// The worst that another run's map could do: its trees over this one's paths.
TEST_F(Python, map_that_is_published_anew_meanwhile_is_not_mixed_with_the_old_one) {
  const Words names = {"one", "two"};
  std::string script;
  for (const auto& name : names) {
    write_text_file(slow(name + "/who"), name);
    script += "cat " + slow(name + "/who") + "; ";
    const auto made =
        run_guided({"/bin/true"}, {"--out", dir_ / (name + ".map"), "--tree", slow(name)});
    EXPECT_EQ(made.status, 0) << made.err;
  }
  std::atomic<bool> ends = false;
  auto publisher = std::async(std::launch::async, [&] {
    for (unsigned i = 0; !ends; ++i) {
      fs::create_hard_link(dir_ / (names[i % 2] + ".map"), dir_ / "new");
      fs::rename(dir_ / "new", dir_ / "map");
      ::usleep(1000);
    }
  });
  EXPECT_TRUE(wait_until(std::chrono::seconds(5), [&] { return fs::exists(dir_ / "map"); }));
  for (int i = 0; i < 30; ++i) {
    const auto ours = run_guided({"/bin/sh", "-c", script}, {"--map", dir_ / "map"});
    EXPECT_EQ(ours.out, "onetwo") << ours.err;
    EXPECT_EQ(ours.status, 0);
    EXPECT_EQ(trees().size(), 1U);
  }
  ends = true;
  publisher.get();
}

TEST_F(Python, without_a_private_mount_there_are_no_trees_and_one_line) {
  write_text_file(slow("lib/thing.py"), "");
  options_.env.push_back("PYTHONPATH=" + slow("lib"));
  const auto explained = gen({"--slow", dir_ / "slow", "--explain", kPython, "-c", "pass"});
  EXPECT_THAT(explained.out, HasSubstr("tree: " + slow("lib") + ": 2 names\n"));
  EXPECT_THAT(explained.out, HasSubstr("mount: yes, for the trees\n"));
  const auto off =
      gen({"--slow", dir_ / "slow", "--explain", "--python", "off", kPython, "-c", "pass"});
  EXPECT_THAT(off.out, HasSubstr("mount: no"));
  const auto made =
      run_guided({kPython, "-c", "pass"}, {"--out", dir_ / "map", "--tree", slow("lib")});
  EXPECT_EQ(made.status, 0) << made.err;
  for (const char* via : {"direct", "fusermount"}) {
    SCOPED_TRACE(via);
    const auto ours = run_guided({kPython, "-c", "import thing; print(thing.__file__)"},
                                 {"--map", dir_ / "map", "--via", via});
    EXPECT_EQ(ours.out, slow("lib/thing.py") + "\n");
    EXPECT_EQ(std::ranges::count(ours.err, '\n'), 1) << ours.err;
    EXPECT_THAT(ours.err, HasSubstr("continuing without directory trees"));
  }
}

TEST_F(Python, refused_tree_does_not_stop_the_run) {
  write_text_file(slow("lib/thing.py"), "");
  const auto ours = run_guided({"/bin/echo", "ran"}, {"--tree", "/usr"});
  EXPECT_EQ(ours.out, "ran\n");
  EXPECT_EQ(ours.status, 0);
  EXPECT_THAT(ours.err, HasSubstr("continuing without trees"));
  const auto some = run_guided(
      {"/bin/echo", "ran"}, {"--tree", dir_ / "none", "--tree", slow("lib"), "--python", "none"});
  EXPECT_THAT(some.err, AllOf(HasSubstr("none: cannot open: "), HasSubstr("without this tree"),
                              HasSubstr("--python none: is no Python")));
  EXPECT_THAT(trees(), ::testing::ElementsAre(slow("lib")));
}

TEST_F(Python, real_packages_are_the_same) {
  std::string imports, absent;
  for (const std::string module :
       {"numpy", "scipy.interpolate", "matplotlib.pyplot", "mpi4py.MPI", "torch"}) {
    const bool is_there = run({kPython, "-c", "import " + module}, options_).status == 0;
    (is_there ? imports : absent) += is_there ? "import " + module + "\n" : " " + module;
  }
  if (!absent.empty()) std::cout << "not compared, as they cannot be imported:" << absent << "\n";
  if (imports.empty()) HEDDLE_SKIP("none of" + absent + " can be imported");
  const Words app = {kPython, "-c", imports + kFiles};
  const auto bare = run(app, options_);
  const auto ours = run_guided(app, {"--slow", "/usr/lib"});
  EXPECT_EQ(ours.out, bare.out) << ours.err;
  EXPECT_EQ(ours.err, bare.err);
  EXPECT_EQ(ours.status, 0);
  EXPECT_THAT(trees(), ::testing::Contains("/usr/lib/python3/dist-packages"));
}

TEST_F(Python, tests_of_numpys_core_end_the_same) {
  const std::string tests = "/usr/lib/python3/dist-packages/numpy/core/tests";
  if (run({kPython, "-c", "import numpy, pytest, hypothesis"}, options_).status != 0 ||
      !fs::exists(tests))
    HEDDLE_SKIP("no numpy with its tests, pytest and hypothesis");
  Words app = {kPython, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"};
  for (const char* name : {"dtype", "indexing", "shape_base"})
    app.push_back(tests + "/test_" + name + ".py");
  // A line a test, in alphabetical order; without what it printed, and the time.
  const auto outcomes = [](const RunResult& result) {
    std::multiset<std::string> out;
    for (const auto& line : lines_of(result.out))
      if (const auto word = line.substr(0, line.find(' ')); word == "PASSED" || word == "FAILED" ||
                                                            word == "ERROR" || word == "SKIPPED" ||
                                                            word == "XFAIL" || word == "XPASS")
        out.insert(line);
    return out;
  };
  const auto bare = run(app, options_);
  const auto ours = run_guided(app, {"--slow", "/usr/lib"});
  fs::remove_all(dir_ / "tmp/.hypothesis");  // numpy's conftest.py puts it there
  EXPECT_EQ(ours.status, bare.status) << ours.err;
  EXPECT_GT(outcomes(bare).size(), 200U) << bare.out;
  EXPECT_EQ(outcomes(ours), outcomes(bare));
  EXPECT_THAT(trees(), ::testing::Contains("/usr/lib/python3/dist-packages"));
}

}  // namespace
}  // namespace heddle::test
