// SPDX-License-Identifier: MIT
// fs-resolve pack: what is in a bundle, in which order, and what is not.
#include <sys/stat.h>

#include <cstring>

#include "ship/bundle/frame.hpp"
#include "tests/bundle/bundle_support.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {
namespace {

class Pack : public ::testing::Test {
 protected:
  void SetUp() override {
    resolve_ = staged_program("fs-resolve");
    if (resolve_.empty()) HEDDLE_SKIP("fs-resolve is not installed in $HEDDLE_STAGE");
  }

  /// A file of the tree.
  std::string add(const std::string& name, const std::string& text, mode_t mode = 0644) {
    return write_text_file(tree_ + "/" + name, text, mode);
  }
  /// A map of the tree and of these objects.
  void write_the_map(const Strings& objects = {}) {
    value_or_throw(write_map(map_of(objects, {tree_}), map_));
  }
  /// Of files that were opened in this order.
  std::string trace(const Strings& paths) {
    std::string text = "#heddle-trace\t1\n#events\tns\tpid\ttid\top\tresult\tpath\tdetails\n";
    for (const auto& path : paths) text += "1\t7\t7\topen\tOK\t" + path + "\n";
    text += "2\t7\t7\topen\tENOENT\t" + tree_ + "/never\n";
    return write_text_file(dir_ / "run.txt", text);
  }
  RunResult pack(const Strings& more = {}) {
    return run(Strings{resolve_, "pack", map_, "-o", bundle_} + more);
  }
  /// The paths in the bundle, those of the tree without its directory.
  Strings packed() {
    Strings out;
    for (auto& line : lines_of(run_checked({resolve_, "pack", "--list", bundle_}).out)) {
      line.erase(0, 13);
      if (line.starts_with(tree_ + "/")) line.erase(0, tree_.size() + 1);
      out.push_back(line);
    }
    return out;
  }
  Strings sorted_packed() {
    auto out = packed();
    std::ranges::sort(out);
    return out;
  }

