// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>
#include <set>

#include "base/child.hpp"
#include "base/fd.hpp"
#include "base/temp_dir.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

class Map : public ::testing::Test {
 protected:
  TempDir dir_ = value_or_throw(TempDir::create("heddle-map"));
  std::string path_ = dir_.path() + "/libs.map";

  void write(const MapContent& content) { value_or_throw(write_map(content, path_)); }
  MapReader reader() { return value_or_throw(MapReader::open(path_)); }
  std::string bytes() { return value_or_throw(read_file(path_)); }
  void put_bytes(std::string_view bytes) {
    auto fd = value_or_throw(open_file(path_, O_WRONLY | O_CREAT | O_TRUNC));
    value_or_throw(write_all(fd.get(), bytes, path_));
  }
  std::set<std::string> files() {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      out.insert(entry.path().filename());
    return out;
  }
  int open_code() {
    auto reader = MapReader::open(path_);
    if (reader) return 0;
    EXPECT_THAT(reader.error().message(), HasSubstr(path_));
    return reader.error().code();
  }
};

TEST_F(Map, round_trips_its_content) {
  const MapContent content = sample_map(40);
  write(content);
  EXPECT_TRUE(same(value_or_throw(reader().read_all()), content));
  EXPECT_EQ(files(), std::set<std::string>{"libs.map"});
}

TEST_F(Map, writer_is_deterministic) {
  write(sample_map(300));
  const std::string first = bytes();
  write(sample_map(300));
  EXPECT_TRUE(first == bytes());
  write(sample_map(301));
  EXPECT_FALSE(first == bytes());
}

TEST_F(Map, keeps_names_of_any_bytes_up_to_the_limit) {
  MapContent content = sample_map(3);
  auto& names = content.views[0].names;
  const std::string longest(map_format::kMaxText, 'q');
  names = {
      {"a b\t\n\xff\xc3\xa4", 0}, {"plugins/" + std::string(400, 'p') + "/one", 1}, {longest, 2}};
  std::sort(names.begin(), names.end());
  const std::string long_path = "/" + std::string(map_format::kMaxText - 1, 'x');
  content.paths = {{"/short", 0}, {long_path, 1}};
  write(content);
  EXPECT_TRUE(same(value_or_throw(reader().read_all()), content));
  names.back().first += 'q';
  const auto refused = write_map(content, path_);
  EXPECT_TRUE(!refused && refused.error().code() == EINVAL);
}

TEST_F(Map, writer_refuses_invalid_content_and_keeps_the_old_map) {
  write(sample_map(3));
  const std::string before = bytes();
  const auto refused = [&](auto break_it) {
    MapContent content = sample_map(3);
    break_it(content);
    auto result = write_map(content, path_);
    return !result && result.error().code() == EINVAL;
  };
  using namespace std::string_literals;
  EXPECT_TRUE(refused([](MapContent& c) { c.generated = {{".heddle/stats", ""}}; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.generated = {{"a/b", ""}}; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.generated = {{"b", ""}, {"a", ""}}; }));
  EXPECT_TRUE(refused([](MapContent& c) { std::swap(c.objects[0], c.objects[1]); }));
  EXPECT_TRUE(refused([](MapContent& c) { c.objects[1].path = c.objects[0].path; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.objects[0].path = "relative"; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.objects[0].path += "\0"s; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0].second = 3; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0].first = ""; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0].first = ".."; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0].first = "/a"; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0].first = "a//b"; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0].first = "a\0b"s; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].names[0] = c.views[0].names[1]; }));
  EXPECT_TRUE(refused([](MapContent& c) {
    c.views[0].names = {{"lib", 0}, {"lib/x", 1}};  // a file and a directory
  }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views[0].name = "a/b"; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.views.push_back(c.views[0]); }));
  EXPECT_TRUE(refused([](MapContent& c) { c.programs[0].object = 3; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.programs[0].view = 1; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.programs[0].guided[0].second = 3; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.programs[0].libraries[0].object = 3; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.paths[0].first = "x"; }));
  EXPECT_TRUE(refused([](MapContent& c) { std::swap(c.paths[0], c.paths[1]); }));
  EXPECT_TRUE(refused([](MapContent& c) { c.trees[0].index += 'x'; }));
  EXPECT_TRUE(refused([](MapContent& c) { c.trees[1].path = "/opt/app/python/x"; }));
  EXPECT_TRUE(refused([](MapContent& c) {  // out of sight of its neighbours
    c.trees = {{"/a", sample_tree()}, {"/a-b", sample_tree()}, {"/a/b/c", sample_tree()}};
  }));
  EXPECT_TRUE(refused([](MapContent& c) { std::swap(c.trees[0], c.trees[1]); }));
  for (const auto& path : {"/"s, ""s, "/a/"s, "//a"s, "/a/./b"s, "/a/.."s, "a"s, "/a\0"s,
                           "/" + std::string(5000, 'x')})
    EXPECT_TRUE(refused([&](MapContent& c) { c.trees[0].path = path; })) << path;
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(files(), std::set<std::string>{"libs.map"});
}