  const TestDir dir_;
  const std::string tree_ = dir_ / "site packages";
  const std::string map_ = dir_ / "app.map";
  const std::string bundle_ = dir_ / "app.bundle";
  std::string resolve_;
};

TEST_F(Pack, takes_everything_and_verifies_it) {
  add("a.py", some_bytes(1000, 1));
  add("b/deep/er/c.py", some_bytes(3'000'000, 2));
  add("empty.py", "");
  const auto odd = add("odd\nna me \xc3\xa4", "odd");
  write_text_file(dir_ / "lib/libx.so.1", some_bytes(50'000, 3));
  write_the_map({dir_ / "lib/libx.so.1"});
  const auto made = pack();
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("5 files"));
  EXPECT_THAT(packed(),
              ::testing::UnorderedElementsAre(dir_ / "lib/libx.so.1", "a.py", "b/deep/er/c.py",
                                              "empty.py", "odd\\nna me \xc3\xa4"));
  const auto checked = run({resolve_, "verify", bundle_});
  EXPECT_EQ(checked.status, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("3 of 3 frames are as they were packed"));
  EXPECT_THAT(run({resolve_, "show", bundle_}).out, HasSubstr("libx.so.1"));
  // A bundle is packed again as a map is.
  EXPECT_EQ(run({resolve_, "pack", bundle_, "-o", dir_ / "again"}).status, 0);
  EXPECT_EQ(value_or_throw(read_file(dir_ / "again")), value_or_throw(read_file(bundle_)));
}

TEST_F(Pack, with_a_trace_takes_what_was_used_in_that_order_and_all_libraries) {
  for (const char* name : {"a.py", "b.py", "c.py", "d.py"}) add(name, some_bytes(500, name[0]));
  write_text_file(dir_ / "lib/libx.so.1", "x");
  write_text_file(dir_ / "lib/liby.so.1", "y");
  write_text_file(dir_ / "lib/data", "z");
  write_the_map({dir_ / "lib/libx.so.1", dir_ / "lib/liby.so.1", dir_ / "lib/data"});
  const auto run_txt =
      trace({tree_ + "/c.py", "/etc/passwd", dir_ / "lib/liby.so.1", tree_ + "/a.py"});
  const auto made = pack({"--trace", run_txt});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(packed(), (Strings{"c.py", dir_ / "lib/liby.so.1", "a.py", dir_ / "lib/libx.so.1"}));
  EXPECT_EQ(pack({"--trace", run_txt, "--include", tree_ + "/d.py"}).status, 0);
  EXPECT_THAT(packed(), ::testing::Contains("d.py"));
}

TEST_F(Pack, warns_of_a_trace_of_another_program) {
  add("a.py", "a");
  write_the_map();
  const auto made = pack({"--trace", trace({"/etc/passwd"})});
  EXPECT_EQ(made.status, 0);
  EXPECT_THAT(made.err, HasSubstr("opens no file of the map"));
}

TEST_F(Pack, holds_equal_content_and_hard_links_once) {
  const auto text = some_bytes(900'000, 5);
  const auto first = add("a", text);
  add("b", text);
  fs::create_hard_link(first, tree_ + "/c");
  write_the_map();
  ASSERT_EQ(pack().status, 0);
  EXPECT_EQ(packed(), (Strings{"a", "b", "c"}));
  const auto reader = value_or_throw(MapReader::open(bundle_));
  EXPECT_EQ(reader.bundle()->stream_size, text.size());
}

TEST_F(Pack, judges_a_file_by_all_its_hard_links) {
  const auto link = [&](const std::string& to, const std::string& name) {
    fs::create_hard_link(to, tree_ + "/" + name);
  };
  link(add(".netrc", "machine x"), "-first");
  link(add("a.dat", some_bytes(400, 1)), "b.dat");
  link(add("key.txt", "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n"), "z.pem");
  link(add("c.dat", some_bytes(400, 2)), "d.dat");
  add("e.dat", "e");
  write_the_map();
  const auto made = pack();
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(sorted_packed(), (Strings{"a.dat", "b.dat", "c.dat", "d.dat", "e.dat"}));
  EXPECT_THAT(made.err, AllOf(HasSubstr(".netrc: they hold passwords"), HasSubstr("private keys")));
  const auto run_txt = trace({tree_ + "/d.dat"});
  ASSERT_EQ(pack({"--trace", run_txt}).status, 0);
  EXPECT_EQ(packed(), (Strings{"c.dat", "d.dat"}));
  ASSERT_EQ(pack({"--trace", run_txt, "--include", tree_ + "/b.dat"}).status, 0);
  EXPECT_EQ(packed(), (Strings{"c.dat", "d.dat", "a.dat", "b.dat"}));
  ASSERT_EQ(pack({"--include", tree_ + "/.netrc"}).status, 0);
  EXPECT_THAT(packed(), AllOf(::testing::Contains(".netrc"), ::testing::Contains("-first")));
}

TEST_F(Pack, warns_of_an_included_path_that_is_not_in_the_map) {
  add("a.py", "a");
  write_the_map();
  const auto made = pack({"--include", tree_ + "/a.yp", "--include", tree_});
  EXPECT_EQ(made.status, 0);
  EXPECT_THAT(made.err, HasSubstr(tree_ + "/a.yp: names no file of the map"));
  EXPECT_THAT(made.err, Not(HasSubstr(tree_ + ": names")));
}

TEST_F(Pack, leaves_out_what_is_secret_or_the_machines_unless_it_is_named) {
  const std::string key = "-----BEGIN RSA PRIVATE KEY-----\nMII\n";
  const std::string certificate = "-----BEGIN CERTIFICATE-----\nMII\n";
  const Strings secret = {add("private.py", "x", 0600),
                          add(".netrc", "machine x"),
                          add("x/.git/config", "token"),
                          add("deep/.ssh/config", "x"),
                          add("server.pem", certificate + key),
                          add("notes.txt", key),
                          add("libc.so.6", "c"),
                          add("libcuda.so.1", "cuda"),
                          add("libnvidia-ml.so.535", "ml"),
                          add("ld-linux-x86-64.so.2", "ld"),
                          add("module/.git", "gitdir: ../x"),
                          add("home/.docker/config.json", "token"),
                          add("home/.kube/config", "token"),
                          add("my.p12", "0"),
                          add("marked.txt", "\xef\xbb\xbf" + key),
                          add("closed/deep/readable.txt", "x")};
  ASSERT_EQ(::chmod((tree_ + "/closed").c_str(), 0700), 0);
  ASSERT_EQ(::chmod(tree_.c_str(), 0700), 0);  // the tree's own counts for nothing
  add("cacert.pem", certificate);
  add("id_rsa.py", "# no key");
  add("libcudart.so.12", "runtime");
  write_the_map();
  const auto made = pack();
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(sorted_packed(), (Strings{"cacert.pem", "id_rsa.py", "libcudart.so.12"}));
  for (const char* why : {"others may not read", "passwords", "private keys", "libc", "GPU"})
    EXPECT_THAT(made.err, HasSubstr(why));
  const auto bytes = value_or_throw(read_file(bundle_));
  EXPECT_EQ(bytes.find("machine x"), bytes.npos);
  ASSERT_EQ(pack({"--include", tree_ + "/.netrc", "--include", tree_ + "/x/"}).status, 0);
  EXPECT_THAT(packed(), AllOf(::testing::Contains(".netrc"), ::testing::Contains("x/.git/config"),
                              Not(::testing::Contains("server.pem"))));
  ASSERT_EQ(pack({"--include", tree_}).status, 0);
  EXPECT_EQ(packed().size(), secret.size() + 3);
}

TEST_F(Pack, names_a_file_that_has_changed_or_gone_and_leaves_the_old_bundle) {
  const auto path = add("a.py", "text");
  add("b.py", "more");
  write_the_map();
  write_text_file(bundle_, "old");
  const auto fails = [&](const std::string& why) {
    const auto made = pack();
    EXPECT_NE(made.status, 0);
    EXPECT_THAT(made.err, AllOf(HasSubstr("a.py"), HasSubstr(why)));
    EXPECT_EQ(value_or_throw(read_file(bundle_)), "old");
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      EXPECT_THAT(entry.path().string(), Not(HasSubstr(".new-")));
  };
  write_text_file(path, "other size");
  fails("has changed");
  write_text_file(path, "test");  // the same size, another time
  fails("has changed");
  fs::remove(path);
  fails("No such file");
  fs::create_symlink("/etc/passwd", path);
  fails("changed");
}

TEST_F(Pack, of_a_full_disk_says_so_and_leaves_nothing) {
  if (::geteuid() != 0) HEDDLE_SKIP("mounts a tmpfs");
  add("big", some_bytes(4'000'000, 4));
  write_the_map();
  fs::create_directory(dir_ / "small");
  const auto script =
      "mount -t tmpfs -o size=512k none \"$1\" && \"$2\" pack \"$3\" -o \"$1/b\"; "
      "status=$?; ls -A \"$1\"; exit $status";
  const auto made =
      run({"unshare", "-m", "sh", "-c", script, "sh", dir_ / "small", resolve_, map_});
  EXPECT_NE(made.status, 0);
  EXPECT_THAT(made.err, HasSubstr("No space left on device"));
  EXPECT_EQ(made.out, "");
}

// Copied without their times or checked out anew, as by cp -r or git: every rank would compile
// them.
TEST_F(Pack, compiles_the_python_files_whose_compiled_form_is_stale) {
  const std::string python = "/usr/bin/python3.11";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3.11");
  const Strings names = {"time", "size", "magic", "flags", "cut", "broken", "hash", "good"};
  const auto pyc = [&](const std::string& name) {
    return tree_ + "/__pycache__/" + name + ".cpython-311.pyc";
  };
  for (const auto& name : names) {
    const auto source = add(name + ".py", "value = 'a'\n");
    run_checked({python, "-c",
                 "import py_compile, sys\nmode = py_compile.PycInvalidationMode\n"
                 "py_compile.compile(sys.argv[1], doraise=True, invalidation_mode="
                 "mode.CHECKED_HASH if 'hash' in sys.argv[1] else mode.TIMESTAMP)",
                 source});
  }
  run_checked({"touch", "-d", "2001-01-01", tree_ + "/time.py", tree_ + "/broken.py"});
  add("broken.py", "this is no Python\n");
  add("size.py", "value = 'abc'\n");
  run_checked({"touch", "-r", pyc("size"), tree_ + "/size.py"});
  const auto change = [&](const std::string& name, std::size_t at) {
    auto bytes = value_or_throw(read_file(pyc(name)));
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    write_text_file(pyc(name), bytes);
  };
  change("magic", 0);
  change("flags", 4);
  fs::resize_file(pyc("cut"), 15);
  std::map<std::string, std::string> before;
  for (const auto& name : names) before[name] = value_or_throw(read_file(pyc(name)));
  auto content = map_of({python}, {tree_});
  content.programs.push_back({.path = python, .object = 0, .view = 0});
  value_or_throw(write_map(content, map_));
  const auto made = pack();
  ASSERT_EQ(made.status, 0) << made.err;

  const auto reader = value_or_throw(MapReader::open(bundle_));
  const auto trees = value_or_throw(reader.trees());
  const auto file = value_or_throw(open_file(bundle_, O_RDONLY));
  std::string stream;
  for (std::size_t i = 0; i < reader.bundle()->frames.size(); ++i)
    stream += value_or_throw(read_frame(file.get(), bundle_, *reader.bundle(), i));
  const auto packed_bytes = [&](const std::string& name) {
    const auto id = *trees[0].second.find_path("__pycache__/" + name + ".cpython-311.pyc");
    return stream.substr(reader.bundle()->trees[0][id], trees[0].second.node(id).size);
  };
  for (const auto& name : {"broken", "hash", "good"}) EXPECT_EQ(packed_bytes(name), before[name]);
  for (const std::string name : {"time", "size", "magic", "flags", "cut"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(value_or_throw(read_file(pyc(name))), before[name]);  // the original stays
    // What Python itself writes for this source.
    const auto source = tree_ + "/" + name + ".py";
    run_checked({python, "-m", "py_compile", source});
    EXPECT_EQ(packed_bytes(name), value_or_throw(read_file(pyc(name))));
  }
}

TEST_F(Pack, compiles_the_python_files_that_lack_it) {
  const std::string python = "/usr/bin/python3.11";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3.11");
  add("pkg/__init__.py", "x = 1\n");
  add("pkg/broken.py", "this is no Python\n");
  add("pkg/private.py", "y = 2\n", 0600);
  add("unused.py", "z = 3\n");
  run_checked({python, "-m", "py_compile", add("has.py", "z = 3\n")});
  auto content = map_of({python}, {tree_});
  content.objects[0].is_elf = true;
  content.programs.push_back({.path = python, .object = 0, .view = 0});
  value_or_throw(write_map(content, map_));
  const auto made = pack({"--trace", trace({tree_ + "/pkg/__init__.py", tree_ + "/has.py",
                                            tree_ + "/pkg/broken.py", tree_ + "/pkg/private.py"})});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(packed(), (Strings{"pkg/__init__.py", "pkg/__pycache__/__init__.cpython-311.pyc",
                               "has.py", "pkg/broken.py", python}));
  EXPECT_FALSE(fs::exists(tree_ + "/pkg/__pycache__"));
  const auto reader = value_or_throw(MapReader::open(bundle_));
  const auto trees = value_or_throw(reader.trees());
  const TreeIndex& tree = trees[0].second;
  const auto compiled = *tree.find_path("pkg/__pycache__/__init__.cpython-311.pyc");
  EXPECT_EQ(tree.node(compiled).mode, S_IFREG | 0644);
  EXPECT_EQ(tree.node(*tree.find_path("pkg/__pycache__")).mode, S_IFDIR | 0755);
  EXPECT_FALSE(tree.find_path("pkg/__pycache__/private.cpython-311.pyc"));
  EXPECT_FALSE(tree.find_path("__pycache__/unused.cpython-311.pyc"));
  // The header names the source's time and size.
  const auto file = value_or_throw(open_file(bundle_, O_RDONLY));
  const auto place = reader.bundle()->trees[0][compiled];
  const auto pyc = value_or_throw(read_frame(file.get(), bundle_, *reader.bundle(), 0))
                       .substr(place, tree.node(compiled).size);
  std::uint32_t numbers[4];
  std::memcpy(numbers, pyc.data(), sizeof(numbers));
  struct stat source {};
  ASSERT_EQ(::stat((tree_ + "/pkg/__init__.py").c_str(), &source), 0);
  EXPECT_EQ(numbers[2], static_cast<std::uint32_t>(source.st_mtime));
  EXPECT_EQ(numbers[3], 6U);
  const auto verified = run({resolve_, "verify", bundle_});
  EXPECT_EQ(verified.status, 0) << verified.out;
}

TEST_F(Pack, compiles_python_files_of_any_time) {
  const std::string python = "/usr/bin/python3.11";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3.11");
  for (const std::int64_t second : {INT64_C(-5), INT64_C(0), INT64_C(9000000000)}) {
    const timespec time{second, 999'999'999}, times[] = {time, time};
    const auto path = add("of" + std::to_string(second) + ".py", "x = 1\n");
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  auto content = map_of({python}, {tree_});
  content.objects[0].is_elf = true;
  content.programs.push_back({.path = python, .object = 0, .view = 0});
  value_or_throw(write_map(content, map_));
  const auto made = pack();
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(packed(), ::testing::Contains("__pycache__/of-5.cpython-311.pyc"));
}

TEST_F(Pack, of_an_interpreter_that_cannot_compile_packs_the_rest) {
  const auto python = dir_ / "bin/python3";
  add("a.py", "x = 1\n");
  write_text_file(python, "#!/bin/sh\nexit 1\n", 0755);
  auto content = map_of({python}, {tree_});
  content.programs.push_back({.path = python, .object = 0, .view = 0});
  value_or_throw(write_map(content, map_));
  const auto packs = [&](const std::string& why) {
    const auto made = pack();
    EXPECT_EQ(made.status, 0) << made.err;
    EXPECT_THAT(made.err, HasSubstr(why));
    EXPECT_EQ(sorted_packed(), (Strings{python, "a.py"}));
  };
  packs("cannot compile: exit status 1");
  // Prints what is no tag, and fails later.
  write_text_file(python, "#!/bin/sh\n[ \"$4\" != \"${4#import}\" ] && echo cpython-311\n", 0755);
  content = map_of({python}, {tree_});
  content.programs.push_back({.path = python, .object = 0, .view = 0});
  value_or_throw(write_map(content, map_));
  packs("cannot compile");
}

TEST_F(Pack, verify_compares_the_originals_of_a_bundle_too) {
  const std::string python = "/usr/bin/python3.11";
  if (!fs::exists(python)) HEDDLE_SKIP("no python3.11");
  const auto source = add("pkg/a.py", "x = 1\n");
  add("pkg/b.dat", "data");
  write_text_file(dir_ / "lib/libx.so.1", "before");
  auto content = map_of({python, dir_ / "lib/libx.so.1"}, {tree_});
  const auto object = content.objects[0].path == python ? 0U : 1U;
  content.programs.push_back({.path = python, .object = object, .view = 0});
  value_or_throw(write_map(content, map_));
  ASSERT_EQ(pack().status, 0);
  EXPECT_THAT(packed(), ::testing::Contains("pkg/__pycache__/a.cpython-311.pyc"));
  auto checked = run({resolve_, "verify", bundle_});
  EXPECT_EQ(checked.status, 0) << checked.out;
  EXPECT_THAT(checked.out, AllOf(HasSubstr("2 of 2 files are unchanged"),
                                 HasSubstr("0 of 6 names of trees differ"),
                                 HasSubstr("frames are as they were packed")));
  // What Python compiles there meanwhile is not the bundle's.
  run_checked({python, "-m", "py_compile", source});
  EXPECT_EQ(run({resolve_, "verify", bundle_}).status, 0);
  add("pkg/a.py", "x = 2 + 3\n");
  add("pkg/new.py", "");
  write_text_file(dir_ / "lib/libx.so.1", "after!");
  checked = run({resolve_, "verify", bundle_});
  EXPECT_EQ(checked.status, 1);
  EXPECT_THAT(checked.out,
              AllOf(HasSubstr("libx.so.1: changed"), HasSubstr("pkg/a.py: changed"),
                    HasSubstr("pkg/new.py: added"), HasSubstr("1 of 2 files are unchanged"),
                    HasSubstr("2 of 6 names of trees differ")));
}

TEST_F(Pack, verify_names_each_damaged_frame) {
  add("big", some_bytes(6'000'000, 4));
  write_the_map();
  ASSERT_EQ(pack().status, 0);
  const auto bundle = value_or_throw(MapReader::open(bundle_)).bundle();
  const auto file = value_or_throw(open_file(bundle_, O_RDWR));
  for (const std::size_t number : {1, 3})
    ASSERT_EQ(
        ::pwrite(file.get(), "damage", 6, static_cast<off_t>(bundle->frames[number].offset + 1000)),
        6);
  const auto checked = run({resolve_, "verify", bundle_});
  EXPECT_EQ(checked.status, 1);
  EXPECT_THAT(checked.out, AllOf(HasSubstr("frame 1: "), HasSubstr("frame 3: "),
                                 HasSubstr("4 of 6 frames are as they were packed")));
}

TEST_F(Pack, refuses_what_is_no_map_or_no_bundle) {
  add("a", "a");
  write_the_map();
  EXPECT_THAT(run({resolve_, "pack", "--list", map_}).err, HasSubstr("not a heddle bundle"));
  write_text_file(dir_ / "text", "text");
  EXPECT_NE(run({resolve_, "pack", dir_ / "text", "-o", bundle_}).status, 0);
  EXPECT_EQ(run({resolve_, "pack", map_}).status, 2);
  EXPECT_EQ(run({resolve_, "pack", map_, "--list", "-o", bundle_}).status, 2);
  EXPECT_NE(run({resolve_, "pack", map_, "-o", dir_.path()}).status, 0);
  EXPECT_FALSE(fs::exists(bundle_));
  fs::create_symlink(map_, dir_ / "link");
  EXPECT_EQ(run({resolve_, "pack", map_, "-o", dir_ / "link"}).status, 3);
  EXPECT_EQ(run({resolve_, "pack", "--list", map_}).status, 3) << "still a map";
}

/// Its name is the id that came by another way, as fs-ship has it.
TEST_F(Pack, refuses_a_bundle_that_its_name_is_not_the_id_of) {
  add("a", "a");
  write_the_map();
  ASSERT_EQ(pack().status, 0);
  const auto id = value_or_throw(MapReader::open(bundle_)).id().hex();
  fs::rename(bundle_, dir_ / id + ".bundle");
  EXPECT_EQ(run({resolve_, "show", dir_ / id + ".bundle"}).status, 0);
  const auto other = dir_ / std::string(id.size(), '0') + ".bundle";
  fs::create_symlink(id + ".bundle", other);
  const auto shown = run({resolve_, "show", other});
  EXPECT_EQ(shown.status, 3);
  EXPECT_THAT(shown.err, HasSubstr("another bundle than its name says: " + id));
}

}  // namespace
}  // namespace heddle::test