TEST_F(Map, reader_refuses_every_truncation) {
  write(sample_map(60));
  const std::string whole = bytes();
  std::mt19937 random(1);
  std::set<std::size_t> lengths{0, 1, 15, 16, 19, 20, 39, 40, 41, 4095, 4096, 4097, 8192};
  for (std::size_t cut = 1; cut <= 50; ++cut) lengths.insert(whole.size() - cut);
  for (int i = 0; i < 300; ++i) lengths.insert(random() % whole.size());
  for (const std::size_t length : lengths) {
    put_bytes(std::string_view(whole).substr(0, length));
    const int code = open_code();
    EXPECT_EQ(code, length < 20 ? ENOEXEC : EBADMSG) << length;
  }
  put_bytes(whole + "x");
  EXPECT_EQ(open_code(), EBADMSG);
}

TEST_F(Map, reader_detects_every_flipped_bit) {
  write(sample_map(30));
  const std::string whole = bytes();
  std::mt19937 random(2);
  const auto fd = value_or_throw(open_file(path_, O_WRONLY));
  for (int i = 0; i < 4000; ++i) {
    // A third of the changes hits the trailer and LMDB's meta pages.
    const std::size_t at = i % 3   ? random() % whole.size()
                           : i % 2 ? whole.size() - 1 - random() % 40
                                   : random() % 8192;
    const char bad = static_cast<char>(whole[at] ^ (1 << random() % 8));
    ASSERT_EQ(::pwrite(fd.get(), &bad, 1, static_cast<off_t>(at)), 1);
    const int code = open_code();
    EXPECT_TRUE(code == EBADMSG || code == ENOTSUP || code == ENOEXEC) << at << ' ' << code;
    ASSERT_EQ(::pwrite(fd.get(), &whole[at], 1, static_cast<off_t>(at)), 1);
  }
  EXPECT_EQ(open_code(), 0);
}

TEST_F(Map, reader_refuses_another_version) {
  write(sample_map(3));
  std::string other = bytes();
  other[other.size() - 40 + 8] = static_cast<char>(map_format::kMapVersion + 1);
  put_bytes(other);
  EXPECT_EQ(open_code(), ENOTSUP);
}

TEST_F(Map, reader_refuses_other_files_without_blocking) {
  EXPECT_EQ(open_code(), ENOENT);
  const auto expect = [&](int code) {
    EXPECT_EQ(open_code(), code);
    fs::remove(path_);
  };
  put_bytes("a text file that is longer than a map's trailer of forty bytes\n");
  expect(ENOEXEC);
  fs::create_directory(path_);
  expect(ENOEXEC);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect(ENOEXEC);
  for (const auto& [target, code] :
       {std::pair{"nowhere", ENOENT}, {"libs.map", ELOOP}, {"/dev/zero", ENOEXEC}}) {
    fs::create_symlink(target, path_);
    expect(code);
  }
}

TEST_F(Map, failed_write_keeps_the_old_map_and_no_temporary_file) {
  write(sample_map(3));
  const std::string before = bytes();
  auto limited = value_or_throw(fork_child({}, [&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto result = write_map(sample_map(2000), path_);
    return result ? 0 : result.error().code();
  }));
  EXPECT_EQ(value_or_throw(limited.wait()), EFBIG);
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(files(), std::set<std::string>{"libs.map"});
}

}  // namespace
}  // namespace heddle
